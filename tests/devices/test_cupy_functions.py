"""CuPy has the functions that kernels for any array module call; needs CuPy, but no GPU.

On the double numpy stands in for CuPy, which has fewer names, keywords and dtypes.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterator
from operator import attrgetter
from typing import Any, NamedTuple, TypeAlias

import cupy_double
import fake_arrays
import numpy as np
import pytest
from cupy_double import CupyDouble
from fake_arrays import FakeArray
from generated_cases import all_cases
from onnx_suite import suite
from plait.graph.core.ir import Graph
from signatures import taken

from .rig import Rig

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # CuPy's, about what it finds on the machine
    cupy = pytest.importorskip("cupy", reason="CuPy is not installed: pip install '.[cuda]'")

MOST_ELEMENTS = 3000
"""A case of ONNX's that is larger tells no more."""

BFLOAT16 = "E"
"""CuPy's letter for a dtype that numpy does not have."""
Kind: TypeAlias = "np.dtype[Any] | type"
"""The dtype of an array, or the type of a number of Python's."""


class Call(NamedTuple):
    """How something was called: with how many values, and with which keywords."""

    name: str
    inputs: int
    keywords: frozenset[str]


class Loop(NamedTuple):
    """What a ufunc was to compute: from what, into what, by which casts, and as what if said."""

    name: str
    inputs: tuple[Kind, ...]
    out: np.dtype[Any] | None
    casting: Any
    dtype: np.dtype[Any] | None


class Asked:
    """What kernels asked a module, arrays and ufuncs for."""

    def __init__(self) -> None:
        self.of_module: set[str] = set()
        self.of_arrays: set[str] = set()
        self.calls: set[Call] = set()
        self.calls_of_arrays: set[Call] = set()
        self.loops: set[Loop] = set()

    def borrow(self, gpu: Any, owner: Any, name: str, settle: Any) -> Any:
        """Note what the double is asked for, then give it."""
        value = borrow(gpu, owner, name, settle)
        is_array = isinstance(owner, np.ndarray)
        module = getattr(owner, "__name__", "").removeprefix("numpy").removeprefix(".")
        path = f"{module}.{name}" if module else name
        (self.of_arrays if is_array else self.of_module).add(path)
        calls = self.calls_of_arrays if is_array else self.calls

        def called(*inputs: Any, **keywords: Any) -> Any:
            calls.add(Call(path, len(inputs), frozenset(keywords)))
            return value(*inputs, **keywords)

        return called if inspect.isfunction(value) else value

    def function(self, gpu: Any, function: Any, name: str, settle: Any) -> Any:
        """Note what a ufunc is called with, by name or by an operator."""
        value = call_of(gpu, function, name, settle)
        ufunc = function if isinstance(function, np.ufunc) else getattr(function, "__self__", None)

        def called(*inputs: Any, **keywords: Any) -> Any:
            if isinstance(ufunc, np.ufunc) and ufunc.signature is None:
                given, rest = inputs[: ufunc.nin], inputs[ufunc.nin :]
                out = rest[0] if rest else keywords.get("out")
                dtype = keywords.get("dtype")
                into = out._cells.dtype if isinstance(out, FakeArray) else None
                as_what = None if dtype is None else np.dtype(dtype)
                casting = keywords.get("casting", "same_kind")
                self.loops.add(
                    Loop(ufunc.__name__, tuple(map(kind, given)), into, casting, as_what)
                )
            return value(*inputs, **keywords)

        return called


borrow, call_of = fake_arrays.borrow, fake_arrays._function


def kind(value: Any) -> Kind:
    cells = value._cells if isinstance(value, FakeArray) else value
    return np.dtype(cells.dtype) if hasattr(cells, "dtype") else type(cells)


@pytest.fixture(scope="module")
def asked() -> Asked:
    """Run a case of each operator by CuPy's kernels, on the double; return what these asked for."""
    found = Asked()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fake_arrays, "borrow", found.borrow)
        patch.setattr(cupy_double, "borrow", found.borrow)
        patch.setattr(fake_arrays, "_function", found.function)
        for graph, inputs in cases():
            with Rig(CupyDouble().device(), graph) as rig:
                rig.run(inputs)
    return found


def cases() -> Iterator[tuple[Graph, Any]]:
    """Yield graphs that CuPy's kernels run, and inputs."""
    device = CupyDouble().device()
    known = [make() for make in all_cases().values()]
    for several in suite().nodes.values():
        known += [(case.graph, case.inputs) for case in several]
    for graph, inputs in known:
        is_small = all(spec.size <= MOST_ELEMENTS for spec in graph.tensors.values())
        if is_small and all(device.supports(node, graph.call(node)).ok for node in graph.nodes):
            yield graph, {name: inputs[name] for name in graph.inputs}


def has(owner: Any, path: str) -> bool:
    try:
        attrgetter(path)(owner)
    except AttributeError:
        return False
    return True


def test_cupy_has_the_functions_that_kernels_call(asked: Asked) -> None:
    assert len(asked.of_module) > 50
    assert [name for name in asked.of_module if not has(cupy, name)] == []
    assert [name for name in asked.of_arrays if not has(cupy.ndarray, name)] == []


def test_they_take_what_kernels_give_them(asked: Asked) -> None:
    for calls, owner in ((asked.calls, cupy), (asked.calls_of_arrays, cupy.ndarray)):
        for call in calls:
            check_call(call, attrgetter(call.name)(owner))


def check_call(call: Call, function: Any) -> None:
    if isinstance(function, cupy.ufunc):
        assert call.inputs <= function.nargs, call
        assert call.keywords <= fake_arrays.UFUNC_KEYWORDS, call
        return
    its = taken(function)
    assert its.is_open or call.inputs + len(call.keywords) <= len(its.names), (call, its)
    assert its.is_open or call.keywords <= set(its.names), (call, its)


def test_ufuncs_compute_with_the_dtypes_that_kernels_give_them(asked: Asked) -> None:
    assert len(asked.loops) > 100
    assert sorted(filter(None, map(missing, asked.loops))) == []


def missing(asked: Loop) -> str | None:
    """Return what CuPy would say to such a call, None if it computes it.

    As its ufuncs do: the first loop that all inputs may be cast to, unless the dtype is given.
    """
    ufunc = getattr(cupy, asked.name)
    known = [types for types in ufunc.types if BFLOAT16 not in types]
    for types in known:
        given, _, gives = types.partition("->")
        if asked.dtype is not None:
            fits = np.dtype(gives[0]) == asked.dtype
        else:
            fits = all(map(casts, asked.inputs, given))
        if fits:
            if asked.out is None or np.can_cast(np.dtype(gives[0]), asked.out, asked.casting):
                return None
            return f"{asked}: {gives[0]} is not cast to {asked.out}"
    return f"{asked}: there are only {', '.join(known)}"


def casts(given: Kind, char: str) -> bool:
    """Say whether something may be an input of a loop; numbers of Python's adapt."""
    if isinstance(given, np.dtype):
        return np.can_cast(given, np.dtype(char))
    return np.dtype(char).kind in {bool: "biuf", int: "iuf", float: "f"}[given]


def test_the_double_lacks_what_cupy_lacks() -> None:
    assert [name for name in fake_arrays.LACKING if hasattr(cupy, name)] == []


@pytest.mark.parametrize("name", fake_arrays.KEYWORDS)
def test_functions_have_the_keywords_that_the_double_takes(name: str) -> None:
    its = taken(getattr(cupy, name))
    assert its.is_open or fake_arrays.KEYWORDS[name] <= set(its.names)
