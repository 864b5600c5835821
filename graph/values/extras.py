"""Optional packages: imported when first needed, with a clear error if that fails.

Some report their use to their makers at import, unless the environment forbids it. Users of plait
did not ask for that, so it is off when plait imports them, unless the user has set the variable.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import Any

from ...version import DISTRIBUTION
from .errors import PlaitError

ORT_DISABLE_TELEMETRY = "ORT_DISABLE_TELEMETRY"
"""Read by ONNX Runtime when it is imported, on Linux and macOS since 1.29."""

_REPORTS_OFF = {
    "onnxruntime": (ORT_DISABLE_TELEMETRY, "1"),
    "ray": ("RAY_USAGE_STATS_ENABLED", "0"),
}
"""The variable and value that turn reports off, by package."""


def turn_reports_off() -> None:
    """Stop imported packages from reporting to their makers."""
    for variable, value in _REPORTS_OFF.values():
        os.environ.setdefault(variable, value)
    # OpenVINO has no variable, and does without this package.
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]


def get_install_command(*extras: str) -> str:
    """Return the command that adds `extras` to an installed plait.

    pip takes the extras from the installed version, and only needs an index for their packages.

    Examples
    --------
    >>> print(get_install_command("ort"))
    pip install 'plait-dataflow[ort]'
    """
    return f"pip install '{DISTRIBUTION}[{','.join(extras)}]'"


def import_extra(module: str, missing: str, fix: str, kind: type[PlaitError]) -> Any:
    """Import the optional `module`, or raise an error of `kind`.

    The error says `missing` if the module is not installed, or else why its import fails; `fix`
    says how to install it.
    """
    turn_reports_off()
    try:
        found = import_module(module)
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and f"{module}.".startswith(f"{error.name}."):
            raise kind(missing, fix=fix) from error
        raise kind(
            f"the package {module!r} is installed, but does not load: {_describe_reason(error)}",
            fix=f"mend what it lacks, or install it anew: {fix}",
        ) from error
    if module == "onnxruntime" and os.environ[ORT_DISABLE_TELEMETRY] == "1":
        # Windows does not read the variable; and another package may have imported it before.
        found.disable_telemetry_events()
    return found


def _describe_reason(error: Exception) -> str:
    line = next((line for line in str(error).splitlines() if line.strip()), "")
    return line if line and isinstance(error, ImportError) else f"{type(error).__name__}: {line}"
