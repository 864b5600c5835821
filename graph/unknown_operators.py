"""Advice on operators that a file calls and nobody has registered."""

from __future__ import annotations

from collections.abc import Iterable

from .extras import how_to_install

RUNTIME_DOMAINS = ("com.microsoft", "ai.onnx.ml")
"""Their operators are ONNX Runtime's: which there are, the installed release says."""


def has_runtime_domain(op: str) -> bool:
    """True for the name of an operator of ONNX Runtime's own domains."""
    return op.rpartition(".")[0] in RUNTIME_DOMAINS


def advise(ops: Iterable[str], otherwise: str) -> str:
    """Return how to get operators that are not registered; `otherwise` where ONNX Runtime has none.

    Parameters
    ----------
    ops : iterable of str
    otherwise : str
        What is said of operators of any other domain.
    """
    from importlib.metadata import PackageNotFoundError, version  # takes 20 ms, and few need it

    domains = {op.rpartition(".")[0] for op in ops}
    if domains.isdisjoint(RUNTIME_DOMAINS):
        return otherwise
    named = " and ".join(sorted(domains.intersection(RUNTIME_DOMAINS)))
    try:
        release = version("onnxruntime")
    except PackageNotFoundError:
        return f"{named} needs ONNX Runtime: {how_to_install('onnx', 'ort')}; or {otherwise}"
    return (
        f"onnxruntime {release} lacks them, too, or they take graphs or tensors as attributes: "
        f"install another release, or {otherwise}"
    )
