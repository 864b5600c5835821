"""What readers are given: a file's bytes or its path, and the JSON in it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeAlias

from ..errors import PlaitError

Source: TypeAlias = bytes | bytearray | memoryview | str | os.PathLike[str]
"""A file's bytes, or its path."""

Refuse: TypeAlias = Callable[..., PlaitError]
"""The class of the errors that a format raises."""


def content_of(source: Source, name: str, refuse: Refuse) -> tuple[bytes, str]:
    """Return the bytes, and what to call them: the path, or the name that is given."""
    if isinstance(source, bytes | bytearray | memoryview):
        return bytes(source), name
    if not isinstance(source, str | os.PathLike):
        raise refuse(
            f"a {type(source).__name__} is no file", at=name, fix="pass its bytes, or its path"
        )
    at = os.fspath(source)
    try:
        return Path(source).read_bytes(), at
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise refuse(
            f"cannot read the file: {reason}", at=at, fix="check its path and permissions"
        ) from error


def json_in(
    text: Callable[[], str | bytes],
    at: str,
    refuse: Refuse,
    fix: str,
    what: str = "this is no JSON",
) -> Any:
    """Return the JSON value in a text; no key twice, no number that is none.

    `text` may raise ValueError, as decoding does.
    """
    try:
        return json.loads(text(), object_pairs_hook=_once, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        detail = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise refuse(f"{what}: {detail}", at=at, fix=fix) from error


def _once(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise ValueError("a key is given twice")
    return made


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number")
