from __future__ import annotations

from typing import Any

import numpy as np
import plait as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from plait.dialects.cvm.precision import (
    RULES,
    check_parameters,
    compute_limit,
    compute_precision,
    infer_precision,
    sum_bits,
)
from plait.graph.core.ir import Graph
from plait.graph.core.operator import list_operators
from plait.graph.formats.native import dump_bytes, load_bytes
from plait.graph.values.errors import GraphError, LogicError
from plait.scheduler.shapes.specialise import specialise

Given = tuple[tuple[int, ...], int | None]
"""The shape and the declared precision of an input."""


def built(op: str, *inputs: Given, outputs: int = 1, **attributes: Any) -> Graph:
    b = pl.GraphBuilder("bits")
    names = [b.input(f"x{i}", "int32", *one) for i, one in enumerate(inputs)]
    made = b.op(op, *names, outputs=outputs, **attributes)
    for name in [made] if outputs == 1 else made:
        b.output(name, name)
    return b.build()


def bits(op: str, *inputs: Given, outputs: int = 1, **attributes: Any) -> list[int]:
    graph = built(f"cvm.{op}", *inputs, outputs=outputs, **attributes)
    found = infer_precision(graph)
    return [found[name] for name in graph.outputs]


def test_every_exact_operator_has_a_rule() -> None:
    assert set(RULES) == {name for name in list_operators() if name.startswith("cvm.")}


CONV = {"channels": 2, "kernel_size": (3, 3)}
CASES: list[tuple[str, list[Given], dict[str, Any], int]] = [
    ("sum", [((4, 8), 8)], {"axis": (1,)}, 12),  # 8 numbers: 4 bits more
    ("sum", [((4, 8), 8)], {}, 14),
    ("sum", [((4, 1), 8)], {"axis": (1,)}, 9),
    ("max", [((4, 8), 8)], {}, 8),
    ("broadcast_add", [((2,), 8), ((1,), 10)], {}, 11),
    ("broadcast_sub", [((2,), 8), ((1,), 8)], {}, 9),
    ("broadcast_mul", [((2,), 8), ((1,), 10)], {}, 18),
    ("broadcast_max", [((2,), 8), ((1,), 10)], {}, 10),
    ("broadcast_div", [((2,), 8), ((1,), 10)], {}, 8),
    ("broadcast_greater", [((2,), 8), ((1,), 10)], {}, 8),
    ("elemwise_add", [((2,), 8), ((2,), 10)], {}, 11),
    ("elemwise_sub", [((2,), 8), ((2,), 10)], {}, 11),
    ("dense", [((1, 8), 8), ((3, 8), 8)], {"units": 3, "use_bias": False}, 20),
    ("dense", [((1, 8), 8), ((3, 8), 8), ((3,), 20)], {"units": 3}, 21),
    ("dense", [((1, 8), 8), ((3, 8), 8), ((3,), 31)], {"units": 3}, 32),
    ("conv2d", [((1, 4, 5, 5), 8), ((2, 4, 3, 3), 7)], {**CONV, "use_bias": False}, 21),
    ("conv2d", [((1, 4, 5, 5), 8), ((2, 4, 3, 3), 7), ((2,), 16)], CONV, 22),
    ("relu", [((2,), 9)], {}, 9),
    ("abs", [((2,), 9)], {}, 9),
    ("negative", [((2,), 9)], {}, 9),
    ("precision", [((2,), 30)], {}, 6),
    ("max_pool2d", [((1, 1, 4, 4), 9)], {"pool_size": (2, 2)}, 9),
    ("upsampling", [((1, 1, 4, 4), 9)], {"scale": 2}, 9),
    ("clip", [((2,), 32)], {"a_min": -127, "a_max": 127}, 9),
    ("clip", [((2,), 32)], {"a_min": -126, "a_max": 0}, 8),
    ("cvm_clip", [((2,), 32)], {"precision": 8}, 8),
    ("right_shift", [((2,), 32)], {"precision": 8, "shift_bit": 4}, 8),
    ("left_shift", [((2,), 8)], {"precision": 16, "shift_bit": 24}, 16),
    ("repeat", [((2,), 9)], {"repeats": 2}, 9),
    ("tile", [((2,), 9)], {"reps": (2,)}, 9),
    ("flatten", [((2,), 9)], {}, 9),
    ("concatenate", [((2, 1), 9), ((2, 2), 11)], {}, 11),
    ("expand_dims", [((2,), 9)], {"axis": 0}, 9),
    ("reshape", [((2,), 9)], {"shape": (1, 2)}, 9),
    ("squeeze", [((2, 1), 9)], {}, 9),
    ("transpose", [((2, 1), 9)], {}, 9),
    ("strided_slice", [((2,), 9)], {}, 9),
    ("slice_like", [((2,), 9), ((1,), 4)], {}, 9),
    ("take", [((2,), 9), ((1,), 4)], {}, 9),
    ("lut", [((2,), 9), ((3,), 4)], {"in_dim": 3}, 4),
    ("where", [((2,), 2), ((2,), 9), ((2,), 12)], {}, 12),
    ("non_max_suppression", [((1, 2, 6), 20), ((1,), 4)], {}, 20),
]


