"""What stands in for CuPy in tests has nothing that CuPy lacks; needs CuPy, but no GPU.

The device for CUDA is tested on the double alone where there is no GPU: a name or a parameter that
only the double has would go unnoticed until there is one.
"""

from __future__ import annotations

import inspect
import re
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from types import SimpleNamespace
from typing import Any, NamedTuple

import cupy_double
import fake_arrays
import numpy as np
import pytest
from cupy_double import CupyDouble
from fake_cuda_errors import CUDADriverError, CUDARuntimeError
from fake_driver import FakeDriver
from onnx_suite import suite
from plait.devices.cuda.arrays import CupyArrays

from .rig import Rig

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    cupy = pytest.importorskip("cupy", reason="CuPy is not installed: pip install cupy-cuda13x")

OF_TESTS = {"device", "generating", "launch"}
"""Methods of the double that are there for tests."""
CLASSES = {
    "cuda.Device": (cupy_double.Device, cupy.cuda.Device),
    "cuda.Event": (cupy_double.Event, cupy.cuda.Event),
    "cuda.Graph": (cupy_double.Graph, cupy.cuda.graph.Graph),
    "cuda.Memory": (cupy_double.Memory, cupy.cuda.Memory),
    "cuda.MemoryPointer": (cupy_double.MemoryPointer, cupy.cuda.MemoryPointer),
    "cuda.Stream": (cupy_double.Stream, cupy.cuda.Stream),
    "cuda.function.Function": (cupy_double.Module.get_function, cupy.cuda.function.Function),
    "cuda.function.Module": (cupy_double.Module, cupy.cuda.function.Module),
    "ndarray": (fake_arrays.FakeArray, cupy.ndarray),
}
ATTRIBUTES = {
    "cuda.Device": {"compute_capability", "id"},
    "cuda.Memory": {"ptr"},
    "cuda.MemoryPointer": {"mem", "ptr"},
    "cuda.function.Function": {"ptr"},
    "ndarray": {"data", "device", "dtype", "nbytes", "shape", "strides"},
}
"""What the device reads of objects that it has made."""


class Taken(NamedTuple):
    """How a function is called: its parameters by name, and which of them must be given."""

    names: tuple[str, ...]
    required: int
    is_open: bool

    @property
    def most(self) -> float:
        return float("inf") if self.is_open else len(self.names)


def taken(function: Any) -> Taken:
    """Return what a function takes, of a compiled one by the first line of its documentation."""
    try:
        found = list(inspect.signature(function).parameters.values())
    except ValueError:
        return _documented(function)
    kinds = [one.kind for one in found]
    plain = [one for one in found if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)]
    required = [one.name for one in plain if one.default is one.empty and one.name != "self"]
    names = tuple(one.name for one in plain if one.name != "self")
    return Taken(names, len(required), inspect.Parameter.VAR_POSITIONAL in kinds)


def _documented(function: Any) -> Taken:
    match = re.search(r"\w+\((.*?)\)( ->|\n|$)", function.__doc__ or "")
    assert match is not None, f"{function} does not say what it takes"
    listed = [each.strip() for each in match[1].split(",")]
    listed = [each for each in listed if each and each not in ("self", "/")]
    names = tuple(re.split(r"[ =]", re.sub(r"\s*=.*", "", each))[-1] for each in listed)
    required = sum("=" not in each for each in listed)
    return Taken(names, required, any(each.startswith("*") for each in listed))


def check_takes(name: str, fake: Any, real: Any) -> None:
    """Check that whatever the double takes, CuPy does."""
    mine, its = taken(fake), taken(real)
    assert mine.required >= its.required, f"{name} needs {its.names}"
    assert len(mine.names) <= its.most, f"{name} takes {its.names} only"
    optional = set(mine.names[mine.required :])
    assert optional <= set(its.names) or its.is_open, f"{name} takes {its.names}"


def functions(namespace: Any, prefix: str = "cuda") -> Iterator[tuple[str, Any]]:
    """Yield what the double offers of `cupy.cuda`, by name."""
    for name, value in vars(namespace).items():
        path = f"{prefix}.{name}"
        if isinstance(value, SimpleNamespace):
            yield from functions(value, path)
        elif isinstance(value, FakeDriver):
            yield f"{path}.launchKernel", value.launchKernel
            yield f"{path}.CUDADriverError", value.CUDADriverError
        else:
            yield path, value


def real(path: str) -> Any:
    found = cupy
    for name in path.split("."):
        found = getattr(found, name)
    return found


@pytest.mark.parametrize("path", dict(functions(CupyDouble().cuda)))
def test_a_function_takes_what_the_double_takes(path: str) -> None:
    fake = dict(functions(CupyDouble().cuda))[path]
    if isinstance(fake, type) and issubclass(fake, Exception):
        assert issubclass(real(path), Exception)
    else:
        check_takes(path, fake, real(path))


@pytest.mark.parametrize("path", CLASSES)
def test_an_object_has_what_the_doubles_has(path: str) -> None:
    fake, its = CLASSES[path]
    public = {name for name in vars(fake) if not name.startswith("_")} if isinstance(fake, type) else set()
    assert sorted(name for name in public | ATTRIBUTES.get(path, set()) if not hasattr(its, name)) == []
    for name in public:
        if inspect.isfunction(vars(fake)[name]):
            check_takes(f"{path}.{name}", getattr(fake, name), getattr(its, name))
