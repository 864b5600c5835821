"""ONNX tensors as numpy arrays: in the file, in typed fields, or in a file beside the model.

Bytes are never trusted to be as many as the dimensions say, and data beside the model is only
looked for in the model's own folder.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ...values.dtypes import EXTENSIONS, TEXT, dtype_of, name_of
from ...values.errors import ParseError
from ...values.tensor import Array
from ..container import freeze_array
from ..files import read_file

ELEMENT_TYPES: Mapping[int, str] = {
    1: "float32",
    2: "uint8",
    3: "int8",
    4: "uint16",
    5: "int16",
    6: "int32",
    7: "int64",
    9: "bool",
    10: "float16",
    11: "float64",
    12: "uint32",
    13: "uint64",
    14: "complex64",
    15: "complex128",
    16: "bfloat16",
    17: "float8_e4m3fn",
    18: "float8_e4m3fnuz",
    19: "float8_e5m2",
    20: "float8_e5m2fnuz",
}
"""The dtype of each element type of ONNX (TensorProto.DataType) that arrays can have."""

STRING = 8
"""The element type of text, which constants are not: see `text_in`."""

OF_4_BITS: Mapping[int, str] = {21: "uint8", 22: "int8"}
"""The dtypes that hold elements of UINT4 and INT4, of which a file has two in a byte."""

_FIELDS: Mapping[str, tuple[str, str]] = {
    "float32": ("float_data", "float32"),
    "complex64": ("float_data", "float32"),
    "float64": ("double_data", "float64"),
    "complex128": ("double_data", "float64"),
    "int64": ("int64_data", "int64"),
    "uint32": ("uint64_data", "uint64"),
    "uint64": ("uint64_data", "uint64"),
}
"""Field and dtype in which elements are listed; all others are in int32_data."""

_EXTERNAL = 1
EXPORT = "export the model again: the file is damaged"


def text(value: str | bytes) -> str:
    """Return the string field `value` as text: protobuf gives bytes where it is not UTF-8."""
    return value if isinstance(value, str) else value.decode(errors="backslashreplace")


def read_dtype_name(element_type: int, at: str) -> str:
    if element_type not in ELEMENT_TYPES:
        raise ParseError(
            f"elements of type {_name_type(element_type)} are not supported",
            at=at,
            fix=f"convert them to one of {', '.join(ELEMENT_TYPES.values())}",
        )
    return ELEMENT_TYPES[element_type]


def read_spec_dtype(element_type: int, at: str) -> str:
    """Return the dtype of `element_type`, a number or text; errors name the place `at`."""
    return name_of(TEXT) if element_type == STRING else read_dtype_name(element_type, at)


class TensorReader:
    """Reads the tensors of one model.

    Data beside the model, which is at `path`, is confined to its folder; a model that is `alone`
    has none.
    """

    def __init__(self, path: Path, *, alone: bool = False) -> None:
        self._path, self._alone = path, alone
        self._read: dict[Path, memoryview] = {}

    def read(self, tensor: Any, subject: str, *, unpacks: bool = False) -> Array:
        """Return the TensorProto `tensor` as a read-only array; a view where the bytes allow.

        With `unpacks` integers of 4 bits are taken, and get a byte each. Raises ParseError, which
        names `subject`, if type, data or dimensions are wrong.
        """
        at, shape = f"{subject}, {self._path}", tuple(tensor.dims)
        if unpacks and tensor.data_type in OF_4_BITS:
            packed = self._array(tensor, np.dtype(np.uint8), (-(-math.prod(shape) // 2),), at)
            made = _unpack(packed, OF_4_BITS[tensor.data_type], shape, at)
            return freeze_array(made, at, EXPORT)
        dtype = dtype_of(read_dtype_name(tensor.data_type, at)).newbyteorder("<")
        return freeze_array(self._array(tensor, dtype, shape, at), at, EXPORT)

    def _array(self, tensor: Any, dtype: np.dtype[Any], shape: tuple[int, ...], at: str) -> Array:
        if any(dim < 0 for dim in tensor.dims) or tensor.HasField("segment"):
            raise ParseError(f"a tensor cannot have the shape {list(shape)}", at=at, fix=EXPORT)
        if tensor.data_location == _EXTERNAL:
            return self._external(tensor, dtype, shape, at)
        if tensor.HasField("raw_data"):
            return _view_shape(tensor.raw_data, 0, dtype, shape, at)
        return _read_listed(tensor, dtype, shape, at)

    def _external(
        self, tensor: Any, dtype: np.dtype[Any], shape: tuple[int, ...], at: str
    ) -> Array:
        entries = {text(entry.key): text(entry.value) for entry in tensor.external_data}
        try:
            offset = int(entries.get("offset") or 0)
            length = int(entries.get("length") or math.prod(shape) * dtype.itemsize)
        except ValueError as error:
            raise ParseError(f"external data: {error}", at=at, fix=EXPORT) from error
        if length != math.prod(shape) * dtype.itemsize:
            raise ParseError(
                f"{length} bytes of external data cannot be {dtype.name}{list(shape)}",
                at=at,
                fix=EXPORT,
            )
        if length == 0:
            return _view_shape(b"", 0, dtype, shape, at)
        # Only now is a file opened: a length that cannot be was refused before.
        data = self._beside(entries.get("location", ""), at)
        return _view_shape(data, offset, dtype, shape, at, exactly=False)

    def _beside(self, location: str, at: str) -> memoryview:
        """Return the bytes of the file `location` beside the model, once; errors name it `at`."""
        if self._alone:
            raise ParseError(
                f"the data is beside the model, in {location!r}",
                at=at,
                fix="pass the path of the model, or save it as one file",
            )
        path = self._confined(location, at)
        if path not in self._read:
            try:
                self._read[path] = read_file(path)
            except ParseError as error:
                raise ParseError(
                    f"cannot read the external data {location!r}: {error.what}",
                    at=at,
                    fix="put the file beside the model",
                ) from error
        return self._read[path]

    def _confined(self, location: str, at: str) -> Path:
        """Find the file `location` beside the model, or its link's target; errors name it `at`."""
        try:
            relative = Path(location)
            inside = bool(location) and not relative.is_absolute() and ".." not in relative.parts
            path = (self._path.parent / relative).resolve(strict=False)
            folders = (self._path.parent.resolve(), self._path.resolve().parent)
        except (OSError, ValueError, RuntimeError):  # a null byte, a loop of links
            inside = False
        if not inside or not any(path.is_relative_to(folder) for folder in folders):
            raise ParseError(
                f"the external data {location!r} is outside the model's folder",
                at=at,
                fix="put the file beside the model and refer to it by its name",
            )
        return path


