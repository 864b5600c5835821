"""Facts that operators state, held against what their definitions compute; none may be missing."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np
import plait as pl
import pytest
from formal_node import formal_node
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from node_strategies.catalogue import STRATEGIES
from plait.devices.formal.registry import find_definition
from plait.graph.core.operator import define, find_operator, list_operators, unregister_operator
from plait.graph.core.traits import (
    ACTIVATION,
    COMMUTATIVE,
    ELEMENTWISE,
    FLAT,
    FOLLOWS,
    LENGTHS,
    MAXIMA,
    MOVES,
    NEVER_NEGATIVE,
    ROUNDS,
    SELECTS,
    UNSTATED,
    Trait,
)
from plait.graph.gradients.registry import find_rule
from plait.graph.passes.pipeline import run_passes
from plait.graph.passes.transposes import sink_transposes
from single_node import AnyArray, single_node_graph

OWN = [
    op
    for op in list_operators()
    if find_operator(op).module.startswith("plait.") and find_operator(op).function is None
]
REQUIRED = {"BitShift": {"direction": "LEFT"}}
UNEQUAL = {
    "After": "waits for its other inputs",
    "Assign": "has effects",
    "BitCast": "is told a dtype",
    "Cast": "is told a dtype",
    "CastLike": "is told a dtype",
    "Clip": "its bounds are scalars",
    "Dropout": "draws numbers while training",
    "Split": "has one part here",
    "TensorScatter": "writes all of its cache here",
}
"""Operators of which what is tried here does not tell, and why."""

DRAWS = settings(max_examples=10, suppress_health_check=list(HealthCheck))


NEGATIVES = settings(
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)


def having(trait: Trait) -> list[str]:
    return [op for op in OWN if trait in find_operator(op).traits]


def defined(op: str, inputs: Sequence[AnyArray | None], **attributes: Any) -> AnyArray:
    """Return the first output by the operator's definition."""
    return formal_node(op, inputs, attributes or REQUIRED.get(op))[0]


def arguments(op: str) -> Iterator[list[AnyArray]]:
    """Yield inputs of one shape that an operator takes."""
    random = np.random.default_rng(0)
    floats = random.uniform(0.1, 1.9, (3, 2, 1, 3, 2)).astype(np.float32)
    integers, booleans = random.integers(0, 7, (3, 2, 1, 3, 2)).astype(np.uint8), floats > 1
    choice = [booleans[0], floats[1], floats[2]]
    groups = [list(floats), list(integers), list(booleans), choice]
    for count, chosen in itertools.product((1, 2, 3), groups):
        try:
            single_node_graph(op, chosen[:count], REQUIRED.get(op))
        except (pl.PlaitError, AssertionError):
            continue
        yield chosen[:count]


def acts_on_each_element(op: str) -> bool:
    """True when an element of the result follows from those at its place, wherever that is."""
    found = False
    for inputs in arguments(op):
        try:
            before = defined(op, inputs)
            if before.shape != inputs[0].shape or not equal(
                defined(op, [array.T for array in inputs]).T, before
            ):
                return False
            for place in ((0, 0, 0, 0), (1, 0, 1, 0), (1, 0, 2, 1)):
                changed = [array.copy() for array in inputs]
                for array in changed:
                    array[place] = array[place[0] - 1, 0, place[2] - 1, place[3] - 1]
                after = defined(op, changed)
                after[place] = before[place]
                if not equal(after, before):
                    return False
        except pl.PlaitError:  # its inputs are no numbers alone: they are indices, or sizes
            return False
        found = True
    return found


def equal(a: AnyArray, b: AnyArray) -> bool:
    return np.array_equal(a, b, equal_nan=a.dtype.kind == "f")


@pytest.mark.parametrize("op", [op for op in OWN if not op.startswith("cvm.")])
def test_operators_state_that_they_are_elementwise_if_they_are(op: str) -> None:
    if find_definition(op) is not None and op not in UNEQUAL:
        assert (ELEMENTWISE in find_operator(op).traits) == acts_on_each_element(op)


