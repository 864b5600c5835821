"""The sources of readers: a file's bytes or path, and JSON in it."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Sequence
from typing import Any, BinaryIO, NoReturn, TypeAlias

from .files import Refuse, read_file

Source: TypeAlias = bytes | bytearray | memoryview | str | os.PathLike[str] | BinaryIO
"""A file's bytes, its path, or the open file."""

_HALF_A_PAIR = re.compile(r"\\u[dD][89a-fA-F]")
"""Half a surrogate pair, escaped, or one of a whole pair."""


def is_file(source: object) -> bool:
    """Return whether `source` is a file's bytes, its path, or an open file."""
    known = (bytes, bytearray, memoryview, str, os.PathLike)
    return isinstance(source, known) or callable(getattr(source, "read", None))


def read_content(source: Source, name: str, refuse: Refuse) -> tuple[bytes, str]:
    if callable(read := getattr(source, "read", None)):
        source, name = _read_rest(read, refuse, name), str(getattr(source, "name", name))
    if isinstance(source, bytes | bytearray | memoryview):
        return bytes(source), name
    if not isinstance(source, str | os.PathLike):
        raise refuse(
            f"expected a file, got {type(source).__name__}",
            at=name,
            fix="pass its bytes, or its path",
        )
    return bytes(read_file(source, refuse)), os.fspath(source)


def _read_rest(read: Callable[[], Any], refuse: Refuse, name: str) -> bytes:
    try:
        content = read()
    except (OSError, ValueError) as error:
        raise refuse(
            f"cannot read the file: {error}", at=name, fix="open it for reading"
        ) from error
    if not isinstance(content, bytes):
        raise refuse("the file is open as text", at=name, fix='open it with mode="rb"')
    return content


def may_be_json(head: bytes) -> bool:
    return head.lstrip()[:1] == b"{"


def decode_json(
    text: Callable[[], str | bytes],
    at: str,
    refuse: Refuse,
    fix: str,
    failure: str = "this is not JSON",
) -> Any:
    """Return the JSON value in a text, without double keys, NaN or unpaired surrogates.

    `text` returns it, or raises ValueError if it cannot be decoded. An error is a `refuse`: its
    message is `failure` and a reason, and it has the place `at` and `fix`.
    """
    try:
        given = text()
        if isinstance(given, bytes):  # json.loads would accept half a surrogate pair
            given = given.decode(json.detect_encoding(given))
        value = json.loads(given, object_pairs_hook=_check_unique, parse_constant=_refuse_number)
        if _HALF_A_PAIR.search(given):
            json.dumps(value, ensure_ascii=False).encode()  # fails for text that cannot be encoded
        return value
    except (ValueError, RecursionError) as error:
        detail = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise refuse(f"{failure}: {detail}", at=at, fix=fix) from error


def _check_unique(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise ValueError("a key is given twice")
    return made


def _refuse_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number")
