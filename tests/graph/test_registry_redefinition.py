"""A function that is defined again replaces what it registered before, and can be unregistered."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import plait as pl
import pytest
from plait.devices.formal.registry import definition, find_definition
from plait.devices.kernels.registry import find_kernel, kernel, list_kernels_for
from plait.graph.core.operator import find_operator
from plait.graph.decompositions.rules import decomposition, decompositions
from plait.graph.gradients.registry import find_rule, gradient

Register = Callable[[Any], Any]
REGISTERS: dict[str, Register] = {
    "operator": lambda f: pl.operator(pl.TensorSpec("float32", ()), name="again.op")(f),
    "kernel": lambda f: kernel("again.op")(f),
    "kernel with a condition": lambda f: kernel("again.op", when=bool)(f),
    "definition": lambda f: definition("again.op")(f),
    "gradient": lambda f: gradient("again.op")(f),
    "decomposition": lambda f: decomposition("again.op")(f),
}
FOUND: dict[str, Callable[[], list[Any]]] = {
    "operator": lambda: [find_operator("again.op").function],
    "kernel": lambda: [k.function for k in [find_kernel("again.op", "cpu")] if k],
    "kernel with a condition": lambda: [k.function for k in list_kernels_for("again.op", "cpu")],
    "definition": lambda: [d.function for d in [find_definition("again.op")] if d],
    "gradient": lambda: [rule for rule in [find_rule("again.op")] if rule],
    "decomposition": lambda: [one.write for one in decompositions().get("again.op", ())],
}


def make(name: str = "again") -> Callable[..., Any]:
    """Return a function that has the same name each time, as a cell of a notebook defines it."""
    scope: dict[str, Any] = {"__name__": "notebook"}
    exec(f"def {name}(x): return x", scope)
    function: Callable[..., Any] = scope[name]
    return function


@pytest.fixture(params=REGISTERS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_the_newest_function_of_a_name_counts_until_it_is_unregistered(kind: str) -> None:
    register, find = REGISTERS[kind], FOUND[kind]
    first = register(make())
    second = register(make())
    try:
        assert find() == [second]
        with pytest.raises(pl.GraphError, match="not registered"):
            pl.unregister(first)
    finally:
        pl.unregister(second)
    if kind != "operator":
        assert find() == []
        return
    with pytest.raises(pl.OperatorError):
        find()


@pytest.mark.parametrize("single", ["operator", "kernel", "definition", "gradient"])
def test_a_function_of_another_name_is_refused(single: str) -> None:
    first = REGISTERS[single](make())
    try:
        with pytest.raises(pl.GraphError):
            REGISTERS[single](make("other"))
    finally:
        pl.unregister(first)


CELL = """
@kernel("Relu", when=lambda call: call.spec(0).rank {condition})
def relu(xp, inputs, outputs, attributes):
    outputs[0].fill(7)
"""


def test_a_corrected_condition_of_a_kernel_counts() -> None:
    scope: dict[str, Any] = {"__name__": "notebook", "kernel": kernel}
    exec(CELL.format(condition="> 0"), scope)
    before = len(list_kernels_for("Relu", "cpu"))
    exec(CELL.format(condition="== 9"), scope)
    try:
        assert len(list_kernels_for("Relu", "cpu")) == before
        b = pl.GraphBuilder("relu")
        b.output("y", b.op("Relu", b.input("x", "float32", (2,))))
        found = pl.run(b.build(), {"x": np.array([-1, 1], "float32")}, devices="cpu")["y"]
        np.testing.assert_array_equal(found, [0, 1])
    finally:
        pl.unregister(scope["relu"])
