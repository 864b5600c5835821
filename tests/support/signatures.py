"""Signatures of functions, compiled ones too."""

from __future__ import annotations

import inspect
import re
from typing import Any, NamedTuple


class Taken(NamedTuple):
    """How a function is called: its parameters, how many must be given, and if any more may be."""

    names: tuple[str, ...]
    required: int
    is_open: bool


def taken(function: Any) -> Taken:
    """Return what a function takes; compiled ones say it in their documentation only."""
    try:
        found = inspect.signature(function).parameters.values()
    except ValueError:
        return _documented(function)
    closed = [one for one in found if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)]
    named = [one for one in closed if one.name != "self"]
    required = sum(one.default is one.empty for one in named)
    return Taken(tuple(one.name for one in named), required, len(closed) < len(found))


def _documented(function: Any) -> Taken:
    match = re.search(r"\w+\((.*?)\)", function.__doc__ or "")
    assert match is not None, f"{function} does not say what it takes"
    listed = [one.strip() for one in match[1].split(",")]
    listed = [one for one in listed if one not in ("", "self", "/", "*")]
    names = (one.partition("=")[0].split()[-1] for one in listed)
    required = sum("=" not in one for one in listed)
    return Taken(tuple(names), required, any(one.startswith("*") for one in listed))
