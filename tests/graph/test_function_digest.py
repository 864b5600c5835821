"""Digests of functions and values: the same for the same, others for others."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from functools import lru_cache, partial, wraps
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from patience import WAIT_S
from plait.graph.functions.function_digest import hash_function, hash_value

SCALE = 2.0


def call_other(x: float) -> float:
    return scale(x) + 1


def scale(x: float) -> float:
    return x * SCALE


def make(offset: Any, default: int = 0) -> Callable[..., Any]:
    def add(x: Any, more: int = default) -> Any:
        return x + offset + more

    return add


def test_the_code_counts_and_neither_place_nor_comments() -> None:
    a, b = dict[str, Any](), dict[str, Any]()
    exec("def f(x):\n    return x + 1", a)
    exec("\n\ndef f(x):\n    # the next one\n    return x + 1", b)
    assert hash_function(a["f"]) == hash_function(b["f"])
    for other in ("x + 2", "x - 1", "(x, 1)", "[y + 1 for y in x]"):
        exec(f"def f(x):\n    return {other}", b)
        assert hash_function(a["f"]) != hash_function(b["f"])
    one, two = (lambda x: x + 1), (lambda x: x + 2)
    assert hash_function(one) != hash_function(two)


def test_functions_that_are_called_count(monkeypatch: pytest.MonkeyPatch) -> None:
    before = hash_function(call_other)
    monkeypatch.setitem(globals(), "scale", lambda x: x)
    globals()["scale"].__module__ = __name__
    assert hash_function(call_other) != before


def test_values_count_if_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    values = [1, 1.0, True, "1", b"1", None, (1,), [1], {1: 2}, {1}, np.int64(1), np.ones(1), scale]
    assert len({hash_function(make(one)) for one in values}) == 1
    assert len({hash_function(make(one), values=True) for one in values}) == len(values)
    assert hash_function(make(0, 1), values=True) != hash_function(make(0, 2), values=True)
    double = partial(scale, 2), partial(scale, 3)
    assert hash_function(double[0]) == hash_function(double[1])
    assert hash_function(double[0], values=True) != hash_function(double[1], values=True)
    before = hash_function(call_other, values=True)
    monkeypatch.setitem(globals(), "SCALE", 3.0)
    assert hash_function(call_other, values=True) != before


def repeat(times: int) -> Callable[..., Any]:
    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def call(x: Any) -> Any:
            for _ in range(times):
                x = function(x)
            return x if x else call(1)

        return call

    return decorate


def test_decorators_count() -> None:
    twice, thrice = repeat(2)(scale), repeat(3)(scale)
    assert len({hash_function(one) for one in (twice, scale)}) == 2
    assert len({hash_function(one, values=True) for one in (twice, thrice, scale)}) == 3
    assert hash_function(twice, values=True) == hash_function(repeat(2)(scale), values=True)
    found = list[str]()
    for body in ("x + 1", "x + 1", "x + 2"):
        variables = dict[str, Any]()
        exec(f"def f(x):\n    return {body}", variables)
        found.append(hash_function(lru_cache(variables["f"])))
    assert found[0] == found[1] != found[2]


def test_decorated_functions_that_are_called_count() -> None:
    found = list[str]()
    for body in ("x + 1", "x + 1", "x + 2"):
        variables: dict[str, Any] = {"lru_cache": lru_cache, "__name__": "somewhere"}
        exec(f"@lru_cache\ndef g(x):\n    return {body}\ndef f(x):\n    return g(x)", variables)
        found.append(hash_function(variables["f"], values=True))
    assert found[0] == found[1] != found[2]


def test_attributes_are_not_globals(monkeypatch: pytest.MonkeyPatch) -> None:
    before = hash_function(lambda x: x.SCALE, values=True)
    monkeypatch.setitem(globals(), "SCALE", 3.0)
    assert hash_function(lambda x: x.SCALE, values=True) == before


def test_objects_without_content_count_by_type() -> None:
    locked = [hash_function(make(sys.stdout), values=True) for _ in range(2)]
    assert locked[0] == locked[1] != hash_function(make(1), values=True)
    with pytest.raises(TypeError):
        hash_value(sys.stdout)


def test_functions_that_call_themselves_end() -> None:
    def count(n: int) -> int:
        return n and count(n - 1)

    assert hash_function(count, values=True) == hash_function(count, values=True)


def test_arrays_count_by_dtype_shape_and_content() -> None:
    arrays = [
        np.zeros(4, "float32"),
        np.zeros(4, "int32"),
        np.zeros((2, 2), "float32"),
        np.array([0, 0, 0, 1], "float32"),
        np.array([-0.0, 0, 0, 0], "float32"),
        np.array(["a", "b"]),
        np.array(["a", "b"], object),
    ]
    assert len({hash_value(one) for one in arrays}) == len(arrays)
    square = np.arange(6).reshape(2, 3)
    assert hash_value(square.T.copy()) == hash_value(square.T)


SCRIPT = """
import test_function_digest as cases
from plait.graph.functions.function_digest import hash_function, hash_value

offset = {"b": {"x", "y", "z"}, "a": frozenset("pqr")}
print(hash_function(cases.make(offset), values=True), hash_value(offset).hex())
"""


def test_digests_are_the_same_in_every_process() -> None:
    found, folder = set(), str(Path(__file__).parent)
    for seed in ("1", "2"):
        ran = subprocess.run(
            [sys.executable, "-c", SCRIPT],
            env={"PYTHONPATH": ":".join([*sys.path, folder]), "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            timeout=WAIT_S,
            check=True,
        )
        found.add(ran.stdout)
    assert len(found) == 1
