"""Editing a graph by hand: what dangles, what is linked, and the graph that comes out."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import plait as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper
from plait.graph.building.editing import Editor
from plait.graph.core.ir import Graph
from plait.graph.core.parameters import FLT_MAX, Number
from plait.graph.values.errors import GraphError
from random_graphs import graphs


def chain() -> Graph:
    """Return x -> relu -> exp -> y, and relu -> neg -> z."""
    b = pl.GraphBuilder("chain")
    x = b.input("x", "float32", ("n", 2))
    (r,) = b.op("Relu", x, name="relu", outputs=["r"])
    b.output("y", b.op("Exp", r, name="exp", outputs=["y"])[0])
    b.output("z", b.op("Neg", r, name="neg", outputs=["z"])[0])
    return b.build()


def test_an_editor_that_did_nothing_yields_an_equal_graph() -> None:
    graph = chain()
    assert graph.edit().result() == graph


def test_the_graph_that_is_edited_stays_as_it_was() -> None:
    graph = chain()
    graph.edit().remove("exp")
    assert graph == chain()


def test_readers_of_a_removed_node_dangle() -> None:
    editor = chain().edit()
    editor.remove("relu")
    assert editor.dangling_inputs == (("r", "exp"), ("r", "neg"))


def test_a_node_links_with_readers_that_were_there_before_it() -> None:
    editor = chain().edit()
    editor.remove("relu")
    editor.add("Abs", "x", name="abs", outputs=["r"])
    assert editor.dangling_inputs == ()
    assert editor.is_linked("abs", "r", "exp")
    assert [node.name for node in editor.result().nodes] == ["abs", "exp", "neg"]


def test_an_output_with_other_readers_does_not_dangle_when_one_goes() -> None:
    """LightNet lists it all the same (seeds L38)."""
    editor = chain().edit()
    editor.remove("exp")
    assert not editor.dangling_outputs
    editor.remove("neg")
    assert editor.dangling_outputs == ("r",)


def test_a_dangling_input_is_an_error_that_names_the_node() -> None:
    editor = chain().edit()
    editor.remove("relu")
    with pytest.raises(pl.GraphError, match="'r' dangles") as caught:
        editor.result()
    assert "'exp'" in str(caught.value)


def test_an_output_that_nothing_writes_is_an_error() -> None:
    editor = chain().edit()
    editor.remove("exp")
    with pytest.raises(pl.GraphError, match="nothing writes the output 'y'"):
        editor.check()


def test_dangling_outputs_are_no_error() -> None:
    editor = chain().edit()
    editor.add("Sqrt", "r", outputs=["unused"])
    assert editor.dangling_outputs == ("unused",)
    assert "unused" in editor.result().tensors


def test_two_nodes_of_one_name_are_refused() -> None:
    with pytest.raises(pl.GraphError, match="there is a node 'relu' already"):
        chain().edit().add("Abs", "x", name="relu")


def test_a_tensor_is_written_once() -> None:
    with pytest.raises(pl.GraphError, match="'r' would be defined twice"):
        chain().edit().add("Abs", "x", outputs=["r"])


@pytest.mark.parametrize("outputs", [1, 2])
def test_a_wrong_number_of_inputs_or_outputs_is_refused(outputs: int) -> None:
    with pytest.raises(pl.OperatorError):
        chain().edit().add("Abs", "x", "x", outputs=outputs)


def test_unknown_nodes_are_named() -> None:
    with pytest.raises(pl.GraphError, match="there is no node 'none'"):
        chain().edit().remove("none")


def test_links_are_cut_and_made_again() -> None:
    editor = chain().edit()
    assert editor.unlink("relu", "r", "exp")
    assert not editor.unlink("relu", "r", "exp")
    assert editor.dangling_inputs == (("r", "exp"),)
    assert [node.name for node in editor.readers("r")] == ["neg"]
    assert editor.link("relu", "r", "exp")
    assert not editor.link("relu", "r", "exp")
    assert editor.result() == chain()


@pytest.mark.parametrize(
    "edge",
    [("exp", "y", "neg"), ("relu", "x", "exp"), ("relu", "z", "neg"), ("none", "r", "exp")],
)
def test_what_is_no_edge_is_neither_cut_nor_made(edge: tuple[str, str, str]) -> None:
    editor = chain().edit()
    assert not editor.unlink(*edge)
    assert not editor.link(*edge)
    assert editor.result() == chain()


def test_a_new_writer_is_linked_to_readers_that_were_cut_off() -> None:
    editor = chain().edit()
    editor.unlink("relu", "r", "exp")
    editor.insert(editor.remove("relu"))
    assert editor.dangling_inputs == ()


def test_a_node_can_be_rewired() -> None:
    editor = chain().edit()
    editor.rewire("exp", {"r": "z"})
    graph = editor.result()
    assert [node.name for node in graph.nodes] == ["relu", "neg", "exp"]
    assert graph.nodes[-1].inputs == ("z",)


def test_only_what_a_node_reads_can_be_rewired() -> None:
    with pytest.raises(pl.GraphError, match="does not read 'x'"):
        chain().edit().rewire("exp", {"x": "r"})


def test_a_cycle_is_an_error_that_names_its_nodes() -> None:
    editor = chain().edit()
    editor.rewire("relu", {"x": "z"})
    with pytest.raises(pl.GraphError, match=r"cycle: ('relu', 'neg'|'neg', 'relu')"):
        editor.result()


def test_an_isolated_node_is_no_cycle() -> None:
    """LightNet takes it for one (seeds L41)."""
    editor = chain().edit()
    for name in ("relu", "exp", "neg"):
        editor.remove(name)
    editor.forget("y")
    editor.forget("z")
    editor.add("Abs", "x", name="abs", outputs=["alone"])
    editor.output("alone")
    assert [node.name for node in editor.result().nodes] == ["abs"]


def test_inputs_become_constants() -> None:
    editor = chain().edit()
    editor.forget("x")
    editor.constant("x", np.ones((3, 2), np.float32))
    graph = editor.result()
    assert graph.inputs == ()
    assert graph.tensors["y"].shape == (3, 2)


def softened() -> Graph:
    """Return Reshape(Celu(x)), transposed by a node that has a permutation."""
    b = pl.GraphBuilder("softened")
    bent = b.op("Celu", b.input("x", "float32", (2, 3)), alpha=0.5, name="bend")
    b.output("y", b.op("Transpose", bent, perm=(0, 1), name="turn"))
    return b.build()


def test_one_attribute_of_a_node_is_set_and_what_follows_is_inferred_again() -> None:
    """Row L9: a node by its name, then the attribute by its own."""
    graph = softened()
    editor = graph.edit()
    assert editor.set_attribute("bend", "alpha", 2).attributes["alpha"] == 2.0
    assert editor.set_attribute("turn", "perm", [1, 0]).attributes["perm"] == (1, 0)
    changed = editor.result()
    assert changed.node("bend").attributes == {"alpha": 2.0}
    assert changed.tensors["y"].shape == (3, 2)
    assert graph.node("bend").attributes["alpha"] == 0.5
    assert pl.run(changed, {"x": -np.ones((2, 3), "float32")})["y"][0, 0] == pytest.approx(
        2 * np.expm1(-0.5)
    )


def test_an_attribute_set_to_none_has_its_default() -> None:
    editor = softened().edit()
    assert editor.set_attribute("bend", "alpha", None).attributes["alpha"] == 1.0


def test_numbers_of_32_bits_are_set_in_the_view_that_fits() -> None:
    """Row L9: by the saturating setter of rows L32 and L33."""
    editor = softened().edit()
    largest = editor.set_attribute("bend", "alpha", Number.of(1e300))
    assert largest.attributes["alpha"] == FLT_MAX
    b = pl.GraphBuilder("joined")
    x = b.input("x", "float32", (2, 3))
    b.output("y", b.op("Concat", x, x, axis=0, name="join"))
    joined = b.build().edit()
    assert joined.set_attribute("join", "axis", Number.of(1.9)).attributes["axis"] == 1
    assert joined.result().tensors["y"].shape == (2, 6)


@pytest.mark.parametrize(
    ("name", "attribute", "value", "complaint", "fix"),
    [
        ("bent", "alpha", 1.0, "no node 'bent'", "did you mean 'bend'"),
        ("nothing", "alpha", 1.0, "no node 'nothing'", "see the graph's nodes"),
        ("bend", "beta", 1.0, "Celu has no attribute 'beta'", "it has: alpha"),
        ("bend", "alpha", "much", "must be a number, got 'much'", "pass a number"),
        ("turn", "perm", Number.of(1), "must be a sequence", "pass a sequence"),
    ],
)
def test_what_cannot_be_set_is_refused_and_nothing_changes(
    name: str, attribute: str, value: object, complaint: str, fix: str
) -> None:
    editor = softened().edit()
    with pytest.raises(pl.GraphError, match=complaint) as caught:
        editor.set_attribute(name, attribute, value)
    assert fix in str(caught.value.fix)
    assert editor.result() == softened()


def test_shapes_downstream_of_a_change_are_inferred_again() -> None:
    editor = chain().edit()
    editor.remove("relu")
    editor.add("Transpose", "x", name="transpose", outputs=["r"], perm=(1, 0))
    tensors = editor.result().tensors
    assert tensors["y"].shape == tensors["z"].shape == (2, "n")


def test_specs_of_what_is_not_touched_are_kept() -> None:
    """Also what a file knows better than the rules do."""
    graph = chain()
    wider = {**graph.tensors, "z": pl.TensorSpec("float32", ("rows", 2))}
    editor = Graph("g", graph.inputs, graph.outputs, graph.nodes, wider, {}).edit()
    editor.remove("exp")
    editor.add("Abs", "r", name="exp", outputs=["y"])
    assert editor.result().tensors["z"].shape == ("rows", 2)


def test_a_value_that_shapes_follow_from_may_be_replaced() -> None:
    b = pl.GraphBuilder("flat")
    x = b.input("x", "float32", (2, 3))
    shape = b.constant(np.array([6]), name="shape")
    b.output("y", b.op("Reshape", x, shape, name="reshape", outputs=["y"])[0])
    editor = b.build().edit()
    editor.forget("shape")
    editor.constant("shape", np.array([3, 2]))
    assert editor.result().tensors["y"].shape == (3, 2)


def test_what_nobody_reads_any_more_is_left_out() -> None:
    b = pl.GraphBuilder("add")
    x = b.input("x", "float32", (2,))
    b.output("y", b.op("Add", x, np.ones(2, np.float32), name="add", outputs=["y"])[0])
    editor = b.build().edit()
    editor.remove("add")
    editor.add("Abs", "x", outputs=["y"])
    assert editor.result().constants == {}


def test_names_that_are_made_are_free() -> None:
    editor = chain().edit()
    names = [editor.add("Neg", "r").name for _ in range(3)]
    assert len({*names, "neg"}) == 4
    assert len(editor.dangling_outputs) == 3


def test_what_is_neither_public_nor_constant_cannot_be_forgotten() -> None:
    with pytest.raises(pl.GraphError, match="'r' is not an input, constant or output"):
        chain().edit().forget("r")


def test_a_defined_tensor_cannot_become_an_input() -> None:
    editor = chain().edit()
    with pytest.raises(pl.GraphError, match="'r' is defined already"):
        editor.input("r", "float32", (2,))
    editor.remove("relu")
    assert editor.input("r", "float32", ("n", 2)) == "r"
    assert editor.result().inputs == ("x", "r")


def test_something_must_be_fetched() -> None:
    editor = chain().edit()
    editor.forget("y")
    editor.forget("z")
    with pytest.raises(pl.GraphError, match="nothing is fetched"):
        editor.result()


TENSORS = ("x", "a", "b", "c", "d")


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("remove"), st.sampled_from(TENSORS[1:]), st.just("")),
            st.tuples(st.just("add"), st.sampled_from(TENSORS[1:]), st.sampled_from(TENSORS)),
            st.tuples(st.just("rewire"), st.sampled_from(TENSORS[1:]), st.sampled_from(TENSORS)),
        ),
        max_size=12,
    )
)
def test_any_edits_leave_what_a_plain_table_says(edits: list[tuple[str, str, str]]) -> None:
    b = pl.GraphBuilder("g")
    b.output("a", b.op("Neg", b.input("x", "float32", (2,)), name="a", outputs=["a"])[0])
    editor, reads = b.build().edit(), {"a": "x"}
    for kind, name, source in edits:
        if kind == "add" and name not in reads:
            editor.add("Neg", source, name=name, outputs=[name])
            reads[name] = source
        elif kind == "remove" and name in reads:
            editor.remove(name)
            del reads[name]
        elif kind == "rewire" and name in reads:
            editor.rewire(name, {reads[name]: source})
            reads[name] = source
    defined = {"x", *reads}
    assert set(editor.dangling_inputs) == {(t, n) for n, t in reads.items() if t not in defined}
    read = {*reads.values(), "a"}
    assert set(editor.dangling_outputs) == {name for name in reads if name not in read}
    if _is_whole(reads):
        order = [node.name for node in editor.result().nodes]
        assert all(
            reads[name] == "x" or order.index(reads[name]) < order.index(name) for name in reads
        )
        assert set(order) == set(reads)
    else:
        with pytest.raises(pl.GraphError):
            editor.result()


def _is_whole(reads: dict[str, str]) -> bool:
    """True when every tensor leads back to the input, and what is fetched is written."""
    for name in reads:
        for _ in range(len(reads) + 1):
            name = reads.get(name, name)
        if name != "x":
            return False
    return "a" in reads


def make_reshaping_model() -> Any:
    """Make an ONNX model with two inputs that have initializers."""
    weight = helper.make_tensor("w", TensorProto.FLOAT, [4], [1, 2, 3, 4])
    shape = helper.make_tensor("shape", TensorProto.INT64, [2], [2, 2])
    given = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, [4]),
        helper.make_tensor_value_info("w", TensorProto.FLOAT, [4]),
        helper.make_tensor_value_info("shape", TensorProto.INT64, [2]),
    ]
    nodes = [
        helper.make_node("Add", ["x", "w"], ["sum"]),
        helper.make_node("Reshape", ["sum", "shape"], ["y"]),
    ]
    made = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    graph = helper.make_graph(nodes, "g", given, made, [weight, shape])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=4)


def test_initializers_that_are_inputs_are_fed_when_asked_for() -> None:
    model, x = make_reshaping_model(), np.zeros(4, np.float32)
    graph = pl.load(model)
    assert graph.inputs == ("x",)
    assert graph.tensors["y"].shape == (2, 2)
    with pytest.raises(pl.FeedError, match="has no input 'w'") as caught:
        pl.run(graph, {"x": x, "w": x})
    assert "plait.load(path, feed=['w'])" in str(caught.value.fix)

    graph = pl.load(model, feed="w")
    assert graph.inputs == ("x", "w")
    assert pl.run(graph, {"x": x, "w": x + 5})["y"].tolist() == [[5, 5], [5, 5]]


def test_a_shape_that_is_fed_is_not_known_ahead() -> None:
    model, x = make_reshaping_model(), np.zeros(4, np.float32)
    graph = pl.load(model, feed=["shape"])
    assert not graph.tensors["y"].is_static
    for shape in ([4, 1], [1, 4]):
        feeds = {"x": x, "shape": np.array(shape)}
        expected = onnxruntime.InferenceSession(model.SerializeToString()).run(None, feeds)[0]
        np.testing.assert_array_equal(pl.run(graph, feeds)["y"], expected)


def test_only_constants_are_made_inputs() -> None:
    with pytest.raises(GraphError, match="'x' is not a constant"):
        pl.load(make_reshaping_model(), feed=["x"])


def find_branches(editor: Editor) -> list[str]:
    return [node.name for node in editor.depth_first()]


def test_depth_first_order_follows_a_branch_to_its_end() -> None:
    b = pl.GraphBuilder("branches")
    x = b.input("x", "float32", (2,))
    first, second = b.op("Neg", x, name="a"), b.op("Abs", x, name="b")
    first, second = b.op("Relu", first, name="a2"), b.op("Relu", second, name="b2")
    b.output("y", b.op("Add", first, second, name="sum"))
    b.output("z", b.op("Exp", first, name="end"))
    editor = b.build().edit()
    assert [node.name for node in editor.nodes] == ["a", "b", "a2", "b2", "sum", "end"]
    assert find_branches(editor) == ["a", "a2", "end", "b", "b2", "sum"]


@given(graphs())
def test_depth_first_order_has_every_node_after_its_writers(graph: Graph) -> None:
    names = find_branches(graph.edit())
    assert sorted(names) == sorted(node.name for node in graph.nodes)
    places = {name: place for place, name in enumerate(names)}
    for node in graph.nodes:
        writers = [graph.producers.get(tensor) for tensor in node.inputs]
        assert all(places[one.name] < places[node.name] for one in writers if one is not None)


def test_a_cycle_has_no_depth_first_order() -> None:
    editor = chain().edit()
    editor.rewire("relu", {"x": "z"})
    with pytest.raises(GraphError, match="in a cycle: "):
        editor.depth_first()


def name_isolated(editor: Editor) -> list[str]:
    return [node.name for node in editor.isolated_nodes]


def test_nodes_without_links_are_isolated() -> None:
    editor = chain().edit()
    assert name_isolated(editor) == []
    editor.remove("relu")
    assert name_isolated(editor) == ["exp", "neg"]
    editor.add("Relu", "x", name="again", outputs=["r"])
    assert name_isolated(editor) == []
    editor.unlink("again", "r", "exp")
    assert name_isolated(editor) == ["exp"]
