"""Advice on unregistered operators in files."""

from __future__ import annotations

from collections.abc import Iterable

from ..values.errors import UnknownOperatorError
from ..values.extras import get_install_command, import_extra

RUNTIME_DOMAINS = ("com.microsoft", "com.microsoft.nchwc", "com.ms.internal.nhwc", "ai.onnx.ml")
"""Their operators are ONNX Runtime's: which there are, the installed release says."""

EXTENSIONS_DOMAIN = "ai.onnx.contrib"
"""That of onnxruntime-extensions, a library for ONNX Runtime."""


def advise(ops: Iterable[str], otherwise: str) -> str:
    """Return how to get the unregistered `ops`; `otherwise` is the advice for other domains."""
    domains = {op.rpartition(".")[0] for op in ops}
    if EXTENSIONS_DOMAIN in domains:
        return f"{EXTENSIONS_DOMAIN} needs a package: {get_install_command('extensions')}"
    if domains.isdisjoint(RUNTIME_DOMAINS):
        return otherwise
    named = " and ".join(sorted(domains.intersection(RUNTIME_DOMAINS)))
    missing = f"{named} needs ONNX Runtime"
    try:
        runtime = import_extra(
            "onnxruntime", missing, get_install_command("ort"), UnknownOperatorError
        )
    except UnknownOperatorError as error:
        return f"{error.what}: {error.fix}; or {otherwise}"
    return (
        f"onnxruntime {runtime.__version__} lacks them, too, or they hold graphs, as beam searches "
        f"do, or compiled code of a provider: install another release, export what they hold alone "
        f"and search in Python, or {otherwise}"
    )
