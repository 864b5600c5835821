"""Importing what an extra brings."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from ..errors import DeviceUnavailableError
from .failures import first_line


def load(module: str, title: str, fix: str) -> Any:
    """Import the module through which a driver is reached.

    Raises
    ------
    DeviceUnavailableError
        If it is missing or does not load.
    """
    try:
        return import_module(module)
    except ImportError as error:
        missing = isinstance(error, ModuleNotFoundError) and error.name == module
        reason = "is not installed" if missing else f"does not load: {first_line(error)}"
        raise DeviceUnavailableError(f"{title} {reason}", fix=fix) from error