def test_operators_state_that_they_commute_if_they_do() -> None:
    for op in having(ELEMENTWISE):
        names = find_operator(op).inputs.split()
        if len(names) != 2 or names[-1][-1] in "?*+" or op in UNEQUAL:
            continue
        pairs = [inputs for inputs in arguments(op) if len(inputs) == 2]
        swaps = [equal(defined(op, pair), defined(op, pair[::-1])) for pair in pairs]
        assert (COMMUTATIVE in find_operator(op).traits) == all(swaps), op


def test_every_operator_states_whether_it_computes_in_float16() -> None:
    assert [op for op in OWN if find_operator(op).float16 == UNSTATED] == []


@pytest.mark.parametrize("op", having(SELECTS))
@DRAWS
@given(data=st.data())
def test_what_moves_or_selects_elements_makes_none(op: str, data: st.DataObject) -> None:
    case = STRATEGIES[op](data.draw)
    source = case.inputs[0]
    assert source is not None
    if source.dtype.kind not in "iub":
        return
    (result, *_) = formal_node(op, case.inputs, case.attributes, case.n_outputs, case.constant)
    assert np.isin(result, source).all()
    if MOVES in find_operator(op).traits:
        np.testing.assert_array_equal(np.sort(result, None), np.sort(source, None))


@pytest.mark.parametrize("op", having(FLAT))
def test_what_is_flat_is_the_same_where_its_inputs_change_a_little(op: str) -> None:
    if find_definition(op) is None:
        assert find_operator(op).draws is not None  # what it is written with is flat
    for inputs in arguments(op) if find_definition(op) is not None else ():
        assert inputs[0].dtype.kind != "f" or equal(
            defined(op, inputs), defined(op, [x + np.float32(1e-5) for x in inputs])
        )


def test_nothing_flat_has_a_gradient() -> None:
    assert [op for op in having(FLAT) if find_rule(op) is not None] == []


def test_lengths_are_those_of_any_elements() -> None:
    assert having(LENGTHS) == ["Shape", "Size"]
    for op in having(LENGTHS):
        zeros, ones = (defined(op, [make((2, 0, 3), np.float32)]) for make in (np.zeros, np.ones))
        np.testing.assert_array_equal(zeros, ones)
        assert zeros.tolist() in ([2, 0, 3], 0)


@pytest.mark.parametrize("op", having(ROUNDS))
def test_what_was_rounded_is_rounded_no_further(op: str) -> None:
    x = np.concatenate([np.arange(-4, 4, 0.125), [np.inf, -np.inf, -0.0]]).astype(np.float32)
    for before in having(ROUNDS):
        rounded = defined(before, [x])
        assert defined(op, [rounded]).tobytes() == rounded.tobytes()


NEGATIVE_AT_TIMES = {
    "Relu": "of -0 it makes any of the two zeros, and so does another one after it",
    "Fused": "what it yields is up to its nodes",
    "Pow": "negative numbers are rarely drawn with odd exponents",
    "HardSigmoid": "where both terms are -0, so is their sum",
}
"""Operators of which the search does not tell, and why."""


FEW = 20
"""After so many results it is known whether an operator ever yields floats: the second is one."""


class NegativeError(Exception):
    """A float was below 0, or -0, or there are no floats."""


SEARCHED = [
    op
    for op in OWN
    if op in STRATEGIES and op not in NEGATIVE_AT_TIMES and find_operator(op).bounded is None
]


@pytest.mark.extended
@pytest.mark.parametrize("op", SEARCHED)
def test_operators_state_that_they_are_never_negative_if_they_are(op: str) -> None:
    states = NEVER_NEGATIVE in find_operator(op).traits
    dtypes = Counter[str]()

    # One that may be negative is so after some tens of examples; with bad luck it takes hundreds.
    @settings(NEGATIVES, max_examples=150 if states else 3000)
    @given(data=st.data())
    def look(data: st.DataObject) -> None:
        case = STRATEGIES[op](data.draw)
        for y in formal_node(op, case.inputs, case.attributes, case.n_outputs, case.constant):
            dtypes[y.dtype.kind] += 1
            if y.dtype.kind == "f" and np.signbit(y[~np.isnan(y)]).any():
                raise NegativeError
        if "f" not in dtypes and dtypes.total() >= FEW:
            raise NegativeError  # nor can a Relu of floats follow

    with pytest.raises(NegativeError) if not states else nullcontext():
        look()


