"""Operators that are classes: their hooks, and the states that their instances go through."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np
import plait as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from plait.graph.core.checks import Checks
from plait.graph.core.operator import Call, find_operator
from plait.graph.functions.operator_lifecycle import OperatorLifecycle, State
from plait.graph.functions.python import get_operator
from plait.graph.values.tensor import Array

SPEC = pl.TensorSpec("float32", (2,))
CALL = Call((SPEC,), (None,), {"step": 1})


class Counter:
    """Counts what happens to it."""

    happened: ClassVar[list[str]] = []

    def prepare(self, call: Call, check: Checks) -> None:
        self.happened.append("prepare")

    def open(self, inputs: Sequence[Array | None]) -> None:
        self.happened.append("open")

    def run(self, x: Array, *, step: int = 1) -> Array:
        self.happened.append("run")
        return x + np.float32(step)

    def close(self) -> None:
        self.happened.append("close")


pl.operator(name="test_life.Counter")(Counter)


@pytest.fixture(autouse=True)
def _nothing_has_happened() -> None:
    Counter.happened.clear()


def counter() -> OperatorLifecycle:
    return OperatorLifecycle(Counter, "test_life.Counter", "node 'c'")


ACTIONS: dict[str, Callable[[OperatorLifecycle], Any]] = {
    "prepare": lambda life: life.prepare(CALL),
    "open": lambda life: life.open(),
    "run": lambda life: life.run(np.zeros(2, np.float32)),
    "close": lambda life: life.close(),
}
FOLLOWING = {
    (State.MADE, "prepare"): State.CHECKED,
    (State.CHECKED, "open"): State.READY,
    (State.READY, "run"): State.READY,
    (State.READY, "close"): State.ENDED,
}


@given(st.lists(st.sampled_from(sorted(ACTIONS)), max_size=12))
def test_only_what_is_next_is_done_and_all_else_is_refused(actions: list[str]) -> None:
    Counter.happened.clear()
    life, done = counter(), []
    for action in actions:
        state = FOLLOWING.get((life.state, action))
        if state is None:
            before = life.state
            with pytest.raises(pl.OperatorError, match=f"cannot {action} when it is") as info:
                ACTIONS[action](life)
            assert (life.state, info.value.at) == (before, "node 'c'")
            assert info.value.fix is not None
        else:
            ACTIONS[action](life)
            done.append(action)
            assert life.state is state
    assert Counter.happened == done


def test_hooks_that_are_left_out_are_states_all_the_same() -> None:
    class Bare:
        def run(self, x: Array) -> Array:
            return x

    life = OperatorLifecycle(Bare, "Relu")
    with pytest.raises(pl.OperatorError, match="cannot run when it is made: it must be open"):
        life.run(np.zeros(1))
    assert life.prepare(CALL) is None
    life.open()
    life.run(np.zeros(1))
    life.close()
    assert life.state is State.ENDED


def test_what_fails_to_open_is_at_its_end() -> None:
    class Fails:
        def open(self, inputs: Sequence[Array | None]) -> None:
            raise OSError("no such file")

        def run(self, x: Array) -> Array:
            return x

    life = OperatorLifecycle(Fails, "Relu")
    life.prepare(CALL)
    with pytest.raises(OSError, match="no such file"):
        life.open()
    assert life.state is State.ENDED


def test_what_fails_to_run_may_run_again() -> None:
    life = counter()
    life.prepare(CALL)
    life.open()
    with pytest.raises(TypeError):
        life.run(np.zeros(1), pace=2)
    assert life.run(np.zeros(1, np.float32), step=2) == 2


def test_a_class_is_an_operator_whose_inputs_and_attributes_are_those_of_run() -> None:
    made = get_operator(Counter)
    assert made is find_operator("test_life.Counter")
    assert (made.inputs, made.outputs, made.function) == ("x", "y", Counter)
    assert made.attributes["step"].default == 1


def test_building_a_graph_prepares_and_opens_nothing() -> None:
    b = pl.GraphBuilder("g")
    b.output("y", b.call(Counter, b.input("x", "float32", ("n",)), step=3))
    assert b.build().tensors["y"] == pl.TensorSpec("float32", ("n",))
    assert set(Counter.happened) == {"prepare"}


@pytest.mark.usefixtures("forget_operators")
def test_prepare_may_say_what_comes_out() -> None:
    @pl.operator(name="test_life.Twice")
    class Twice:
        def prepare(self, call: Call, check: Checks) -> pl.TensorSpec:
            (n,) = call.spec(0).static_shape
            return pl.TensorSpec("int8", (2 * n,))

        def run(self, x: Array) -> Array:
            return np.zeros(2 * len(x), np.int8)

    b = pl.GraphBuilder("g")
    b.output("y", b.call(Twice, b.input("x", "float32", (3,))))
    assert b.build().tensors["y"] == pl.TensorSpec("int8", (6,))


@pytest.mark.usefixtures("forget_operators")
def test_a_check_that_fails_names_operator_node_argument_wanted_and_got() -> None:
    @pl.operator(name="test_life.Picky")
    class Picky:
        def prepare(self, call: Call, check: Checks) -> None:
            check.attribute("size").at_least(2)

        def run(self, x: Array, *, size: int) -> Array:
            return x

    b = pl.GraphBuilder("g")
    x = b.input("x", "float32", (2,))
    with pytest.raises(pl.OperatorError) as info:
        b.call(Picky, x, size=1, name="mine")
    assert info.value.what == "attribute 'size' of test_life.Picky must be ≥ 2, got 1"
    assert "node 'mine'" in str(info.value.at)
    b.output("y", b.op("Relu", x, name="mine"))
    assert len(b.build().nodes) == 1


@pytest.mark.usefixtures("forget_operators")
def test_whatever_prepare_raises_says_that_the_node_is_wrong() -> None:
    @pl.operator(name="test_life.Broken")
    class Broken:
        def prepare(self, call: Call, check: Checks) -> None:
            raise KeyError("size")

        def run(self, x: Array) -> Array:
            return x

    b = pl.GraphBuilder("g")
    with pytest.raises(pl.OperatorError, match=r"Broken\.prepare raised KeyError: 'size'") as info:
        b.call(Broken, b.input("x", "float32", (2,)), name="mine")
    assert "node 'mine'" in str(info.value.at)


class NoRun:
    pass


class NeedsArguments:
    def __init__(self, path: str) -> None:
        self.path = path

    def run(self, x: Array) -> Array:
        return x


class OpensWithoutInputs:
    def open(self) -> None: ...

    def run(self, x: Array) -> Array:
        return x


class PreparesAsynchronously:
    async def prepare(self, call: Call, check: Checks) -> None: ...

    def run(self, x: Array) -> Array:
        return x


class RunsAsynchronously:
    async def run(self, x: Array) -> Array:
        return x


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (NoRun, "has no method 'run'"),
        (NeedsArguments, r"NeedsArguments\.__init__ must take nothing"),
        (OpensWithoutInputs, r"OpensWithoutInputs\.open must take inputs"),
        (PreparesAsynchronously, r"PreparesAsynchronously\.prepare is asynchronous"),
        (RunsAsynchronously, "is asynchronous"),
    ],
)
def test_a_class_that_is_no_operator_is_refused_when_it_is_decorated(
    kind: type, reason: str
) -> None:
    with pytest.raises(pl.OperatorError, match=reason) as info:
        pl.operator(name="test_life.refused")(kind)
    assert info.value.fix is not None
