"""GraphBuilder: inputs, constants and nodes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from plait.graph.building.builder import GraphBuilder
from plait.graph.core.attribute import Attribute, Kind
from plait.graph.core.operator import Call, define, is_operator
from plait.graph.values.errors import GraphError, OperatorError, ShapeError
from plait.graph.values.tensor import TensorSpec

pytestmark = pytest.mark.usefixtures("forget_operators")


def builder_with_x() -> tuple[GraphBuilder, str]:
    b = GraphBuilder("g")
    return b, b.input("x", "float32", ("n", 3))


def test_an_input_keeps_its_name_dtype_and_shape() -> None:
    b, x = builder_with_x()
    b.output("y", b.op("Relu", x))
    graph = b.build()
    assert (x, graph.inputs) == ("x", ("x",))
    assert graph.tensors["x"] == TensorSpec("float32", ("n", 3))


def test_a_name_is_given_once() -> None:
    b, _ = builder_with_x()
    with pytest.raises(GraphError) as caught:
        b.input("x", "float32", ())
    assert str(caught.value) == ("the name 'x' is taken\n  at:  g\n  fix: choose another")


def test_an_input_needs_a_name() -> None:
    with pytest.raises(GraphError) as caught:
        GraphBuilder("g").input("", "float32", ())
    assert str(caught.value) == "a tensor needs a name\n  at:  g\n  fix: choose one"


def test_a_refused_input_leaves_its_name_free() -> None:
    b = GraphBuilder()
    with pytest.raises(ShapeError):
        b.input("x", "float32", (-1,))
    assert b.input("x", "float32", (1,)) == "x"


def test_a_constant_is_not_copied() -> None:
    b = GraphBuilder()
    value = np.arange(3, dtype=np.float32)
    b.output("y", b.op("Relu", b.constant(value, name="c")))
    assert np.shares_memory(b.build().constants["c"], value)


def test_a_constant_is_read_only_while_its_source_stays_writable() -> None:
    b = GraphBuilder()
    value = np.arange(3, dtype=np.float32)
    b.output("y", b.op("Relu", b.constant(value, name="c")))
    with pytest.raises(ValueError, match="read-only"):
        b.build().constants["c"][0] = 1
    assert value.flags.writeable


@pytest.mark.parametrize(
    ("value", "spec"),
    [
        (1.5, TensorSpec("float64", ())),
        ([[1, 2]], TensorSpec("int64", (1, 2))),
        (np.ones((2, 3), np.float32).T, TensorSpec("float32", (3, 2))),
        (np.ones((4,), np.int8)[::2], TensorSpec("int8", (2,))),
        (np.zeros((2, 0), np.float32), TensorSpec("float32", (2, 0))),
    ],
)
def test_a_constant_takes_the_shape_and_dtype_of_its_value(value: Any, spec: TensorSpec) -> None:
    b = GraphBuilder()
    b.output("y", b.op("Relu", b.constant(value, name="c")))
    graph = b.build()
    assert graph.tensors["c"] == spec
    assert graph.constants["c"].flags.c_contiguous
    np.testing.assert_array_equal(graph.constants["c"], value)


def test_a_constant_becomes_native_in_byte_order() -> None:
    b = GraphBuilder()
    b.output("y", b.op("Relu", b.constant(np.array([1.0, 2.0], ">f4"), name="c")))
    constant = b.build().constants["c"]
    assert constant.dtype.isnative
    assert constant.tolist() == [1.0, 2.0]


def test_a_constant_can_be_given_a_dtype() -> None:
    b = GraphBuilder()
    b.output("y", b.op("Relu", b.constant([1, 2], name="c", dtype="float16")))
    assert b.build().tensors["c"] == TensorSpec("float16", (2,))


def test_text_is_no_constant() -> None:
    with pytest.raises(ShapeError, match="a constant is str96, not numbers"):
        GraphBuilder().constant("abc")


def test_a_node_is_named_after_its_operator_and_its_output_after_it() -> None:
    b, x = builder_with_x()
    first, second = b.op("Relu", x), b.op("Relu", x)
    assert (first, second) == ("relu.0", "relu.1")


def test_a_node_and_its_output_take_the_name_given() -> None:
    b, x = builder_with_x()
    assert b.op("Relu", x, name="rectify") == "rectify"


def test_an_output_steps_aside_for_a_tensor_of_the_same_name() -> None:
    b, x = builder_with_x()
    y = b.op("Relu", x, name="x")
    b.output("y", y)
    assert y != "x"
    assert b.build().nodes[0].name == "x"


def test_outputs_take_the_names_given() -> None:
    b, x = builder_with_x()
    assert b.op("Relu", x, outputs=["r"]) == ("r",)


def test_several_outputs_come_as_a_tuple() -> None:
    define("test.Twin", inputs="x", outputs="a b")(lambda call: (call.spec(0), call.spec(0)))
    b, x = builder_with_x()
    assert b.op("test.Twin", x, name="twin", outputs=2) == ("twin.0", "twin.1")


def test_an_output_can_be_left_out() -> None:
    define("test.Twin", inputs="x", outputs="a b")(lambda call: (call.spec(0), call.spec(0)))
    b, x = builder_with_x()
    made = b.op("test.Twin", x, outputs=["", "second"])
    b.output("y", made[1])
    assert made == ("", "second")
    assert b.build().nodes[0].outputs == ("", "y")


def test_an_input_can_be_left_out() -> None:
    define("test.Clip", inputs="x low? high?")(lambda call: (call.spec(0),))
    b, x = builder_with_x()
    b.output("y", b.op("test.Clip", x, None, 6.0))
    node = b.build().nodes[0]
    assert node.inputs[:2] == ("x", "")


def test_a_number_becomes_a_constant_of_the_first_tensor_s_dtype() -> None:
    b = GraphBuilder()
    x = b.input("x", "float16", (3,))
    b.output("y", b.op("Add", 1, x))
    graph = b.build()
    (constant,) = graph.constants.values()
    assert (constant.dtype, constant.shape, constant.item()) == (np.float16, (), 1.0)


def test_an_array_keeps_its_own_dtype() -> None:
    b, x = builder_with_x()
    with pytest.raises(ShapeError, match="different dtypes"):
        b.op("Add", x, np.ones(3))


@pytest.mark.parametrize(
    ("dtype", "number"),
    [("int64", 0.5), ("uint8", 300), ("uint8", -1), ("bool", 2), ("int32", float("nan"))],
)
def test_a_number_that_the_dtype_cannot_hold_is_refused(dtype: str, number: float) -> None:
    b = GraphBuilder()
    x = b.input("x", dtype, (3,))
    with pytest.raises(OperatorError) as caught:
        b.op("Add", x, number, name="add")
    assert str(caught.value) == (
        f"the number {number!r} is not a value of {dtype}, the dtype of the first tensor\n"
        "  at:  node 'add' (Add)\n"
        "  fix: pass an array of the dtype you mean, or insert a Cast"
    )


@given(st.sampled_from(["int8", "uint8", "int64", "bool"]), st.integers(-300, 300))
def test_integer_dtypes_take_exactly_the_numbers_they_hold(dtype: str, number: int) -> None:
    b = GraphBuilder()
    x = b.input("x", dtype, ())
    if not is_operator("test.First"):
        define("test.First", inputs="x number")(lambda call: (call.spec(0),))
    with np.errstate(all="ignore"):
        holds = int(np.array(number, np.int64).astype(dtype)) == number
    if not holds:
        with pytest.raises(OperatorError):
            b.op("test.First", x, number)
        return
    b.output("y", b.op("test.First", x, number))
    (constant,) = b.build().constants.values()
    assert (constant.dtype, constant.item()) == (np.dtype(dtype), number)


def test_attributes_are_completed_with_defaults() -> None:
    scale = {"by": Attribute(Kind.FLOAT, 2.0), "axis": Attribute(Kind.INT)}
    define("test.Scale", inputs="x", attributes=scale)(lambda call: (call.spec(0),))
    b, x = builder_with_x()
    b.output("y", b.op("test.Scale", x, axis=1))
    assert b.build().nodes[0].attributes == {"by": 2.0, "axis": 1}


def test_an_attribute_may_be_called_op() -> None:
    define("test.Named", inputs="x", attributes={"op": Attribute(Kind.STRING)})(
        lambda call: (call.spec(0),)
    )
    b, x = builder_with_x()
    b.output("y", b.op("test.Named", x, op="max"))
    assert b.build().nodes[0].attributes == {"op": "max"}


def test_shape_rules_see_the_values_of_constants() -> None:
    @define("test.Fill", inputs="shape")
    def fill(call: Call) -> tuple[TensorSpec, ...]:
        return (TensorSpec("float32", tuple(call.value(0))),)  # type: ignore[arg-type]

    b = GraphBuilder()
    b.output("y", b.op("test.Fill", np.array([2, 5])))
    assert b.build().tensors["y"] == TensorSpec("float32", (2, 5))


def test_two_nodes_with_one_name_are_refused() -> None:
    b, x = builder_with_x()
    b.op("Relu", x, name="a")
    with pytest.raises(GraphError) as caught:
        b.op("Relu", x, name="a")
    assert str(caught.value) == ("two nodes are named 'a'\n  at:  Relu\n  fix: choose another name")


def test_two_outputs_with_one_name_are_refused() -> None:
    define("test.Twin", inputs="x", outputs="a b")(lambda call: (call.spec(0), call.spec(0)))
    b, x = builder_with_x()
    with pytest.raises(GraphError) as caught:
        b.op("test.Twin", x, outputs=["t", "t"])
    assert str(caught.value) == (
        "two outputs have one name: t, t\n  at:  test.Twin node\n  fix: rename one"
    )


def test_an_unknown_tensor_is_refused() -> None:
    b, _ = builder_with_x()
    with pytest.raises(OperatorError) as caught:
        b.op("Relu", "z", name="r")
    assert str(caught.value) == (
        "there is no tensor 'z' yet\n"
        "  at:  node 'r' (Relu)\n"
        "  fix: pass what input(), constant(), op() or call() returned"
    )


def test_an_unknown_operator_is_refused_where_it_is_called() -> None:
    b, x = builder_with_x()
    with pytest.raises(OperatorError) as caught:
        b.op("test.Nothing", x)
    assert caught.value.at == "test.Nothing node"


def test_a_wrong_number_of_inputs_is_refused_where_it_is_called() -> None:
    b, x = builder_with_x()
    with pytest.raises(OperatorError, match=r"takes 2 inputs \(a b\), got 1"):
        b.op("Add", x)


def test_shapes_that_do_not_fit_name_the_node() -> None:
    b, x = builder_with_x()
    with pytest.raises(ShapeError) as caught:
        b.op("Add", x, np.ones(4, np.float32), name="add")
    assert (caught.value.at or "").startswith("node 'add': Add(x, ")


def test_a_failed_call_leaves_no_trace() -> None:
    b, x = builder_with_x()
    b.output("y", b.op("Relu", x))
    before = b.build()
    with pytest.raises(ShapeError):
        b.op("Add", np.ones(4, np.float32), x, name="add")
    after = b.build()
    assert (after.nodes, after.tensors) == (before.nodes, before.tensors)
    assert not after.constants


def test_a_name_is_free_again_after_a_failed_call() -> None:
    b, x = builder_with_x()
    with pytest.raises(ShapeError):
        b.op("Add", x, np.ones(4, np.float32), name="add", outputs=["sum"])
    assert b.op("Add", x, np.ones(3, np.float32), name="add", outputs=["sum"]) == ("sum",)
