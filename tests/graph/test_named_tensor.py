"""Tensors of a builder: names that compute."""

from __future__ import annotations

import copy
import json
import pickle
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import plait as pl
import pytest
from plait.graph.building.operator_methods import list_methods
from plait.graph.core.operator import define, list_operators, unregister_operator
from plait.graph.operators.elementwise import infer_cast


def builder_with_x(dtype: str = "float32") -> tuple[pl.GraphBuilder, pl.Tensor]:
    b = pl.GraphBuilder("g")
    return b, b.input("x", dtype, ("n", 4))


def last(b: pl.GraphBuilder) -> str:
    """Return the node that was added last, without its outputs."""
    return str(b.nodes[-1]).partition(": ")[2].partition(" ->")[0]


def test_what_each_method_of_a_builder_returns_is_a_tensor() -> None:
    b, x = builder_with_x()
    inner = pl.GraphBuilder("inner")
    inner.output("y", inner.input("z", "float32", ("n", 4)).relu())
    made = [
        x,
        b.constant(1.0),
        b.variable("v", np.zeros(3, "float32")),
        b.op("Relu", x),
        *b.op("TopK", x, [2], outputs=2),
        b.group(x),
        b.after(x, x),
        b.assign("v", np.ones(3, "float32")),
        b.include(inner.build(), {"z": x})["y"],
        b.ask_for(b.nodes[0].name, 0),
        b.tensor("x"),
    ]
    assert {type(one) for one in made} == {pl.Tensor}
    assert {one.builder for one in made} == {b}


def test_the_graph_has_plain_names_alone() -> None:
    b, x = builder_with_x()
    y = (x @ np.ones((4, 2), "float32")).clip(0, 6)
    b.output(y, y)
    graph = b.build()
    names = [*graph.tensors, *graph.inputs, *graph.outputs, *graph.constants]
    names += [one for node in graph.nodes for one in (node.name, *node.inputs, *node.outputs)]
    assert {type(name) for name in names} == {str}


def test_a_tensor_is_its_name_as_a_key_in_text_and_in_files() -> None:
    _, x = builder_with_x()
    assert x == "x"
    assert "x" == x  # noqa: SIM300  # the other way round
    assert x != "y"
    by_tensor: dict[str, int] = {x: 1}
    assert by_tensor["x"] == {"x": 1}[x] == 1
    assert (f"{x}/w", "%s/w" % x, "/".join([x, "w"]), json.dumps(x)) == ("x/w",) * 3 + ('"x"',)  # noqa: UP031
    assert repr(x) == "'x'"


def test_a_tensor_splits_as_text_does_where_it_is_given_text() -> None:
    b = pl.GraphBuilder("g")
    x = b.input("a/b c", "float32", (6,))
    assert (x.split("/"), x.split()) == (["a", "b c"], ["a/b", "c"])


def test_a_pickled_tensor_is_the_plain_name_and_a_copy_is_itself() -> None:
    _, x = builder_with_x()
    assert type(pickle.loads(pickle.dumps(x))) is str
    assert copy.copy(x) is x
    assert copy.deepcopy([x])[0] is x


def test_numbers_take_the_dtype_of_the_tensor() -> None:
    _, x = builder_with_x("float16")
    assert {(1 + x).dtype, (x * 2).dtype, (x**2).dtype, (1 / x).dtype} == {np.dtype("float16")}
    assert (x > 0).dtype == bool
    _, x = builder_with_x("int32")
    with pytest.raises(pl.OperatorError, match=r"the number 0.5 is not a value of int32"):
        _ = x + 0.5


@pytest.mark.parametrize(
    ("compute", "node"),
    [
        (lambda x, a: x + a, "Add(x, constant.1)"),
        (lambda x, a: a + x, "Add(x, constant.1)"),
        (lambda x, a: a - x, "Sub(constant.1, x)"),
        (lambda x, a: a[0, 0] / x, "Div(constant.1, x)"),
        (lambda x, a: a.T @ x, "MatMul(constant.1, x)"),
        (lambda x, a: a < x, "Greater(x, constant.1)"),
        (lambda x, a: 2**x, "Pow(constant.1, x)"),
    ],
)
def test_arrays_and_numbers_may_stand_on_either_side(
    compute: Callable[[Any, Any], Any], node: str
) -> None:
    b = pl.GraphBuilder("g")
    compute(b.input("x", "float32", (4, 4)), np.ones((4, 4), "float32"))
    assert last(b) == node


