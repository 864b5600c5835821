from __future__ import annotations

import io
import itertools
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.inliner
import plait as pl
import pytest
from onnx import helper, numpy_helper
from onnx_models import by_kernels, model, node, written
from plait.formats import to_onnx
from plait.graph.core.operator import define
from plait.graph.formats.onnx import load_onnx, read_model
from plait.graph.values.errors import (
    GraphError,
    OperatorError,
    ParseError,
    ShapeError,
    UnknownOperatorError,
)
from plait.graph.values.extras import get_install_command

pytestmark = pytest.mark.usefixtures("forget_operators")

X = {"x": ("float32", ("n", 2))}


def load(proto: Any, folder: Path) -> pl.Graph:
    return load_onnx(written(proto, folder))


def test_a_model_keeps_its_names(tmp_path: Path) -> None:
    nodes = [node("Add", "x w", "middle", name="first"), node("Relu", "middle", "y", name="second")]
    graph = load(model(nodes, X, constants={"w": np.ones(2, "float32")}), tmp_path)

    assert graph.name == "tiny"
    assert graph.inputs == ("x",)
    assert graph.outputs == ("y",)
    assert list(graph.constants) == ["w"]
    assert [each.name for each in graph.nodes] == ["first", "second"]
    assert str(graph.tensors["middle"]) == "float32[n, 2]"


def test_a_model_computes_what_it_says(tmp_path: Path) -> None:
    nodes = [node("Add", "x w", "middle"), node("Relu", "middle", "y")]
    graph = load(model(nodes, X, constants={"w": np.array([1, -2], "float32")}), tmp_path)

    (y,) = by_kernels(graph, {"x": np.array([[1, 1], [-5, 3]], "float32")})
    np.testing.assert_array_equal(y, [[2, 0], [0, 1]])


HOLDERS: dict[str, Callable[[bytes], Any]] = {
    "bytes": bytes,
    "bytearray": bytearray,
    "memoryview": memoryview,
    "file object": io.BytesIO,
}


@pytest.mark.parametrize("source", HOLDERS.values(), ids=HOLDERS)
def test_a_model_is_read_from_what_holds_its_bytes(source: Callable[[bytes], Any]) -> None:
    """Row T21."""
    made = model([node("Relu", "x", "y")], X)
    assert load_onnx(source(made.SerializeToString())) == read_model(made, "model")


def test_a_model_in_memory_is_read_and_left_as_it_is() -> None:
    made = model([node("Relu", "x", "y")], X)
    before = made.SerializeToString()
    assert load_onnx(made) == pl.load(made) == load_onnx(before)
    assert made.SerializeToString() == before
    with pytest.raises(ParseError, match="a ModelProto is of format 'onnx'"):
        pl.load(made, format="plait")


def test_a_model_is_read_from_an_open_file(tmp_path: Path) -> None:
    made = model([node("Relu", "x", "y")], X)
    path = written(made, tmp_path)
    with path.open("rb") as file:
        assert load_onnx(file) == load_onnx(path)
        with pytest.raises(ParseError, match="nor an ONNX model") as caught:  # at its end
            load_onnx(file)
    assert str(path) in str(caught.value)
    with pytest.raises(ParseError, match="closed file"):
        load_onnx(file)


@pytest.mark.parametrize("source", [None, 3, ["m.onnx"], io.StringIO("m")])
def test_what_holds_no_bytes_is_no_model(source: Any) -> None:
    with pytest.raises(ParseError) as caught:
        load_onnx(source)
    assert caught.value.fix


def test_data_beside_a_model_is_not_found_without_its_path(tmp_path: Path) -> None:
    made = model([node("Add", "x w", "y")], X, constants={"w": np.ones(2, "float32")})
    onnx.external_data_helper.set_external_data(made.graph.initializer[0], "w.bin")
    with pytest.raises(ParseError, match=r"beside the model, in 'w\.bin'") as caught:
        load_onnx(made.SerializeToString())
    assert "path" in str(caught.value.fix)


