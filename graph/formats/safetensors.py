"""Safetensors files: arrays by name, without code.

    0  header length, u64       8  header: JSON, padded with spaces       then the arrays

The header has dtype, shape and place of each array. The arrays are contiguous and little-endian.
A file is not trusted: lengths are checked against its bytes.

References
----------
https://huggingface.co/docs/safetensors
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn, TypeGuard

import numpy as np

from ..values.dtypes import dtype_of
from ..values.errors import GraphError, ParseError
from ..values.tensor import Array, TensorSpec
from .container import Data, read_array, to_bytes
from .sources import decode_json

METADATA = "__metadata__"
"""The key of text about the file in the header."""

DTYPES: Mapping[str, str] = {
    "BOOL": "bool",
    **{f"{letter}{bits}": f"{kind}{bits}" for letter, kind in (("I", "int"), ("U", "uint"))
       for bits in (8, 16, 32, 64)},
    **{f"F{bits}": f"float{bits}" for bits in (16, 32, 64)},
    "BF16": "bfloat16",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
    "C64": "complex64",
}  # fmt: skip
"""plait's dtypes by the format's names."""

_NAMES = {ours: name for name, ours in DTYPES.items()}
LENGTH = struct.Struct("<Q")
LONGEST = 100_000_000
"""Limit of a header in bytes, as in other readers and writers."""

_AGAIN = "download or write the file again"


def pack_weights(
    weights: Mapping[str, Array], metadata: Mapping[str, str]
) -> Iterator[bytes | memoryview]:
    """Return the parts of a file of `weights` and `metadata`; GraphError if it cannot hold them."""
    arrays = _sort({_check_name(name): np.asarray(array) for name, array in weights.items()})
    header: dict[str, Any] = {METADATA: _check_text(metadata)} if metadata else {}
    end = 0
    for name, array in arrays.items():
        places = [end, end + array.nbytes]
        dtype = _name_dtype(name, array)
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": places}
        end = places[1]
    return _pack(_encode(header), arrays)


def read_weights(data: Data, at: str = "bytes") -> tuple[dict[str, Array], dict[str, str]]:
    """Return the arrays in `data`, the content of a file, as views of it, and the metadata.

    Errors name the file `at`: ParseError if it is damaged or foreign, or has a dtype that plait
    lacks, and ShapeError for bfloat16 or 8-bit floats without `ml_dtypes`.
    """
    # Arrays are read-only views of the file.
    view = memoryview(data).toreadonly().cast("B")
    header, blob = _split(view, at)
    metadata = header.pop(METADATA, {})
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise ParseError("the metadata is not text by name", at=at, fix=_AGAIN)
    places = {name: _Place(name, entry, at) for name, entry in header.items()}
    end = 0
    for place in sorted(places.values(), key=lambda place: (place.begin, place.end)):
        # The format forbids gaps and overlaps: bytes in gaps could hide anything.
        if place.begin != end:
            raise ParseError(
                f"it starts at byte {place.begin}, the one before ends at {end}",
                at=place.where,
                fix=_AGAIN,
            )
        end = place.end
    if end != len(blob):
        raise ParseError(
            f"the file has {len(blob)} bytes of arrays, its header claims {end}", at=at, fix=_AGAIN
        )
    arrays = {
        name: read_array(blob[place.begin : place.end], place.spec, place.where)
        for name, place in places.items()
    }
    return arrays, metadata


class _Place:
    """The entry of one array in a header, checked by itself."""

    def __init__(self, name: str, entry: Any, at: str) -> None:
        self.where = f"array {name!r}, {at}"
        fields = entry if isinstance(entry, dict) else {}
        dtype, shape = fields.get("dtype"), fields.get("shape")
        offsets = fields.get("data_offsets")
        if not isinstance(dtype, str) or not _are_lengths(shape) or not _are_lengths(offsets):
            self._refuse("dtype, shape and data_offsets are not all there")
        if dtype not in DTYPES:
            self._refuse(f"its dtype is {dtype!r}", f"convert it to one of {', '.join(DTYPES)}")
        if len(offsets) != 2:
            self._refuse(f"it has {len(offsets)} offsets")
        try:
            self.spec = TensorSpec(dtype_of(DTYPES[dtype]), shape)
        except GraphError as error:
            self._refuse(error.what)
        self.begin, self.end = offsets
        if self.spec.nbytes != self.end - self.begin:
            self._refuse(f"bytes {self.begin} to {self.end} cannot hold {self.spec}")

    def _refuse(self, what: str, fix: str = _AGAIN) -> NoReturn:
        raise ParseError(what, at=self.where, fix=fix)


def _are_lengths(value: Any) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(type(length) is int and length >= 0 for length in value)


def _split(view: memoryview, at: str) -> tuple[dict[str, Any], memoryview]:
    """Return the unchecked header in `view`, the content of a file `at`, and the bytes after it."""
    foreign = "pass a .safetensors file"
    if len(view) < LENGTH.size + 2 or view[LENGTH.size] != ord("{"):
        raise ParseError("not a safetensors file", at=at, fix=foreign)
    (nbytes,) = LENGTH.unpack_from(view)
    # Checked before reading: eight bytes can claim any size.
    if nbytes > LONGEST:
        raise ParseError(f"the header claims {nbytes} bytes", at=at, fix=foreign)
    if nbytes > len(view) - LENGTH.size:
        raise ParseError(
            f"the file is cut short: {len(view)} bytes, its header claims {nbytes}",
            at=at,
            fix=_AGAIN,
        )
    end = LENGTH.size + nbytes
    text = view[LENGTH.size : end]
    damaged = "the header is damaged"
    header = decode_json(lambda: bytes(text).decode(), at, ParseError, _AGAIN, damaged)
    return header, view[end:]


def _sort(arrays: Mapping[str, Array]) -> dict[str, Array]:
    """Return `arrays` sorted by dtype, wide ones first: each is aligned without gaps."""
    return dict(sorted(arrays.items(), key=lambda pair: (-pair[1].itemsize, pair[0])))


def _check_name(name: Any) -> str:
    if not isinstance(name, str) or name == METADATA:
        raise GraphError(f"{name!r} cannot be an array's name", fix="name it otherwise")
    return name


def _name_dtype(name: str, array: Array) -> str:
    if array.dtype.name not in _NAMES:
        raise GraphError(
            f"safetensors files hold no {array.dtype.name}",
            at=f"array {name!r}",
            fix=f"convert it to one of {', '.join(_NAMES)}",
        )
    return _NAMES[array.dtype.name]


def _check_text(metadata: Mapping[str, str]) -> dict[str, str]:
    if not all(isinstance(text, str) for pair in metadata.items() for text in pair):
        raise GraphError("metadata is text by name", fix="convert names and values by str()")
    return dict(metadata)


def _encode(header: dict[str, Any]) -> bytes:
    try:
        encoded = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    except UnicodeEncodeError as error:
        raise GraphError(f"a name cannot be written: {error}", fix="use text in UTF-8") from error
    if len(encoded) > LONGEST:
        raise GraphError(
            f"names and metadata take {len(encoded)} bytes", fix=f"use at most {LONGEST}"
        )
    return encoded


def _pack(header: bytes, arrays: Mapping[str, Array]) -> Iterator[bytes | memoryview]:
    # Arrays begin at a multiple of 8 bytes, to be used in place.
    padding = -len(header) % LENGTH.size
    yield LENGTH.pack(len(header) + padding) + header + b" " * padding
    yield from map(to_bytes, arrays.values())
