"""LightNet's weights: text, a count and then one tensor a line.

    2
    conv_wts 0 3 3f99999a 3a83126f 00000000
    table 2 2 ff 01

A line has a name, a type, the number of elements, and the bits of each in hexadecimal; type 0 is
float32, 2 is int8. The file has no shapes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from ...graph.formats.sources import Source, read_content
from ...graph.values.errors import GraphError, ParseError
from ...graph.values.tensor import Array
from .entries import fail

_TYPES: dict[str, tuple[np.dtype[Any], int]] = {
    "0": (np.dtype("float32"), 8),
    "2": (np.dtype("int8"), 2),
}
"""The dtype of each type, and the digits of an element."""

_COUNT = re.compile("[0-9]{1,18}")
_WORD = re.compile("[0-9a-fA-F]+")


def read_weights(source: Source, at: str = "weights") -> dict[str, Array]:
    r"""Return the tensors in a file of weights, by name, each as a vector.

    `source` is the path of the file or its bytes, and `at` is its name in errors.

    Raises
    ------
    ParseError
        If the file is not text, a line is incomplete, or a type is neither float32 nor int8.

    Examples
    --------
    >>> read_weights(b"1\nw 0 2 3f800000 c0000000")
    {'w': array([ 1., -2.], dtype=float32)}
    """
    data, at = read_content(source, at, ParseError)
    try:
        lines = data.decode("utf-8").splitlines()
    except UnicodeDecodeError as error:
        fail(f"this is not text: {error}", at)
    first = lines[0].strip() if lines else ""
    if not _COUNT.fullmatch(first):
        fail("the first line is not the count of tensors", at)
    count, listed = int(first), [line for line in lines[1:] if line.strip()]
    if len(listed) != count:
        fail(f"{count} tensors are announced, and {len(listed)} are there", at)
    found: dict[str, Array] = {}
    for number, line in enumerate(listed, 1):
        name, array = _read_line(line, f"tensor {number}, {at}")
        if name in found:
            fail(f"tensor {name!r} is given twice", at)
        found[name] = array
    return found


def dump_weights(arrays: Mapping[str, Array]) -> bytes:
    """Return the content of a file of weights with `arrays`.

    Raises
    ------
    GraphError
        If a tensor is neither float32 nor int8, or its name is empty or has white space.

    Examples
    --------
    >>> print(dump_weights({"w": np.array([1, -2], "float32")}).decode())
    1
    w 0 2 3f800000 c0000000
    <BLANKLINE>
    """
    lines = (f"{line}\n" for line in (str(len(arrays)), *map(_format, arrays, arrays.values())))
    return "".join(lines).encode()


def is_storable(name: str, array: Array) -> bool:
    """Return whether a file of weights can hold `array` under `name`."""
    return name.split() == [name] and any(array.dtype == dtype for dtype, _ in _TYPES.values())


def _read_line(line: str, at: str) -> tuple[str, Array]:
    words = line.split(maxsplit=3)
    if len(words) < 3 or not _COUNT.fullmatch(words[2]):
        fail("a line is not a name, type, count and elements", at)
    name, kind, length = words[0], words[1], int(words[2])
    if kind not in _TYPES:
        fail(f"tensor {name!r} is of type {kind!r}: neither 0, float32, nor 2, int8", at)
    dtype, digits = _TYPES[kind]
    text = words[3].strip() if len(words) > 3 else ""
    known = _read_aligned(text, length, digits)
    if known is not None:
        return name, np.frombuffer(known, dtype.newbyteorder(">")).astype(dtype)
    elements = text.split()
    if len(elements) != length:
        fail(f"tensor {name!r} has {len(elements)} elements, not {length}", at)
    if any(len(word) > digits or not _WORD.fullmatch(word) for word in elements):
        fail(f"an element of tensor {name!r} is not {digits} hexadecimal digits", at)
    bits = np.array([int(word, 16) for word in elements], f"u{dtype.itemsize}")
    return name, bits.view(dtype)


def _read_aligned(text: str, length: int, digits: int) -> bytes | None:
    """Return the bytes of `length` numbers of `digits` hexadecimal digits in `text`, or None.

    It is None unless the text is aligned as plait writes it: its length and the blanks between
    numbers exclude further blanks.
    """
    step = digits + 1
    if len(text) != length * step - 1 or text[digits::step] != " " * (length - 1):
        return None
    try:
        found = bytes.fromhex(text)
    except ValueError:
        return None
    return found if len(found) * 2 == length * digits else None


def _format(name: str, array: Array) -> str:
    if not is_storable(name, array):
        raise GraphError(
            f"tensor {name!r}, {array.dtype.name}, cannot be written as weights",
            fix="write float32 or int8, under a name without white space",
        )
    kind, dtype = next((kind, one) for kind, (one, _) in _TYPES.items() if array.dtype == one)
    bits = array.astype(dtype.newbyteorder(">"), order="C", copy=False).tobytes()
    words = bits.hex(" ", dtype.itemsize) if bits else ""
    return f"{name} {kind} {array.size} {words}".rstrip()