def test_nodes_without_names_get_unique_ones(tmp_path: Path) -> None:
    nodes = [
        node("Relu", "x", "a"),
        node("Relu", "a", "b", name="Relu_3"),
        node("Relu", "b", "c", name="Relu_3"),
        node("Relu", "c", "y"),
    ]
    graph = load(model(nodes, X), tmp_path)

    assert [each.name for each in graph.nodes] == ["Relu_0", "Relu_3", "Relu_3_2", "Relu_3_3"]


def test_nodes_are_put_in_order(tmp_path: Path) -> None:
    nodes = [
        node("Relu", "b", "y", name="last"),
        node("Relu", "x", "a", name="first"),
        node("Relu", "a", "b", name="middle"),
        node("Relu", "x", "z", name="free"),
    ]
    graph = load(model(nodes, X, ["y", "z"]), tmp_path)

    assert [each.name for each in graph.nodes] == ["first", "middle", "last", "free"]


def test_a_cycle_names_its_nodes_in_order(tmp_path: Path) -> None:
    nodes = [
        node("Relu", "x", "fine", name="fine"),
        node("Add", "x c", "a", name="one"),
        node("Relu", "a", "b", name="two"),
        node("Relu", "b", "c", name="three"),
        node("Relu", "c", "y", name="after"),
    ]
    with pytest.raises(ParseError, match=r"cycle: 'two', 'three', 'one'$|cycle: .*") as caught:
        load(model(nodes, X), tmp_path)
    names = caught.value.what.split(": ")[1].split(", ")
    assert sorted(names) == ["'one'", "'three'", "'two'"]
    start = names.index("'one'")
    assert names[start:] + names[:start] == ["'one'", "'two'", "'three'"]


def test_a_node_that_reads_itself_is_a_cycle(tmp_path: Path) -> None:
    with pytest.raises(ParseError, match="cycle: 'self'"):
        load(model([node("Add", "x y", "y", name="self")], X), tmp_path)


def test_a_tensor_that_nothing_writes_is_named_with_its_reader(tmp_path: Path) -> None:
    with pytest.raises(ParseError, match="nothing writes the tensors 'ghost'") as caught:
        load(model([node("Add", "x ghost", "y", name="reader")], X), tmp_path)
    assert "'reader'" in str(caught.value.at)
    assert "model.onnx" in str(caught.value.at)


def test_an_output_that_nothing_writes_is_named(tmp_path: Path) -> None:
    with pytest.raises(GraphError, match="output 'ghost' is written by no node") as caught:
        load(model([node("Relu", "x", "y")], X, ["ghost"]), tmp_path)
    assert "model.onnx" in str(caught.value.at)


@pytest.mark.parametrize("twice", ["x", "w", "y"])
def test_a_tensor_that_is_written_twice_is_named(twice: str, tmp_path: Path) -> None:
    nodes = [node("Add", "x w", "y", name="one"), node("Relu", "x", twice, name="two")]
    with pytest.raises(ParseError, match=rf"tensor '{twice}' is defined twice.*'two'"):
        load(model(nodes, X, constants={"w": np.ones(2, "float32")}), tmp_path)


def test_an_input_that_is_listed_twice_is_named(tmp_path: Path) -> None:
    proto = model([node("Relu", "x", "y")], X)
    proto.graph.input.append(proto.graph.input[0])
    with pytest.raises(ParseError, match="'x' is defined twice"):
        load(proto, tmp_path)


def test_a_constant_that_is_listed_twice_is_named(tmp_path: Path) -> None:
    proto = model([node("Add", "x w", "y")], X, constants={"w": np.ones(2, "float32")})
    proto.graph.initializer.append(proto.graph.initializer[0])
    with pytest.raises(ParseError, match="constant 'w' is defined twice"):
        load(proto, tmp_path)


def test_a_constant_without_a_name_is_refused(tmp_path: Path) -> None:
    proto = model([node("Relu", "x", "y")], X)
    proto.graph.initializer.append(numpy_helper.from_array(np.ones(2)))
    with pytest.raises(ParseError, match="a constant has no name"):
        load(proto, tmp_path)


def test_an_output_that_is_listed_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(GraphError, match="an output is listed twice"):
        load(model([node("Relu", "x", "y")], X, ["y", "y"]), tmp_path)


def test_a_model_without_outputs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ParseError, match="no output"):
        load(model([node("Relu", "x", "y")], X, []), tmp_path)


