"""Operators that workers get by value, as no module defines them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import plait as pl
import pytest
from plait.devices.worker.modules import Source, import_sources, list_node_sources
from plait.graph.core.operator import is_operator, unregister_operator

from .test_worker_scripts import python

CELLS = """
import numpy as np
import plait as pl

factor = 3

def helper(x):
    return x * np.float32(factor)

def shown(*devices):
    b = pl.GraphBuilder()
    b.output("y", b.op("notebook.scale", b.input("x", "float32", (2,)), by=5))
    return pl.run(b.build(), {"x": np.ones(2, "float32")}, devices=list(devices))["y"]

@pl.operator(by_value=True, name="notebook.scale")
def scale(x, *, by: float = 2.0):
    return helper(x) * np.float32(by)

print(shown("worker:0"))

@pl.operator(by_value=True, name="notebook.scale")  # the cell runs again, changed
def scale(x, *, by: float = 2.0):
    return helper(x) + np.float32(by)

print(shown("worker:0"))
"""


@pytest.fixture
def doubling() -> Iterator[pl.Graph]:
    """Return the graph of a function that is defined here, inside of another one."""
    two = np.float32(2)

    @pl.operator(by_value=True, name="local.double")
    def double(x: Any) -> Any:
        return x * two

    b = pl.GraphBuilder("double")
    b.output("y", b.call(double, b.input("x", "float32", (3,))))
    yield b.build()
    if is_operator("local.double"):
        unregister_operator("local.double")


def test_functions_of_an_interactive_session_run_in_a_worker_and_may_be_changed() -> None:
    done = python("-c", CELLS)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["[15. 15.]", "[8. 8.]"]


def test_a_function_inside_a_function_is_sent_with_what_it_refers_to(doubling: pl.Graph) -> None:
    given = np.arange(3, dtype="float32")
    found = pl.run(doubling, {"x": given}, devices=["worker:0"])["y"]
    np.testing.assert_array_equal(found, given * 2)


def test_what_was_sent_is_defined_again_and_not_twice(doubling: pl.Graph) -> None:
    (source,) = list_node_sources(doubling.nodes[0])
    first = doubling.nodes[0].operator
    import_sources([source])
    assert doubling.nodes[0].operator is not first
    assert doubling.nodes[0].operator.function is not None
    assert doubling.nodes[0].operator.function(np.float32(4)) == 8


def test_a_function_that_cannot_be_taken_is_a_device_error() -> None:
    with pytest.raises(pl.DeviceError, match="cannot take the function by value") as caught:
        import_sources([Source("nobody.s", "", None, "", b"no pickle")])
    assert "cloudpickle too" in str(caught.value)


def test_a_function_that_cannot_be_pickled_says_so() -> None:
    lock = sys._getframe()  # a frame is of this process

    @pl.operator(by_value=True, name="local.bound")
    def bound(x: Any) -> Any:
        return (x, lock)[0]

    b = pl.GraphBuilder("bound")
    b.output("y", b.call(bound, b.input("x", "float32", (3,))))
    try:
        with pytest.raises(pl.PlaitError, match=r"by value: .*bound uses 'lock', a frame: "):
            pl.run(b.build(), {"x": np.ones(3, "float32")}, devices=["worker:0"])
    finally:
        unregister_operator("local.bound")


def test_without_cloudpickle_the_error_names_the_extra(
    doubling: pl.Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    with pytest.raises(pl.PlaitError, match="which cloudpickle does") as caught:
        pl.run(doubling, {"x": np.ones(3, "float32")}, devices=["worker:0"])
    assert "[notebook]" in str(caught.value)