@pytest.mark.parametrize("op", ["Acos", "Acosh", "Cosh", "Exp", "Sigmoid", "Softplus", "Abs"])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("device", ["cpu", "compiled"])
def test_kernels_of_what_is_never_negative_are_not_either(op: str, dtype: str, device: str) -> None:
    assert NEVER_NEGATIVE in find_operator(op).traits
    if device == "compiled":
        pytest.importorskip("numba")
    words = np.arange(2**16, dtype=np.uint16)
    x = words.view(np.float16) if dtype == "float16" else near_words(words, dtype)
    b = pl.GraphBuilder("never negative")
    b.output("y", b.op(op, b.input("x", dtype, x.shape)))
    y = pl.run(b.build(), {"x": x}, devices=[device])["y"]
    assert not (y < 0).any()
    assert not (np.signbit(y) & (y == 0)).any()


def near_words(words: AnyArray, dtype: str) -> AnyArray:
    """Return as many floats of all signs and exponents of float32."""
    with np.errstate(invalid="ignore"):  # some are nan
        return (words.astype(np.uint32) << 16 | 0x5555).view(np.float32).astype(dtype)


def test_relu_of_integers_stays_where_they_may_be_negative() -> None:
    b = pl.GraphBuilder("least")
    b.output("y", b.op("Relu", b.op("Abs", b.input("x", "int8", (2,)))))
    x = np.array([-128, -127], np.int8)
    np.testing.assert_array_equal(pl.run(b.build(), {"x": x}, devices=["cpu"])["y"], [0, 127])


def test_maxima_of_what_keeps_the_order_are_those_made_of_it() -> None:
    x = np.random.default_rng(0).integers(-90, 90, (2, 3, 8, 8)).astype(np.float32)
    for op in having(MAXIMA):
        found = defined(op, [(x // 4).astype(np.int8)], kernel_shape=(3, 3), pads=(1, 1, 1, 1))
        wanted = defined(op, [x], kernel_shape=(3, 3), pads=(1, 1, 1, 1)) // 4
        assert found.dtype == np.int8
        np.testing.assert_array_equal(found, wanted, op)


def test_python_functions_are_treated_by_what_they_state() -> None:
    name = "test_traits.cube"

    @pl.operator(name=name, traits=ACTIVATION)
    def cube(x: AnyArray) -> AnyArray:
        return x**3

    try:
        b = pl.GraphBuilder("turned")
        x = b.op("Transpose", b.input("x", "float32", (1, 2, 3)), perm=(0, 2, 1))
        y = b.op("Transpose", b.op(name, x), perm=(0, 2, 1))
        b.output("y", b.op(name, b.op("Conv", y, np.ones((1, 2, 1), np.float32))))
        graph = b.build()
        after, _ = run_passes(graph, (sink_transposes,))
        feeds = {"x": np.arange(6, dtype=np.float32).reshape(1, 2, 3)}
        got = pl.run(graph, feeds, devices=["cpu"])["y"]
    finally:
        unregister_operator(name)
    assert [node.op for node in after.nodes] == [name, "Conv", name]
    np.testing.assert_allclose(got, (feeds["x"] ** 3).sum(1, keepdims=True) ** 3)


def test_operators_of_packages_are_treated_by_what_they_state() -> None:
    name = "test_traits.Cube"
    define(name, inputs="x", traits=ELEMENTWISE, float16=FOLLOWS)(lambda call: [call.spec(0)])
    try:
        b = pl.GraphBuilder("turned")
        x = b.op("Transpose", b.input("x", "float32", (2, 3)), perm=(1, 0))
        b.output("y", b.op("Transpose", b.op(name, x), perm=(1, 0)))
        after, _ = run_passes(b.build(), (sink_transposes,))
    finally:
        unregister_operator(name)
    assert [node.op for node in after.nodes] == [name]