def test_constants_that_are_inputs_too_are_constants(tmp_path: Path) -> None:
    inputs = {**X, "w": ("float32", (2,))}
    constants = {"w": np.ones(2, "float32")}
    graph = load(model([node("Add", "x w", "y")], inputs, constants=constants), tmp_path)

    assert graph.inputs == ("x",)
    assert list(graph.constants) == ["w"]


def test_constants_that_nobody_reads_are_left_out(tmp_path: Path) -> None:
    proto = model([node("Relu", "x", "y")], X)
    proto.graph.initializer.append(helper.make_tensor("text", onnx.TensorProto.INT4, [1], [1]))

    assert not load(proto, tmp_path).constants


def test_constants_are_read_only(tmp_path: Path) -> None:
    proto = model([node("Add", "x w", "y")], X, constants={"w": np.ones(2, "float32")})

    assert not load(proto, tmp_path).constants["w"].flags.writeable


@pytest.mark.parametrize(
    ("attribute", "expected"),
    [
        ({"value": numpy_helper.from_array(np.array([1, 2], "int8"))}, np.array([1, 2], "int8")),
        ({"value_float": 1.5}, np.array(1.5, "float32")),
        ({"value_floats": [1.5, 2]}, np.array([1.5, 2], "float32")),
        ({"value_int": 3}, np.array(3, "int64")),
        ({"value_ints": [3, 4]}, np.array([3, 4], "int64")),
    ],
)
def test_constant_nodes_become_constants(
    attribute: dict[str, Any], expected: Any, tmp_path: Path
) -> None:
    nodes = [node("Constant", "", "c", **attribute), node("Relu", "c", "y")]
    graph = load(model(nodes, {}), tmp_path)

    assert [each.op for each in graph.nodes] == ["Relu"]
    np.testing.assert_array_equal(graph.constants["c"], expected, strict=True)
    assert not graph.constants["c"].flags.writeable


@pytest.mark.parametrize(
    "attributes",
    [
        {},
        {"value_int": 1, "value_float": 1.0},
    ],
)
def test_a_constant_that_is_no_number_is_refused(
    attributes: dict[str, Any], tmp_path: Path
) -> None:
    nodes = [node("Constant", "", "c", name="text", **attributes), node("Relu", "c", "y")]
    with pytest.raises(ParseError, match="a constant is given as") as caught:
        load(model(nodes, {}), tmp_path)
    assert "'text'" in str(caught.value.at)


def test_a_copy_of_a_constant_is_that_constant(tmp_path: Path) -> None:
    nodes = [node("Identity", "w", "copy"), node("Add", "x copy", "y")]
    graph = load(model(nodes, X, constants={"w": np.ones(2, "float32")}), tmp_path)

    assert [each.op for each in graph.nodes] == ["Add"]
    assert np.shares_memory(graph.constants["copy"], graph.constants["w"])


def test_a_constant_that_is_an_output_reaches_it_by_a_copy(tmp_path: Path) -> None:
    nodes = [node("Add", "x w", "y")]
    graph = load(model(nodes, X, ["y", "w"], {"w": np.ones(2, "float32")}), tmp_path)

    assert graph.outputs == ("y", "w")
    assert graph.producers["w"].op == "Identity"
    assert graph.producers["y"].inputs == ("x", *graph.constants)


def test_a_copied_constant_that_is_an_output_stays_a_copy(tmp_path: Path) -> None:
    nodes = [node("Identity", "w", "copy")]
    graph = load(model(nodes, {}, ["copy"], {"w": np.ones(2, "float32")}), tmp_path)

    assert graph.producers["copy"].op == "Identity"


def test_lengths_that_are_not_given_become_new_symbols(tmp_path: Path) -> None:
    shape: Sequence[int | str | None] = ["n", None, 3, "", "?0", "?"]
    proto = model([node("Relu", "x", "y")], {"x": ("float32", shape)})
    proto.graph.input[0].type.tensor_type.shape.dim.add().dim_value = -1

    assert load(proto, tmp_path).tensors["x"].shape == ("n", "?1", 3, "?2", "?0", "?3", "?4")


