"""Arrays on the fake GPU, and numpy's functions narrowed to what CuPy takes.

The host knows an array's shape and can make views, but not what it holds. Within a kernel that the
fake GPU runs, numpy computes; outside, as on a real GPU, the stream is let finish first.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
from fake_gpu import FakeGpu

# Names of numpy that CuPy 14 lacks, among those that a kernel might want.
LACKING = frozenset(
    {
        "block",
        "ctypeslib",
        "emath",
        "errstate",
        "frompyfunc",
        "geomspace",
        "insert",
        "longdouble",
        "ma",
        "matvec",
        "nanpercentile",
        "ndenumerate",
        "nditer",
        "nested_iters",
        "seterr",
        "spacing",
        "unstack",
        "vecdot",
        "vecmat",
    }
)
UFUNC_KEYWORDS = {"out", "dtype", "casting"}
# The keywords that CuPy 14 takes, of functions for which they are fewer than numpy's.
KEYWORDS = {
    "take": {"axis", "out"},
    "where": set[str](),
    "tensordot": {"axes"},
    "clip": {"a_min", "a_max", "out"},
    "max": {"axis", "out", "keepdims"},
    "min": {"axis", "out", "keepdims"},
    "amax": {"axis", "out", "keepdims"},
    "amin": {"axis", "out", "keepdims"},
    "sum": {"axis", "dtype", "out", "keepdims"},
    "prod": {"axis", "dtype", "out", "keepdims"},
    "mean": {"axis", "dtype", "out", "keepdims"},
    "argmax": {"axis", "dtype", "out", "keepdims"},
    "argmin": {"axis", "dtype", "out", "keepdims"},
    "var": {"axis", "dtype", "out", "ddof", "keepdims"},
    "einsum": {"dtype", "optimize"},
    "matmul": {"axes", "axis", "keepdims", "casting", "dtype", "signature", "order", "out"},
}


class FakeArray(np.lib.mixins.NDArrayOperatorsMixin):
    """An array on the fake GPU: its shape is known to the host, its contents are not."""

    def __init__(
        self,
        gpu: FakeGpu,
        cells: np.ndarray[Any, Any],
        settle: Callable[[], None],
        memptr: Any = None,
    ) -> None:
        self._gpu = gpu
        self._cells = cells
        self._settle = settle
        self.data = memptr

    @property
    def device(self) -> Any:
        return SimpleNamespace(id=self.data.mem.device)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name in ("ctypes", "base"):
            raise AttributeError(f"'cupy.ndarray' has no attribute {name!r} here")
        return borrow(self._gpu, self._cells, name, self._settle)

    def __getitem__(self, key: Any) -> Any:
        self._settle()
        return _wrap(self._gpu, self._cells[_unwrap(key)], self._settle)

    def __setitem__(self, key: Any, value: Any) -> None:
        self._settle()
        self._cells[_unwrap(key)] = _unwrap(value)

    def __len__(self) -> int:
        return len(self._cells)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **keywords: Any) -> Any:
        call = _function(self._gpu, getattr(ufunc, method), ufunc.__name__, self._settle)
        if method == "__call__" and "out" in keywords:
            (keywords["out"],) = keywords["out"]
        return call(*inputs, **keywords)

    def __dlpack_device__(self) -> tuple[int, int]:
        # What was computed lies on the device that was current.
        return 2, self._gpu.current_device() if self.data is None else self.data.mem.device

    def __dlpack__(self, **_: Any) -> Any:
        raise NotImplementedError("arrays of the double are handed over as they are")

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise TypeError("Implicit conversion to a NumPy array is not allowed")

    def _read(self) -> np.ndarray[Any, Any]:
        """Return the contents, as an explicit transfer would: never inside a plan."""
        assert not self._gpu.is_executing, "a kernel reads its arrays on the host"
        self._settle()
        return self._cells.copy()

    def tolist(self) -> Any:
        return self._read().tolist()

    def item(self) -> Any:
        return self._read().item()

    def __bool__(self) -> bool:
        return bool(self._read())

    def __int__(self) -> int:
        return int(self._read())

    def __float__(self) -> float:
        return float(self._read())

    def __index__(self) -> int:
        return int(self._read())


class _Namespace:
    """A module of numpy, such as `lib`, made to work on fake arrays."""

    def __init__(self, gpu: FakeGpu, module: ModuleType, settle: Callable[[], None]) -> None:
        self._borrow = partial(borrow, gpu, module, settle=settle)

    def __getattr__(self, name: str) -> Any:
        return self._borrow(name)


def borrow(gpu: FakeGpu, owner: Any, name: str, settle: Callable[[], None]) -> Any:
    """Return an attribute of numpy or of an array, made to work on fake arrays."""
    found = getattr(owner, name)
    if isinstance(found, type) or not callable(found):
        if isinstance(found, ModuleType):
            return _Namespace(gpu, found, settle)
        return _wrap(gpu, found, settle) if isinstance(found, np.ndarray) else found
    return _function(gpu, found, name, settle)


def _function(
    gpu: FakeGpu, function: Any, name: str, settle: Callable[[], None]
) -> Callable[..., Any]:
    keywords_taken = UFUNC_KEYWORDS if isinstance(function, np.ufunc) else None
    keywords_taken = KEYWORDS.get(name, keywords_taken)

    def call(*inputs: Any, **keywords: Any) -> Any:
        unknown = set(keywords) - keywords_taken if keywords_taken is not None else set()
        if unknown:
            raise TypeError(f"cupy.{name} takes no {', '.join(sorted(unknown))}")
        if name == "matmul" and len(inputs) > 2:
            raise TypeError("cupy.matmul takes no out by position")
        _refuse_host_arrays(gpu, name, inputs)
        _refuse_other_devices(gpu, (*inputs, *keywords.values()))
        settle()
        return _wrap(gpu, function(*_unwrap(inputs), **_unwrap(keywords)), settle)

    return call


def _refuse_host_arrays(gpu: FakeGpu, name: str, inputs: tuple[Any, ...]) -> None:
    """Arrays of numpy are taken by few functions of CuPy, and by none without a copy."""
    if any(isinstance(value, np.ndarray) and value.ndim for value in inputs):
        if name not in ("array", "asarray", "ascontiguousarray"):
            raise TypeError(f"cupy.{name}: unsupported type {np.ndarray}")
        assert not gpu.is_executing, "a kernel copies from host memory"


def _refuse_other_devices(gpu: FakeGpu, values: tuple[Any, ...]) -> None:
    """A kernel is given what lies on its own device; CuPy would read others through the host."""
    for value in values:
        if isinstance(value, FakeArray) and value.data is not None:
            device = value.data.mem.device
            assert gpu.executing_device in (None, device), f"what lies on device {device} is read"


def _unwrap(value: Any) -> Any:
    if isinstance(value, FakeArray):
        return value._cells
    if isinstance(value, tuple | list):
        return type(value)(map(_unwrap, value))
    if isinstance(value, dict):
        return {name: _unwrap(item) for name, item in value.items()}
    return value


def _wrap(gpu: FakeGpu, value: Any, settle: Callable[[], None]) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        return FakeArray(gpu, np.asarray(value), settle)
    if isinstance(value, tuple | list):  # numpy's own tuples are plain ones in CuPy
        plain = list if isinstance(value, list) else tuple
        return plain(_wrap(gpu, item, settle) for item in value)
    return value