@pytest.mark.parametrize(("op", "inputs", "attributes", "wanted"), CASES)
def test_the_output_has_the_bits_of_the_rule(
    op: str, inputs: list[Given], attributes: dict[str, Any], wanted: int
) -> None:
    assert bits(op, *inputs, **attributes) == [wanted]


def test_counts_of_boxes_have_the_bits_of_all_their_numbers() -> None:
    assert bits("get_valid_counts", ((3, 20, 5), 17), outputs=2) == [8, 17]


@pytest.mark.parametrize(
    ("number", "wanted"), [(0, 2), (1, 3), (7, 5), (100, 8), (127, 9), (128, 9), (255, 10)]
)
def test_the_precision_of_a_number_is_one_too_many_just_below_a_power_of_two(
    number: int, wanted: int
) -> None:
    assert compute_precision(number) == wanted


@pytest.mark.parametrize(("count", "wanted"), [(1, 1), (2, 2), (4, 3), (8, 4), (9, 4)])
def test_a_sum_grows_by_the_bit_length_of_its_count(count: int, wanted: int) -> None:
    assert sum_bits(count) == wanted


@given(st.integers(1, 32))
def test_bits_hold_a_symmetric_range(precision: int) -> None:
    assert compute_limit(precision) == 2 ** (precision - 1) - 1


@pytest.mark.parametrize(
    ("op", "inputs", "attributes", "message"),
    [
        ("broadcast_mul", [((2,), 17), ((2,), 16)], {}, "needs 33 bits"),
        ("broadcast_add", [((2,), 32), ((2,), 2)], {}, "needs 33 bits"),
        ("sum", [((2,), 31)], {}, "needs 33 bits"),
        ("clip", [((2,), 8)], {"a_min": 0, "a_max": 2**31 - 1}, "needs 33 bits"),
        ("dense", [((1, 8), 9), ((3, 8), 8)], {"units": 3, "use_bias": False}, "the input may"),
        ("dense", [((1, 8), 8), ((3, 8), 9)], {"units": 3, "use_bias": False}, "the weights may"),
        ("dense", [((1, 8), None), ((3, 8), 8)], {"units": 3, "use_bias": False}, "need 32 bits"),
        ("left_shift", [((2,), 9)], {"precision": 8, "shift_bit": 24}, "more than 32"),
    ],
)
def test_too_many_bits_are_a_logic_error(
    op: str, inputs: list[Given], attributes: dict[str, Any], message: str
) -> None:
    with pytest.raises(LogicError, match=message) as caught:
        bits(op, *inputs, **attributes)
    assert caught.value.code == 1
    assert f"cvm.{op}" in str(caught.value.at)


def test_what_is_not_declared_has_the_bits_of_its_dtype() -> None:
    b = pl.GraphBuilder()
    for dtype in ("int8", "int32", "float32"):
        b.output(f"y {dtype}", b.op("Neg", b.input(dtype, dtype, (2,))))
    found = infer_precision(b.build())
    assert found == {"int8": 8, "int32": 32, "y int8": 8, "y int32": 32}


def test_a_copy_under_another_name_keeps_its_bits() -> None:
    b = pl.GraphBuilder()
    b.output("y", b.input("x", "int32", (2,), precision=5))
    assert infer_precision(b.build())["y"] == 5