def test_an_input_of_unknown_rank_stays_unknown(tmp_path: Path) -> None:
    graph = load(model([node("Relu", "x", "y")], {"x": ("float32", None)}), tmp_path)

    assert graph.tensors["y"] == pl.TensorSpec("float32", None)


def test_an_input_that_is_no_tensor_is_refused(tmp_path: Path) -> None:
    proto = model([node("Relu", "x", "y")], X)
    proto.graph.input[0].CopyFrom(
        helper.make_tensor_sequence_value_info("x", onnx.TensorProto.FLOAT, None)
    )
    with pytest.raises(ParseError, match="not a tensor but: sequence_type") as caught:
        load(proto, tmp_path)
    assert "input 'x'" in str(caught.value.at)


@pytest.mark.parametrize(("element_type", "name"), [(22, "INT4"), (0, "UNDEFINED"), (999, "999")])
def test_an_input_of_a_foreign_element_type_is_refused(
    element_type: int, name: str, tmp_path: Path
) -> None:
    proto = model([node("Relu", "x", "y")], X)
    proto.graph.input[0].type.tensor_type.elem_type = element_type
    with pytest.raises(ParseError, match=f"type {name} are not supported") as caught:
        load(proto, tmp_path)
    assert "input 'x'" in str(caught.value.at)


def test_operators_that_are_missing_are_all_named(tmp_path: Path) -> None:
    nodes = [node("NoSuch", "x", f"a{i}", name=f"no_{i}") for i in range(5)]
    nodes.append(node("Other", "x", "b"))
    nodes.append(helper.make_node("Relu", ["x"], ["y"], name="far", domain="com.example"))

    with pytest.raises(UnknownOperatorError) as caught:
        load(model(nodes, X), tmp_path)
    assert caught.value.what == (
        "operators that are not supported: NoSuch ('no_0', 'no_1', 'no_2' ... 5 in all), "
        "Other ('b'), com.example.Relu ('far')"
    )
    assert str(caught.value.at).endswith("model.onnx")
    assert "@plait.operator" in str(caught.value.fix)


@pytest.mark.parametrize("op", ["SequenceInsert", "ConcatFromSequence", "Optional"])
def test_what_is_no_tensor_is_refused_and_tensors_are_advised(op: str, tmp_path: Path) -> None:
    with pytest.raises(UnknownOperatorError, match=rf"{op} \('pair'\)") as caught:
        load(model([node(op, "x", "s", name="pair"), node("Relu", "x", "y")], X), tmp_path)
    assert "tensors in place of sequences, optional values and maps" in str(caught.value.fix)


def test_an_operator_of_another_domain_can_be_defined(tmp_path: Path) -> None:
    @pl.operator(name="com.example.Twice")
    def twice(x: Any, *, times: int = 2) -> Any:
        return x * times

    nodes = [helper.make_node("Twice", ["x"], ["y"], domain="com.example", times=3)]
    graph = load(model(nodes, X), tmp_path)

    assert graph.nodes[0].operator.function is twice
    assert graph.nodes[0].attributes == {"times": 3}


def test_the_default_domain_has_two_names(tmp_path: Path) -> None:
    nodes = [helper.make_node("Relu", ["x"], ["y"], domain="ai.onnx")]

    assert load(model(nodes, X), tmp_path).nodes[0].op == "Relu"


@pytest.mark.parametrize("opset", [5, 29])
def test_an_opset_out_of_range_is_refused(opset: int, tmp_path: Path) -> None:
    proto = model([node("Relu", "x", "y")], X, opset=opset)
    with pytest.raises(ParseError, match=f"uses opset {opset}, plait reads 6 to 28") as caught:
        load(proto, tmp_path)
    assert "version_converter" in str(caught.value.fix)


def test_an_older_opset_is_read_where_its_operators_never_changed(tmp_path: Path) -> None:
    inputs = {"x": ("bool", (3,))}

    graph = load(model([node("Not", "x", "y")], inputs, opset=1), tmp_path)

    assert [made.op for made in graph.nodes] == ["Not"]


