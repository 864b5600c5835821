"""Operators as data (row L52): what files define, how it runs, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import plait as pl
import pytest
from command_line import assert_mistake, plait
from hypothesis import given
from hypothesis import strategies as st
from plait.formats import load_operators
from plait.graph.core.infer import get_cost, infer_shapes
from plait.graph.core.operator import list_operators, unregister_operator
from plait.graph.formats.definitions import DEEPEST, MOST_NODES

SHRINK: dict[str, Any] = {
    "name": "test.Shrink",
    "inputs": ["x"],
    "outputs": ["y"],
    "attributes": {"bound": {"kind": "float", "default": 0.5, "minimum": 0}},
    "rules": [
        {"cond": ["self.params[bound] == 0"], "replace": ["Identity"]},
        {
            "replace": ["Abs a", "Sub s", "Relu r", "Sign g", "Mul m"],
            "details": [
                "a.ins[0] = self.ins[x]",
                "s.ins[0] = a.outs[0]",
                "s.ins[1] = self.params[bound]",
                "r.ins[0] = s.outs[0]",
                "g.ins[0] = self.ins[x]",
                "m.ins[0] = g.outs[0]",
                "m.ins[1] = r.outs[0]",
                "m.outs[0] = self.outs[y]",
            ],
        },
    ],
}
"""sign(x) max(|x| - bound, 0)."""

ENDS: dict[str, Any] = {
    "name": "test.Ends",
    "inputs": ["x", "factor?"],
    "outputs": ["low", "high"],
    "rules": [
        {"cond": ["self.ins[x].ndim != 1"], "err": "only vectors have ends"},
        {
            "cond": ["self.ins[factor] == null"],
            "replace": ["ReduceMin a", "ReduceMax b"],
            "details": [
                "a.ins[0] = self.ins[x]",
                "b.ins[0] = self.ins[x]",
                "b.outs[0] = self.outs[high]",
                "a.outs[0] = self.outs[low]",
            ],
        },
        {
            "replace": ["Mul m", "test.Ends e"],
            "details": [
                "m.ins[0] = self.ins[x]",
                "m.ins[1] = self.ins[factor]",
                "e.ins[0] = m.outs[0]",
                "e.outs[0] = self.outs[low]",
                "e.outs[1] = self.outs[high]",
            ],
        },
    ],
}


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    """Unregister what a test has registered."""
    before = set(list_operators())
    yield
    for name in set(list_operators()) - before:
        unregister_operator(name)


def file(*defined: Mapping[str, Any], **top: object) -> bytes:
    return json.dumps({"operators": defined, **top}).encode()


def ends() -> list[dict[str, Any]]:
    """Return Ends as two: an operator cannot be defined by itself."""
    plain = {**ENDS, "rules": ENDS["rules"][:2]}
    scaled = json.loads(json.dumps(ENDS["rules"][2]).replace("test.Ends e", "test.Plain e"))
    return [{**plain, "name": "test.Plain"}, {**ENDS, "rules": [*ENDS["rules"][:2], scaled]}]


def shrunk(**attributes: Any) -> pl.Graph:
    b = pl.GraphBuilder("net")
    b.output("y", b.op("test.Shrink", b.input("x", "float32", ("n",)), name="node", **attributes))
    return b.build()


@given(st.lists(st.floats(-4, 4, width=32), min_size=1, max_size=6), st.floats(0, 2, width=32))
def test_an_operator_computes_what_its_nodes_do(values: list[float], bound: float) -> None:
    load_operators(file(SHRINK))
    x = np.array(values, np.float32)
    for device in ("cpu", "formal"):
        got = pl.run(shrunk(bound=bound), {"x": x}, devices=[device])["y"]
        wanted = np.sign(x) * np.maximum(np.abs(x) - np.float32(bound), 0)
        np.testing.assert_array_equal(got, wanted)


def test_attributes_have_types_defaults_and_ranges() -> None:
    load_operators(file(SHRINK))
    graph = shrunk()
    assert graph.node("node").attributes == {"bound": 0.5}
    assert graph.tensors["y"] == pl.TensorSpec("float32", ("n",))
    for wrong in (-1, "a"):
        with pytest.raises(pl.OperatorError, match="must be a number ≥ 0"):
            shrunk(bound=wrong)
    with pytest.raises(pl.OperatorError, match="has no attribute 'limit'"):
        shrunk(limit=1)


def test_a_plan_has_the_nodes_that_it_stands_for_under_its_name() -> None:
    load_operators(file(SHRINK))
    graph = pl.plan(shrunk(), passes=["expand_unsupported"]).graph
    assert [node.op for node in graph.nodes] == ["Abs", "Sub", "Relu", "Sign", "Mul"]
    assert graph.nodes[-1].name == "node"


def test_it_costs_what_its_nodes_cost() -> None:
    load_operators(file(SHRINK))
    graph = shrunk()
    fixed = infer_shapes(replace(graph, tensors={"x": pl.TensorSpec("float32", (8,))}))
    assert get_cost(fixed, fixed.node("node")).flops == 5 * 8


def test_operators_of_several_outputs_lie_within_each_other() -> None:
    load_operators(file(*ends()))
    b = pl.GraphBuilder("ends")
    x, f = b.input("x", "float32", (4,)), b.input("f", "float32", ())
    low, high = b.op("test.Ends", x, f, outputs=2, name="scaled")
    b.output("low", low)
    b.output("high", high)
    (_, alone) = b.op("test.Ends", x, name="alone", outputs=["", "alone"])
    b.output("most", alone)
    got = pl.run(b.build(), {"x": np.array([3, -1, 2, 0], "float32"), "f": np.float32(2)})
    assert {name: array.item() for name, array in got.items()} == {
        "low": -2,
        "high": 6,
        "most": 3,
    }
    with pytest.raises(pl.ParseError, match="only vectors have ends"):
        b.op("test.Ends", b.input("m", "float32", (2, 2)), outputs=2)


def test_a_file_may_be_loaded_again_but_no_other_of_its_names() -> None:
    assert load_operators(file(SHRINK)) == load_operators(file(SHRINK)) == ("test.Shrink",)
    with pytest.raises(pl.GraphError, match=r"'test\.Shrink' is defined twice"):
        load_operators(file(*ends(), {**SHRINK, "attributes": {}}))
    assert "test.Plain" not in list_operators()  # nothing of a file that fails is left
    unregister_operator("test.Shrink")
    other = {**SHRINK, "attributes": {}, "rules": [{"replace": ["Neg"]}]}
    assert load_operators(file(other)) == ("test.Shrink",)
    assert pl.run(shrunk(), {"x": np.ones(2, "float32")})["y"].tolist() == [-1, -1]


def test_an_operator_that_took_the_name_of_a_defined_one_is_itself() -> None:
    load_operators(file(SHRINK, {**OUTER, "name": "test.Outer"}))
    unregister_operator("test.Shrink")

    @pl.operator(lambda x: [x], name="test.Shrink")
    def tenfold(x: np.ndarray) -> np.ndarray:
        return x * 10

    b = pl.GraphBuilder("net")
    b.output("y", b.op("test.Outer", b.input("x", "float32", (2,))))
    graph = b.build()
    fed = {"x": np.array([-1, 2], "float32")}
    assert pl.run(graph, fed)["y"].tolist() == [-10, 20]
    written = pl.plan(graph, passes=["expand_unsupported"]).graph.nodes
    assert [node.op for node in written] == ["test.Shrink"]


OUTER = {"inputs": ["x"], "outputs": ["y"], "rules": [{"replace": ["test.Shrink"]}]}


def test_an_attribute_may_be_called_as_what_a_node_is_made_of() -> None:
    words = {word: {"kind": "int", "default": 0} for word in ("op", "inputs")}
    inner = {**OUTER, "name": "test.Inner", "attributes": words, "rules": [{"replace": ["Neg"]}]}
    wires = ["i.ins[0] = self.ins[x]", "i.outs[0] = self.outs[y]"]
    details = ["i.params[op] = 1", "i.params[inputs] = 2", *wires]
    rule = {"replace": ["test.Inner i"], "details": details}
    load_operators(file(inner, {**OUTER, "name": "test.Outer", "rules": [rule]}))
    b = pl.GraphBuilder("net")
    b.output("y", b.op("test.Outer", b.input("x", "float32", (2,))))
    assert pl.run(b.build(), {"x": np.ones(2, "float32")})["y"].tolist() == [-1, -1]


def doubled(levels: int) -> list[dict[str, Any]]:
    """Return operators each of which is the one before, twice."""
    made = []
    for level in range(levels):
        op = f"test.D{level - 1}" if level else "Neg"
        details = ["a.ins[0] = self.ins[x]", "b.ins[0] = a.outs[0]", "b.outs[0] = self.outs[y]"]
        rule = {"replace": [f"{op} a", f"{op} b"], "details": details}
        fields = {"inputs": ["x"], "outputs": ["y"], "rules": [rule]}
        made.append({"name": f"test.D{level}", **fields})
    return made


def chained(levels: int) -> list[dict[str, Any]]:
    rules = [[{"replace": [f"test.C{level - 1}" if level else "Neg"]}] for level in range(levels)]
    formals = {"inputs": ["x"], "outputs": ["y"]}
    return [{"name": f"test.C{i}", **formals, "rules": rule} for i, rule in enumerate(rules)]


def test_what_an_operator_stands_for_is_bounded() -> None:
    load_operators(file(*doubled(6)))
    b = pl.GraphBuilder("doubled")
    b.output("y", b.op("test.D5", b.input("x", "float32", (2,))))
    assert len(pl.plan(b.build(), passes=["expand_unsupported"]).graph.nodes) == 64 <= MOST_NODES
    for many in (doubled(40), chained(DEEPEST + 1)):
        for defined in many:
            if defined["name"] in list_operators():
                unregister_operator(defined["name"])
        with pytest.raises(pl.ParseError, match=r"it stands for .* nodes, .* operators deep"):
            load_operators(file(*many))


RULES = SHRINK["rules"]


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"name": 3}, "not the name of an operator"),
        ({"name": "a b"}, "not the name of an operator"),
        ({"name": "Relu"}, "defined twice"),
        ({"inputs": []}, "not one or more different names"),
        ({"inputs": ["x", "x?"]}, "not one or more different names"),
        ({"inputs": ["xs*"]}, "not one or more different names"),
        ({"inputs": ["x?"]}, "always there"),
        ({"inputs": ["x", "y?", "z"]}, "stand behind the others"),
        ({"outputs": ["y?"]}, "always there"),
        ({"outputs": "y"}, "not an array"),
        ({"attributes": {"a": {"kind": "number"}}}, "its kind is 'number'; there is int"),
        ({"attributes": {"a": {"kind": ["int"]}}}, "its kind is"),
        ({"attributes": {"a b": {"kind": "int"}}}, "its name is none"),
        ({"attributes": {"a": {"kind": "int", "default": 1.5}}}, "must be an integer"),
        ({"attributes": {"a": {"kind": "int", "default": 0, "minimum": 1}}}, "≥ 1, got 0"),
        ({"attributes": {"a": {"kind": "int", "minimum": "1"}}}, "is not a number"),
        ({"attributes": {"a": {"kind": "int", "choices": 1}}}, "not an array"),
        ({"attributes": {"a": {"kind": "int", "max": 1}}}, "'max' is unknown"),
        ({"attributes": {"outputs": {"kind": "int"}}}, "GraphBuilder.op uses this word"),
        ({"rules": []}, "it cannot stay as it is"),
        ({"rules": [{"match": False}]}, "it cannot stay as it is"),
        ({"rules": [{"replace": ["test.Shrink"]}]}, "no operator 'test.Shrink'"),
        ({"rules": [{"replace": ["Nothing"]}]}, "no operator 'Nothing'"),
        ({"kernel": "y = x"}, "'kernel' is unknown"),
    ],
)
def test_what_defines_nothing_is_refused_and_leaves_nothing(
    changes: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(pl.GraphError, match=complaint):
        load_operators(file({**SHRINK, "name": "test.Before"}, {**SHRINK, **changes}))
    assert not {"test.Before", "test.Shrink"} & set(list_operators())


@pytest.mark.parametrize("text", [b"", b"[]", b"{}", b'{"operators": {}}', b'{"ops": []}'])
def test_what_is_no_file_of_operators_is_refused(text: bytes) -> None:
    with pytest.raises(pl.ParseError):
        load_operators(text)


@pytest.mark.parametrize(
    ("rule", "complaint"),
    [
        ({"cond": ["self.ins[x].ndim == 7"], "replace": ["Neg"]}, "no rule says what"),
        ({"replace": ["Neg n"], "details": ["n.ins[0] = self.ins[x]"]}, "writes its output 'y'"),
        ({"replace": ["Neg n"], "details": ["n.ins[0] = self.ins[z]"]}, "has no input 'z'"),
        ({"replace": ["Neg n"], "details": ["n.ins[0] = self.outs[y].len"]}, "is not known"),
    ],
)
def test_a_definition_that_makes_no_sense_is_told_where_it_is_used(
    rule: dict[str, Any], complaint: str
) -> None:
    load_operators(file({**SHRINK, "rules": [rule]}))
    with pytest.raises(pl.GraphError, match=complaint) as caught:
        shrunk()
    assert "node" in str(caught.value.at)


def test_commands_register_operators_first(tmp_path: Path) -> None:
    (tmp_path / "ops.json").write_bytes(file(SHRINK))
    load_operators(file(SHRINK))
    pl.save(shrunk(), tmp_path / "m.plait")
    unregister_operator("test.Shrink")
    assert_mistake(plait(tmp_path, "plan", "m.plait"), "test.Shrink")
    done = plait(tmp_path, "plan", "m.plait", "--operators", "ops.json", "--nodes")
    assert done.exit_code == 0, done.output
    assert "Sign" in done.stdout
    done = plait(tmp_path, "convert", "m.plait", "o.plait", "--operators", "ops.json")
    assert done.exit_code == 0, done.output
