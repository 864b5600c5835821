"""Whatever is computed or stored twice is so once; what only looks alike stays."""

from __future__ import annotations

import math

import numpy as np
import plait as pl
import pytest
from plait.graph.core.attribute import Attribute, Kind
from plait.graph.core.check import check
from plait.graph.core.operator import Operator, free, register_operator
from plait.graph.passes.strength import reduce_strength
from plait.graph.passes.unneeded import merge_common, remove_dead, share_constants
from plait.graph.values.tensor import Array


@pl.operator(name="test_duplicates.drawn")
def drawn(x: Array) -> Array:
    """Return random numbers: a function may know more than its inputs."""
    return np.random.default_rng().random(x.shape).astype(x.dtype)


def twice() -> pl.GraphBuilder:
    """Return y = f(x) + f(x)."""
    b = pl.GraphBuilder("twice")
    x = b.input("x", "float32", (2, 3))
    first, second = b.op("LeakyRelu", x, alpha=0.5), b.op("LeakyRelu", x, alpha=0.5)
    b.output("y", b.op("Add", first, second, name="add"))
    return b


def test_what_is_computed_twice_is_computed_once() -> None:
    after = check(merge_common(twice().build()))
    assert [node.op for node in after.nodes] == ["LeakyRelu", "Add"]
    assert len(set(after.nodes[1].inputs)) == 1


def test_chains_that_are_alike_become_one() -> None:
    b = pl.GraphBuilder("chains")
    x = b.input("x", "float32", (2,))
    ends = [b.op("Exp", b.op("Neg", b.op("Abs", x))) for _ in range(3)]
    b.output("y", b.op("Sum", *ends))
    after = check(merge_common(b.build()))
    assert [node.op for node in after.nodes] == ["Abs", "Neg", "Exp", "Sum"]


def test_other_attributes_are_another_computation() -> None:
    b = pl.GraphBuilder("other")
    x = b.input("x", "float32", (2,))
    b.output("y", b.op("Add", b.op("Elu", x, alpha=0.0), b.op("Elu", x, alpha=-0.0)))
    graph = b.build()
    assert merge_common(graph) is graph


def test_an_output_takes_the_place_of_what_is_not_fetched() -> None:
    b = pl.GraphBuilder("fetched")
    x = b.input("x", "float32", (2,))
    b.output("z", b.op("Neg", b.op("Abs", x)))
    b.output("y", b.op("Abs", x))
    after = check(merge_common(b.build()))
    assert [(node.op, node.outputs) for node in after.nodes] == [("Abs", ("y",)), ("Neg", ("z",))]


def test_two_outputs_stay_two() -> None:
    b = pl.GraphBuilder("fetched")
    x = b.input("x", "float32", (2,))
    b.output("y", b.op("Abs", x))
    b.output("z", b.op("Abs", x))
    graph = b.build()
    assert merge_common(graph) is graph


def test_python_functions_are_called_as_often_as_written() -> None:
    b = pl.GraphBuilder("drawn")
    x = b.input("x", "float32", (2,))
    first, second = b.call(drawn, x), b.call(drawn, x)
    b.output("y", b.op("Sub", first, second))
    graph = b.build()
    assert merge_common(graph) is graph


def test_constants_of_the_same_bits_are_stored_once() -> None:
    b = pl.GraphBuilder("constants")
    x = b.input("x", "float32", (40,))
    for sign in (1, 1, -1):
        x = b.op("Add", x, np.float32(sign) * np.arange(40, dtype=np.float32))
    b.output("y", x)
    after = check(share_constants(b.build()))
    assert len(after.constants) == 2


@pytest.mark.parametrize("other", [np.int32(0), np.float32(-0.0), np.zeros(1, np.float32)])
def test_constants_that_compare_equal_may_be_others(other: Array) -> None:
    b = pl.GraphBuilder("constants")
    b.output("z", b.op("Identity", np.asarray(other)))
    b.output("w", b.op("Identity", np.asarray(np.float32(0))))
    graph = b.build()
    stored = {array.tobytes() + str(array.dtype).encode() for array in graph.constants.values()}
    after = check(share_constants(graph))
    kept = {array.tobytes() + str(array.dtype).encode() for array in after.constants.values()}
    assert kept == stored