def test_an_older_opset_is_refused_where_it_lacks_an_operator(tmp_path: Path) -> None:
    nodes = [node("Not", "x", "z"), node("BitwiseNot", "w", "y")]
    inputs = {"x": ("bool", (3,)), "w": ("int32", (3,))}

    with pytest.raises(ParseError, match="uses opset 1"):
        load(model(nodes, inputs, ["y", "z"], opset=1), tmp_path)


def test_an_element_type_of_zero_means_that_none_is_given(tmp_path: Path) -> None:
    scale = {"scale": np.array(0.5, np.float32)}
    nodes = [node("DequantizeLinear", "x scale", "y", output_dtype=0)]

    graph = load(model(nodes, {"x": ("int8", (3,))}, constants=scale, opset=23), tmp_path)

    assert graph.tensors["y"] == pl.TensorSpec("float32", (3,))


@pytest.mark.parametrize("opset", [6, 28])
def test_the_oldest_and_newest_opsets_are_read(opset: int, tmp_path: Path) -> None:
    assert load(model([node("Relu", "x", "y")], X, opset=opset), tmp_path).outputs == ("y",)


def test_a_model_that_names_no_opset_counts_as_the_first(tmp_path: Path) -> None:
    proto = model([node("Relu", "x", "y")], X)
    del proto.opset_import[:]
    with pytest.raises(ParseError, match="uses opset 1"):
        load(proto, tmp_path)


def test_a_model_of_another_domain_needs_no_opset(tmp_path: Path) -> None:
    pl.operator(name="com.example.Same")(lambda x: x)
    proto = model([helper.make_node("Same", ["x"], ["y"], domain="com.example")], X)
    del proto.opset_import[:]

    assert load(proto, tmp_path).nodes[0].op == "com.example.Same"


def test_sparse_constants_are_refused(tmp_path: Path) -> None:
    proto = model([node("Relu", "x", "y")], X)
    values = helper.make_tensor("sparse", onnx.TensorProto.FLOAT, [1], [1.0])
    indices = helper.make_tensor("i", onnx.TensorProto.INT64, [1], [0])
    proto.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [5]))
    with pytest.raises(ParseError, match="sparse constants are not supported"):
        load(proto, tmp_path)


def test_a_graph_inside_of_a_node_that_has_none_is_refused(tmp_path: Path) -> None:
    inner = helper.make_graph([], "inner", [], [])
    with pytest.raises(ParseError, match="Relu holds a graph") as caught:
        load(model([node("Relu", "x", "y", name="outer", body=inner)], X), tmp_path)
    assert "'outer'" in str(caught.value.at)


def test_text_that_is_no_unicode_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ParseError, match="'mode' is not text in UTF-8"):
        load(model([node("Relu", "x", "y", mode=b"\xff")], X), tmp_path)


def test_names_that_are_no_unicode_are_escaped(tmp_path: Path) -> None:
    data = model([node("Relu", "x", "name")], X, ["name"]).SerializeToString()
    path = tmp_path / "model.onnx"
    path.write_bytes(data.replace(b"name", b"n\xffme"))

    assert load_onnx(path).outputs == (r"n\xffme",)


def test_an_attribute_that_is_given_twice_is_refused(tmp_path: Path) -> None:
    proto = model([node("Relu", "x", "y", alpha=1)], X)
    proto.graph.node[0].attribute.append(proto.graph.node[0].attribute[0])
    with pytest.raises(ParseError, match="'alpha' is given twice"):
        load(proto, tmp_path)


def test_an_attribute_that_the_operator_lacks_is_named(tmp_path: Path) -> None:
    with pytest.raises(OperatorError, match="Relu has no attribute 'alpha'") as caught:
        load(model([node("Relu", "x", "y", name="bent", alpha=1.0)], X), tmp_path)
    assert "'bent'" in str(caught.value.at)
    assert str(caught.value.at).endswith("model.onnx")


def test_shapes_that_do_not_fit_name_node_and_file(tmp_path: Path) -> None:
    proto = model([node("Add", "x w", "y", name="sum")], X, constants={"w": np.ones(3, "float32")})
    with pytest.raises(ShapeError, match="broadcast") as caught:
        load(proto, tmp_path)
    assert "'sum'" in str(caught.value.at)
    assert str(caught.value.at).endswith("model.onnx")