def test_operators_on_booleans_are_about_truth_and_on_integers_about_bits() -> None:
    b, x = builder_with_x("int64")
    _ = x & 3
    assert last(b).startswith("BitwiseAnd")
    _ = ~(x > 0)
    assert last(b).startswith("Not")


def test_integers_have_no_quotient_but_a_whole_one() -> None:
    b, x = builder_with_x("int64")
    with pytest.raises(pl.ShapeError, match=r"/ yields floats") as caught:
        _ = x / 2
    assert "x // y" in str(caught.value)
    _, y = builder_with_x()
    with pytest.raises(pl.ShapeError, match=r"// is for integers"):
        _ = y // 2
    low = b.constant(np.array([-128, -127, 127, 126, 5], "int8"))
    by = np.array([3, -2, -7, 127, -5], "int8")
    b.output("y", low // by)
    found = pl.run(b.build(), {"x": np.zeros((1, 4), "int64")}, devices=["cpu"])["y"]
    np.testing.assert_array_equal(found, np.array([-128, -127, 127, 126, 5], "int8") // by)


def test_every_operator_of_a_known_signature_is_a_method_and_is_listed() -> None:
    _, x = builder_with_x()
    assert {"relu", "log_softmax", "is_nan", "topk", "not_", "sum", "reduce_sum"} <= set(dir(x))
    found = {method.op for method in list_methods().values()}
    assert found < {name for name in list_operators() if "." not in name}
    assert {"If", "Loop", "Split", "RandomNormal", "Variable"}.isdisjoint(found)


def test_a_method_says_how_it_is_called() -> None:
    _, x = builder_with_x()
    for name in list_methods().keys() - vars(pl.Tensor).keys():
        method = getattr(x, name)
        assert method.__doc__, name
        assert method.__name__ == name


@pytest.mark.usefixtures("forget_operators")
def test_an_operator_that_is_registered_later_is_a_method_too() -> None:
    b, x = builder_with_x()
    assert "double_it" not in dir(x)
    define("DoubleIt", inputs="x")(lambda call: (call.spec(0),))
    assert x.double_it().shape == ("n", 4)  # type: ignore[attr-defined]
    assert last(b) == "DoubleIt(x)"
    unregister_operator("DoubleIt")
    assert "double_it" not in dir(x)


def test_inputs_and_axes_of_a_method_may_be_named() -> None:
    b, x = builder_with_x()
    x.clip(max=6.0)
    assert last(b) == "Clip(x, -, constant.1)"
    x.unsqueeze(axis=0)
    assert b.value("constant.3").tolist() == [0]  # type: ignore[union-attr]
    with pytest.raises(pl.OperatorError, match="is given its input min twice"):
        x.clip(0, min=1)  # type: ignore[misc]


def test_a_reduction_over_no_axis_leaves_the_shape() -> None:
    _, x = builder_with_x()
    assert (x.sum(()).shape, x.sum().shape, x.sum(axis=-1, keepdims=True).shape) == (
        ("n", 4),
        (),
        ("n", 1),
    )


def test_an_operator_of_several_outputs_yields_a_tuple() -> None:
    _, x = builder_with_x()
    values, places = x.topk(2)
    assert (values.shape, places.dtype) == (("n", 2), np.dtype("int64"))


def test_plain_integers_name_axes_and_places() -> None:
    _, x = builder_with_x()
    assert x.unsqueeze(0).shape == (1, "n", 4)
    assert x.gather(1, axis=1).shape == ("n",)


def test_a_tensor_is_split_into_a_number_of_parts_or_into_lengths() -> None:
    _, x = builder_with_x()
    assert [part.shape for part in x.split(2, axis=1)] == [("n", 2), ("n", 2)]
    assert [part.shape for part in x.split([1, 3], axis=1)] == [("n", 1), ("n", 3)]
    assert [part.shape for part in x.split([4], axis=1)] == [("n", 4)]


def test_symbols_of_a_shape_may_stand_in_another() -> None:
    b, x = builder_with_x()
    assert x.reshape("n", 2, 2).shape == ("n", 2, 2)
    assert x.reshape(2, 2, "n").spec.rank == 3
    assert x.reshape([-1]).spec.rank == x.flatten().spec.rank == 1
    assert x.reshape(b.constant([2, -1])).spec.rank == 2
    with pytest.raises(pl.ShapeError, match="how it becomes"):
        x.reshape("m", 4)
    with pytest.raises(pl.ShapeError, match="how it becomes"):
        x.reshape(2, -1, "n")


def test_a_length_of_zero_is_one_in_a_new_shape() -> None:
    b = pl.GraphBuilder("g")
    assert b.input("x", "float32", (0, 4)).reshape(2, 0).shape == (2, 0)


def test_a_tensor_of_known_length_is_unpacked() -> None:
    b = pl.GraphBuilder("g")
    first, second = iter(b.input("x", "float32", (2, 3)))
    assert (first.shape, second.shape) == ((3,), (3,))
    with pytest.raises(TypeError, match="has no known length"):
        list(builder_with_x()[1])


def test_a_slice_may_have_computed_bounds() -> None:
    b, x = builder_with_x()
    end = b.input("end", "int32", ())
    b.output("y", x[end - 1 : end, 1:])
    array = np.arange(12, dtype="float32").reshape(3, 4)
    found = pl.run(b.build(), {"x": array, "end": np.array(2, "int32")}, devices=["cpu"])["y"]
    np.testing.assert_array_equal(found, array[1:2, 1:])


def test_whether_a_tensor_is_true_cannot_be_asked() -> None:
    _, x = builder_with_x()
    with pytest.raises(pl.OperatorError, match="is not known while the graph is built"):
        bool(x > 0)
    with pytest.raises(pl.OperatorError, match="sort them"):
        sorted([x, x.relu()])


def test_text_is_no_operand() -> None:
    b, x = builder_with_x()
    computations: list[Callable[[], Any]] = [
        lambda: x + "/w",
        lambda: "w/" + x,
        lambda: x < "y",
    ]
    for compute in computations:
        with pytest.raises(pl.OperatorError, match=r"b\.tensor\(name\)"):
            compute()
    assert not b.nodes


def test_tensors_of_two_builders_are_not_mixed() -> None:
    b, x = builder_with_x()
    _, other = builder_with_x()
    for compute in (lambda: x + other, lambda: b.op("Relu", other), lambda: b.output("y", other)):
        with pytest.raises(pl.GraphError) as caught:
            compute()
        assert "one of another builder, 'g'" in str(caught.value)
    assert not b.nodes


def test_a_wrong_method_is_an_attribute_error_that_names_those_alike() -> None:
    _, x = builder_with_x()
    with pytest.raises(AttributeError, match="did you mean 'relu'"):
        x.rellu()  # type: ignore[attr-defined]
    assert not hasattr(x, "_repr_html_")


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ((0, 0, 0), "has 3 indices"),
        ((0, 4), "has no index 4 along axis 1"),
        ([True, False], "a mask chooses"),
        (1.5, "an index is not an integer"),
        ((slice(None), "a"), "an index is not an integer"),
        ((..., 0, ...), "two ellipses"),
        (slice(None, None, 0), "a step is 0"),
        (slice(1.5), "is not a bound of a slice"),
        (([0], [1]), "several arrays"),
    ],
)
def test_what_is_no_index_is_refused_and_leaves_nothing_behind(key: Any, text: str) -> None:
    b, x = builder_with_x()
    with pytest.raises(pl.GraphError, match=text):
        _ = x[key]
    assert not b.nodes


def test_an_array_apart_from_an_integer_is_refused() -> None:
    """Numpy puts its axes first then, which is hardly what is meant."""
    b = pl.GraphBuilder("g")
    x = b.input("x", "float32", (2, 3, 4))
    with pytest.raises(pl.GraphError, match="index twice"):
        _ = x[0, :, [1, 2]]
    assert x[:, 0, [1, 2]].shape == (2, 2)


def test_the_rule_that_reads_a_dtype_attribute_is_that_of_cast() -> None:
    b, x = builder_with_x()
    assert x.astype("float32") is x
    assert x.astype("int8").dtype == np.int8
    assert b.nodes[-1].operator.infer is infer_cast


def test_a_method_imports_no_package_that_it_does_not_need() -> None:
    """Operators of dialects are loaded by their names alone: ONNX Runtime takes a second."""
    code = (
        "import sys, plait; x = plait.GraphBuilder().input('x', 'float32', ()); x.relu(); dir(x); "
        "print([name for name in ('onnx', 'onnxruntime', 'trio') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True)
    assert done.stdout == "[]\n", done.stderr
