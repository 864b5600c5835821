"""Sources that readers are given: a file's bytes or its path, and the JSON in it."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Sequence
from typing import Any, BinaryIO, NoReturn, TypeAlias

from .files import Refuse, read_file

Source: TypeAlias = bytes | bytearray | memoryview | str | os.PathLike[str] | BinaryIO
"""A file's bytes, its path, or the file itself, open for reading."""

_HALF_A_PAIR = re.compile(r"\\u[dD][89a-fA-F]")
"""Half a surrogate pair, escaped, or one of a whole pair."""


def is_file(source: object) -> bool:
    """True for a file's bytes, its path, and a file that is open."""
    known = (bytes, bytearray, memoryview, str, os.PathLike)
    return isinstance(source, known) or callable(getattr(source, "read", None))


def content_of(source: Source, name: str, refuse: Refuse) -> tuple[bytes, str]:
    """Return the bytes, and what to call them: the path, or the name that is given."""
    if callable(read := getattr(source, "read", None)):
        source, name = _taken_from(read, refuse, name), str(getattr(source, "name", name))
    if isinstance(source, bytes | bytearray | memoryview):
        return bytes(source), name
    if not isinstance(source, str | os.PathLike):
        raise refuse(
            f"expected a file, got {type(source).__name__}",
            at=name,
            fix="pass its bytes, or its path",
        )
    return bytes(read_file(source, refuse)), os.fspath(source)


def _taken_from(read: Callable[[], Any], refuse: Refuse, name: str) -> bytes:
    """Return the rest of a file that is open."""
    try:
        content = read()
    except (OSError, ValueError) as error:
        raise refuse(
            f"cannot read the file: {error}", at=name, fix="open it for reading"
        ) from error
    if not isinstance(content, bytes):
        raise refuse("the file is open as text", at=name, fix='open it with mode="rb"')
    return content


def starts_json(head: bytes) -> bool:
    """True when a file that starts with `head` could be a JSON object."""
    return head.lstrip()[:1] == b"{"


def json_in(
    text: Callable[[], str | bytes],
    at: str,
    refuse: Refuse,
    fix: str,
    what: str = "this is not JSON",
) -> Any:
    """Return the JSON value in a text; no key twice, no number that is none, no half characters.

    `text` may raise ValueError, as decoding does.
    """
    try:
        given = text()
        if isinstance(given, bytes):  # json.loads would let half a surrogate pair pass
            given = given.decode(json.detect_encoding(given))
        value = json.loads(given, object_pairs_hook=_once, parse_constant=_no_number)
        if _HALF_A_PAIR.search(given):
            json.dumps(value, ensure_ascii=False).encode()  # fails for what no file can be named
        return value
    except (ValueError, RecursionError) as error:
        detail = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise refuse(f"{what}: {detail}", at=at, fix=fix) from error


def _once(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise ValueError("a key is given twice")
    return made


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number")