def _view_shape(
    data: bytes | memoryview,
    offset: int,
    dtype: np.dtype[Any],
    shape: tuple[int, ...],
    at: str,
    *,
    exactly: bool = True,
) -> Array:
    nbytes = math.prod(shape) * dtype.itemsize
    fits = nbytes == len(data) if exactly else 0 <= offset <= len(data) - nbytes
    if not fits:
        raise ParseError(
            f"{dtype.name}{list(shape)} needs {nbytes} bytes at offset {offset}, "
            f"there are {len(data)}",
            at=at,
            fix=EXPORT,
        )
    # From a memory view: it keeps the bytes from being moved or unmapped under the array.
    part = memoryview(data)[offset : offset + nbytes]
    flat = np.frombuffer(part, np.uint8) if nbytes else np.empty(0, np.uint8)
    array = to_shape(flat.view(dtype), shape, at)
    return array if array.flags.aligned else array.copy()


def _read_listed(tensor: Any, dtype: np.dtype[Any], shape: tuple[int, ...], at: str) -> Array:
    field, entry_dtype = _FIELDS.get(dtype.name, ("int32_data", "int32"))
    entries = np.array(getattr(tensor, field), entry_dtype)
    if entries.size != math.prod(shape) * (2 if dtype.kind == "c" else 1):
        raise ParseError(
            f"{dtype.name}{list(shape)} has {entries.size} entries in {field}", at=at, fix=EXPORT
        )
    if dtype.kind == "c":  # real and imaginary parts take turns
        flat = entries.view(dtype.name)
    elif dtype.name == "float16" or dtype.name in EXTENSIONS:  # bits, in integers of their own
        flat = entries.astype(f"uint{8 * dtype.itemsize}").view(dtype.name)
    else:
        flat = entries.astype(dtype.name)
    return to_shape(flat, shape, at)


def _unpack(packed: Array, dtype: str, shape: tuple[int, ...], at: str) -> Array:
    """Return `packed` pairs of 4 bits, lower first, as `dtype` in `shape`; errors name it `at`."""
    halves = np.stack([packed & 15, packed >> 4], -1).ravel()[: math.prod(shape)].view(dtype)
    # The sign is the highest of four bits: it is moved to that of eight and back.
    return to_shape(halves << 4 >> 4 if dtype == "int8" else halves, shape, at)


def to_shape(flat: Array, shape: tuple[int, ...], at: str) -> Array:
    """Return `flat` in `shape`, which numpy may refuse, such as [0, 2**63]; errors name it `at`."""
    try:
        return flat.reshape(shape)
    except ValueError as error:
        raise ParseError(f"{flat.dtype.name}{list(shape)}: {error}", at=at, fix=EXPORT) from error


def _name_type(element_type: int) -> str:
    import onnx

    names = {number: name for name, number in onnx.TensorProto.DataType.items()}
    return str(names.get(element_type, element_type))