def test_constants_of_other_precisions_are_others() -> None:
    b = pl.GraphBuilder("precisions")
    x = b.input("x", "int32", (2,))
    value = np.array([1, 2], np.int32)
    first = b.constant(value, precision=4)
    second = b.constant(value, precision=8)
    b.output("y", b.op("Add", b.op("Add", x, first), second))
    graph = b.build()
    assert share_constants(graph) is graph


def test_what_nobody_reads_goes_with_all_that_led_to_it() -> None:
    b = pl.GraphBuilder("dead")
    x = b.input("x", "float32", (2,))
    b.op("Neg", b.op("Abs", x))
    b.output("y", b.op("Exp", x))
    after = check(remove_dead(b.build()))
    assert [node.op for node in after.nodes] == ["Exp"]


@pytest.mark.parametrize("divisor", [2.0, 0.5, -8.0, [2.0, 4.0, 0.25]])
def test_division_by_powers_of_two_is_multiplication_to_the_bit(divisor: object) -> None:
    b = pl.GraphBuilder("halved")
    b.output("y", b.op("Div", b.input("x", "float32", (50, 3)), np.asarray(divisor, np.float32)))
    graph = b.build()
    after = check(reduce_strength(graph))
    assert [node.op for node in after.nodes] == ["Mul"]
    random = np.random.default_rng(0)
    x = (random.standard_normal((50, 3)) * 10.0 ** random.integers(-44, 38, (50, 3))).astype("f")
    before, now = (pl.run(pl.plan(g, passes=()), {"x": x})["y"] for g in (graph, after))
    np.testing.assert_array_equal(now, before)


@pytest.mark.parametrize("divisor", [3.0, 0.0, np.inf, 2.0**-140])
def test_division_by_other_numbers_stays(divisor: float) -> None:
    b = pl.GraphBuilder("divided")
    b.output("y", b.op("Div", b.input("x", "float32", (2,)), np.float32(divisor)))
    graph = b.build()
    assert reduce_strength(graph) is graph


def test_a_square_is_a_product() -> None:
    b = pl.GraphBuilder("square")
    b.output("y", b.op("Pow", b.input("x", "float32", (99,)), np.float32(2)))
    graph = b.build()
    after = check(reduce_strength(graph))
    assert [node.op for node in after.nodes] == ["Mul"]
    x = np.random.default_rng(0).standard_normal(99).astype(np.float32)
    before, now = (pl.run(pl.plan(g, ["formal"], passes=()), {"x": x})["y"] for g in (graph, after))
    np.testing.assert_allclose(now, before, rtol=2e-7)


@pytest.mark.parametrize("op", ["Add", "Mul"])
def test_what_commutes_is_computed_once_in_either_order(op: str) -> None:
    b = pl.GraphBuilder("either")
    x, y = b.input("x", "float32", (2, 3)), b.input("y", "float32", (3,))
    b.output("z", b.op("Sub", b.op("Exp", b.op(op, x, y)), b.op(op, y, x)))
    after = check(merge_common(b.build()))
    assert [node.op for node in after.nodes] == [op, "Exp", "Sub"]


def test_what_does_not_commute_stays_two() -> None:
    b = pl.GraphBuilder("neither")
    x, y = b.input("x", "float32", (2,)), b.input("y", "float32", (2,))
    b.output("z", b.op("Mul", b.op("Sub", x, y), b.op("Sub", y, x)))
    graph = b.build()
    assert merge_common(graph) is graph


@pytest.mark.usefixtures("forget_operators")
@pytest.mark.parametrize(
    ("first", "second", "merges"),
    [
        ((0.0, 1.0), (0.0, 1.0), True),
        ((0.0, 1.0), (-0.0, 1.0), False),
        ((math.nan, 1.0), (math.nan, 1.0), True),
        ((0.5,), (0.5, 0.5), False),
    ],
)
def test_rows_of_floats_are_compared_by_their_bits(
    first: tuple[float, ...], second: tuple[float, ...], merges: bool
) -> None:
    name = "test_unneeded.Rows"
    values = {"values": Attribute(Kind.FLOATS)}
    register_operator(
        Operator(name, "x", "y", values, lambda call: [call.spec(0)], free, module=__name__)
    )
    b = pl.GraphBuilder("rows")
    x = b.input("x", "float32", (2,))
    for output, row in (("a", first), ("b", second)):
        b.output(output, b.op("Neg", b.op(name, x, values=row)))
    ops = [node.op for node in merge_common(b.build()).nodes]
    assert ops.count(name) == (1 if merges else 2)