def with_constant(numbers: list[int], precision: int | None) -> Graph:
    b = pl.GraphBuilder()
    weights = b.constant(np.array(numbers, np.int32), "w", precision=precision)
    b.output("y", b.op("cvm.relu", weights))
    return b.build()


@pytest.mark.parametrize(
    ("numbers", "precision"),
    [([127, -127], 8), ([0], 1), ([-(2**31)], None), ([2**31 - 1], 32)],
)
def test_parameters_within_their_bits_are_accepted(
    numbers: list[int], precision: int | None
) -> None:
    check_parameters(with_constant(numbers, precision))


@pytest.mark.parametrize(
    ("numbers", "precision"), [([0, -128], 8), ([128], 8), ([1], 1), ([-(2**31)], 32)]
)
def test_parameters_beyond_their_bits_are_refused(numbers: list[int], precision: int) -> None:
    with pytest.raises(LogicError, match="is beyond") as caught:
        check_parameters(with_constant(numbers, precision))
    assert "'w'" in str(caught.value.at)


@pytest.mark.parametrize(
    ("dtype", "precision"),
    [("int32", 0), ("int32", 33), ("int8", 9), ("int32", True), ("float32", 8)],
)
def test_a_precision_must_fit_the_dtype(dtype: str, precision: int) -> None:
    b = pl.GraphBuilder()
    with pytest.raises(GraphError, match="precision"):
        b.input("x", dtype, (2,), precision=precision)
    assert b.input("x", dtype, (2,)) == "x"


def declared() -> Graph:
    b = pl.GraphBuilder("declared")
    x = b.input("x", "int32", ("n", 4), precision=8)
    w = b.constant(np.ones((3, 4), np.int32), "w", precision=7)
    b.output("y", b.op("cvm.relu", b.op("cvm.dense", x, w, units=3, use_bias=False)))
    return b.build()


def test_declared_precisions_are_part_of_a_graph() -> None:
    graph = declared()
    assert dict(graph.precisions) == {"x": 8, "w": 7}
    other = pl.GraphBuilder("declared")
    x = other.input("x", "int32", ("n", 4), precision=8)
    w = other.constant(np.ones((3, 4), np.int32), "w", precision=6)
    other.output("y", other.op("cvm.relu", other.op("cvm.dense", x, w, units=3, use_bias=False)))
    assert graph == declared()
    assert graph != other.build()


def test_declared_precisions_are_saved() -> None:
    graph = load_bytes(dump_bytes(declared()))
    assert graph == declared()
    assert dict(graph.precisions) == {"x": 8, "w": 7}


def test_a_saved_graph_without_precisions_is_as_it_always_was() -> None:
    data = dump_bytes(with_constant([1], None))
    assert b"precisions" not in data
    assert dict(load_bytes(data).precisions) == {}


def test_declared_precisions_survive_planning_extraction_and_inclusion() -> None:
    graph = specialise(declared(), {"x": (2, 4)})
    assert dict(graph.precisions) == {"x": 8, "w": 7}
    assert infer_precision(graph)["y"] == 18
    assert dict(graph.extract(graph.nodes[:1], "part").precisions) == {"x": 8, "w": 7}
    b = pl.GraphBuilder()
    made = b.include(graph, {"x": b.input("in", "int32", (2, 4), precision=6)}, "inner/")
    b.output("y", made["y"])
    assert dict(b.build().precisions) == {"in": 6, "inner/w": 7}


def test_the_batch_may_be_a_symbol() -> None:
    b = pl.GraphBuilder()
    x = b.input("x", "int32", ("n", 2, 4, 4), precision=8)
    w = b.constant(np.ones((3, 2, 3, 3), np.int32), precision=8)
    y = b.op("cvm.conv2d", x, w, channels=3, kernel_size=(3, 3), use_bias=False)
    b.output("y", b.op("cvm.sum", y, axis=(2, 3)))
    assert infer_precision(b.build())["y"] == 8 + 8 + 5 + 3
    b.output("total", b.op("cvm.sum", y))
    with pytest.raises(pl.ShapeError, match="no fixed shape"):
        infer_precision(b.build())


def test_every_error_has_a_code() -> None:
    assert (LogicError.code, GraphError.code, pl.PlaitError.code, pl.DeviceError.code) == (
        1,
        1,
        2,
        2,
    )
    assert (pl.ShapeError("x").code, pl.InternalError("x").code) == (1, 2)