def test_optional_outputs_that_nobody_reads_are_not_asked_for(tmp_path: Path) -> None:
    define("test.Three", inputs="x", outputs="a b? c?")(lambda call: [call.spec(0)] * 3)
    unread = helper.make_node("Three", ["x"], ["y", "unread", "read"], domain="test")
    nodes = [unread, node("Relu", "read", "z")]
    graph = load(model(nodes, X, ["y", "z"]), tmp_path)

    assert graph.nodes[0].outputs == ("y", "", "read")


def test_required_outputs_that_nobody_reads_stay(tmp_path: Path) -> None:
    define("test.Two", inputs="x", outputs="a b")(lambda call: [call.spec(0)] * 2)
    nodes = [helper.make_node("Two", ["x"], ["y", "unread"], domain="test")]

    assert load(model(nodes, X), tmp_path).nodes[0].outputs == ("y", "unread")


def test_absent_inputs_at_the_end_are_left_out(tmp_path: Path) -> None:
    define("test.Optional", inputs="x a? b?")(lambda call: [call.spec(0)])
    nodes = [helper.make_node("Optional", ["x", "", ""], ["y"], domain="test")]

    assert load(model(nodes, X), tmp_path).nodes[0].inputs == ("x",)


def test_a_shape_rule_that_fails_unexpectedly_names_the_node(tmp_path: Path) -> None:
    define("test.Broken", inputs="x")(lambda call: [call.spec(0)][1:2][0:][5])  # type: ignore[arg-type,return-value]
    nodes = [helper.make_node("Broken", ["x"], ["y"], name="culprit", domain="test")]
    with pytest.raises(
        ShapeError, match=r"test\.Broken cannot be understood: IndexError"
    ) as caught:
        load(model(nodes, X), tmp_path)
    assert "'culprit'" in str(caught.value.at)


@pytest.mark.slow
def test_names_stay_unique_among_thousands_alike_in_little_time(tmp_path: Path) -> None:
    names = ["x", *(f"t{i}" for i in range(20_000)), "y"]
    nodes = [node("Relu", a, b, name="same") for a, b in itertools.pairwise(names)]
    graph = load(model(nodes, X), tmp_path)

    assert [each.name for each in graph.nodes][:3] == ["same", "same_2", "same_3"]
    assert len({each.name for each in graph.nodes}) == 20_001


def test_an_error_without_advice_gets_some(tmp_path: Path) -> None:
    @define("test.Picky", inputs="x")
    def refuse(call: Any) -> Any:
        raise ShapeError("never")

    nodes = [helper.make_node("Picky", ["x"], ["y"], domain="test")]
    with pytest.raises(ShapeError, match="never") as caught:
        load(model(nodes, X), tmp_path)
    assert caught.value.fix


def test_a_model_without_a_name_is_called_like_its_file(tmp_path: Path) -> None:
    proto = model([node("Relu", "x", "y")], X)
    proto.graph.ClearField("name")

    assert load_onnx(written(proto, tmp_path, "detector.onnx")).name == "detector"


def test_without_the_onnx_package_the_extra_is_named(tmp_path: Path) -> None:
    path = written(model([node("Relu", "x", "y")], X), tmp_path)
    code = (
        "import sys; sys.modules['onnx'] = None\n"
        "import plait\n"
        f"try: plait.load({str(path)!r})\n"
        "except plait.graph.values.errors.ParseError as error: print(error)"
    )
    answer = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True)

    assert "takes the package 'onnx'" in answer.stdout
    assert get_install_command("onnx") in answer.stdout


def test_a_file_beyond_protobufs_limit_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "huge.onnx"
    with path.open("wb") as file:
        file.truncate(2**31)
    with pytest.raises(ParseError, match="larger than 2 GB") as caught:
        load_onnx(path)
    assert "external data" in str(caught.value.fix)


def test_a_split_into_equal_parts_says_how_many() -> None:
    b = pl.GraphBuilder("split")
    for i, part in enumerate(b.op("Split", b.input("x", "float32", (6,)), outputs=3)):
        b.output(f"part{i}", part)
    onnx.checker.check_model(to_onnx(b.build()), full_check=True)
