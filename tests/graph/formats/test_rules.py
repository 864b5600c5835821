"""Rules in files: which nodes they replace, by what, and which rules are refused."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import plait as pl
import pytest
from command_line import assert_mistake, plait
from hypothesis import given
from hypothesis import strategies as st
from plait.graph.core.ir import Graph
from plait.graph.formats.rules import load_rules
from plait.graph.passes.rewriting import allow_any

Fields = Mapping[str, Any]

ELU: Fields = {
    "replace": ["Exp e", "Sub s", "Mul m", "Less less", "Where w"],
    "details": [
        "e.ins[0] = self.ins[x]",
        "s.ins[a] = e.outs[0]",
        "s.ins[b] = 1",
        "m.ins[0] = s.outs[0]",
        "m.ins[1] = self.params[alpha]",
        "less.ins[0] = self.ins[x]",
        "less.ins[1] = 0",
        "w.ins[condition] = less.outs[0]",
        "w.ins[1] = m.outs[0]",
        "w.ins[2] = self.ins[x]",
        "w.outs[0] = self.outs[0]",
    ],
}


def rules(optype: str, *given: Fields, **top: object) -> bytes:
    return json.dumps({"ops": [{"optype": optype, "rules": given}], **top}).encode()


def applied(graph: Graph, data: bytes) -> Graph:
    return load_rules(data)(graph, allow_any)


def ops(graph: Graph) -> list[str]:
    return [node.op for node in graph.nodes]


def net(op: str, *shape: int | str, **attributes: Any) -> Graph:
    b = pl.GraphBuilder("net")
    b.output("y", b.op(op, b.input("x", "float32", shape), name="node", **attributes))
    return b.build()


def test_one_operator_takes_the_place_of_another_with_inputs_outputs_and_attributes() -> None:
    graph = applied(net("Elu", 4, alpha=0.5), rules("Elu", {"replace": ["Celu"]}))
    (node,) = graph.nodes
    assert (node.name, node.op, node.attributes["alpha"]) == ("node", "Celu", 0.5)
    assert graph.outputs == ("y",)


def test_attributes_that_the_new_operator_lacks_are_left_out() -> None:
    assert ops(applied(net("Elu", 4), rules("Elu", {"replace": ["Relu"]}))) == ["Relu"]


def test_details_wire_several_operators() -> None:
    graph = net("Elu", 4, alpha=0.5)
    made = applied(graph, rules("Elu", ELU))
    assert ops(made) == ["Exp", "Sub", "Mul", "Less", "Where"]
    assert made.nodes[-1].name == "node"
    x = np.array([-2, -0.5, 0, 3], np.float32)
    np.testing.assert_allclose(pl.run(made, {"x": x})["y"], pl.run(graph, {"x": x})["y"], rtol=1e-6)


def test_a_comma_may_follow_the_last_of_a_list_or_object() -> None:
    rule = b'{"cond": [ , ], "replace": ["Relu",]}'
    text = b'{"name": ",]", "ops": [{"optype": "Elu", "rules": [' + rule + b",]},],}"
    plain = text.replace(b"[ , ]", b"[]")
    assert load_rules(plain).__name__ == ",]"
    assert ops(applied(net("Elu", 4), plain)) == ["Relu"]
    for wrong in (text, plain.replace(b'"Relu",', b'"Relu",,'), b'{"ops": [' + b'"\\' * 100_000):
        with pytest.raises(pl.ParseError, match="not JSON"):
            load_rules(wrong)


def test_details_compute_attributes_and_vectors() -> None:
    details = [
        "r.ins[0] = self.ins[0]",
        "r.ins[1] = [self.ins[0].dims[1], self.ins[0].dims[0] * 1]",
        "t.ins[0] = r.outs[0]",
        "t.params[perm] = [1, 0]",
        "t.outs[0] = self.outs[0]",
    ]
    rule = {"replace": ["Reshape r", "Transpose t"], "details": details}
    made = applied(net("Neg", 2, 3), rules("Neg", rule))
    assert made.tensors["y"].shape == (2, 3)
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    np.testing.assert_array_equal(pl.run(made, {"x": x})["y"], x.reshape(3, 2).T)


@given(st.integers(0, 3), st.integers(0, 3), st.integers(0, 3))
def test_the_first_rule_whose_condition_holds_counts(value: int, low: int, high: int) -> None:
    graph = net("Elu", 4, alpha=float(value))
    first = {"cond": [f"self.params[alpha] < {low}"], "replace": ["Relu"]}
    second = {"cond": [f"self.params[alpha] > {high}"], "match": False}
    made = applied(graph, rules("Elu", first, second, {"cond": [], "replace": ["Celu"]}))
    assert ops(made) == ["Relu" if value < low else "Elu" if value > high else "Celu"]


@pytest.mark.parametrize(
    ("condition", "holds"),
    [
        ("self.ins[x].ndim == 2 && self.ins[0].dims == [2, 3]", True),
        ("self.ins[x].len == 6", True),
        ('self.ins[x].dtype == "float32"', True),
        ("self.ins[x].dims[1] == self.outs[0].dims[1]", True),
        ("self.ins[1] == null", True),
        ("self.ins[1].ndim == 0", False),
        ("self.ins[x].dims[2] == 3", False),
        ("self.ins[x].value == 0", False),
        ("self.params[alpha] == 1", True),
    ],
)
def test_conditions_ask_about_tensors_and_attributes(condition: str, holds: bool) -> None:
    data = rules("Elu", {"cond": [condition], "replace": ["Relu"]})
    assert ops(applied(net("Elu", 2, 3), data)) == (["Relu"] if holds else ["Elu"])


@pytest.mark.parametrize("test", ["dims[0] == 2", "dims[0] != 2", "dims == [2]", "len > 0"])
def test_a_condition_about_a_length_that_is_not_known_does_not_hold(test: str) -> None:
    data = rules("Elu", {"cond": [f"self.ins[x].{test}"], "replace": ["Relu"]})
    assert ops(applied(net("Elu", "n"), data)) == ["Elu"]


def test_one_of_several_conditions_is_enough() -> None:
    data = rules("Elu", {"cond": ["self.ins[x].len == 1", "2 > 1"], "replace": ["Relu"]})
    assert ops(applied(net("Elu", "n"), data)) == ["Relu"]


def test_the_value_of_a_constant_is_known() -> None:
    b = pl.GraphBuilder("net")
    b.output("y", b.op("Add", b.input("x", "float32", (4,)), np.float32(0)))
    rule = {
        "cond": ["self.ins[1].value == 0"],
        "replace": ["Identity i"],
        "details": ["i.ins[0] = self.ins[0]", "i.outs[0] = self.outs[0]"],
    }
    assert ops(applied(b.build(), rules("Add", rule))) == ["Identity"]


def test_a_rule_can_refuse_a_node() -> None:
    with pytest.raises(pl.ParseError, match="no Elu here") as caught:
        applied(net("Elu", 4), rules("Elu", {"err": "no Elu here"}))
    assert "node 'node'" in str(caught.value.at)


def test_the_pass_is_called_as_the_rules_are_and_is_planned_with() -> None:
    one = load_rules(rules("Elu", {"replace": ["Relu"]}, name="no_elu"))
    plan = pl.plan(net("Elu", 4), passes=[one])
    assert [step.name for step in plan.applied] == ["no_elu"]
    assert ops(plan.graph) == ["Relu"]


def test_what_is_written_by_a_rule_is_not_replaced_again() -> None:
    twice = {"replace": ["Neg a", "Neg b"], "details": ["a.ins[0] = self.ins[0]"]}
    twice["details"] += ["b.ins[0] = a.outs[0]", "b.outs[0] = self.outs[0]"]
    assert ops(applied(net("Neg", 4), rules("Neg", twice))) == ["Neg", "Neg"]


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (b"", "this is not JSON"),
        (b"[]", "no list under the key 'ops'"),
        (b'{"ops": 1}', "not an array"),
        (b'{"ops": [1]}', "not an object"),
        (b'{"ops": [], "head": "int f();"}', "'head' is unknown"),
        (b'{"ops": [], "name": 1}', "the name is 1"),
        (b'{"ops": [{"rules": []}]}', "no optype"),
        (rules("Elu", {}), "one of replace, match and err"),
        (rules("Elu", {"replace": ["Relu"], "err": "x"}), "one of replace, match and err"),
        (rules("Elu", {"err": "x", "details": []}), "details beside replace"),
        (rules("Elu", {"match": True}), "match can be false alone"),
        (rules("Elu", {"replace": []}), "one operator stands"),
        (rules("Elu", {"replace": ["Exp a", "Exp b"]}), "one operator stands"),
        (rules("Elu", {"replace": ["Exp a", "Exp a"], "details": ["a"]}), "has no '='"),
        (rules("Elu", {"replace": ["Exp a b"]}), "not an operator with a name"),
        (rules("Elu", {"replace": [1]}), "should be text"),
        (rules("Elu", {"replace": ["Exp a"], "details": ["a = 1"]}), "none of name.ins"),
        (rules("Elu", {"replace": ["Exp a"], "details": ["b.ins[0] = 1"]}), "is called 'b'"),
        (rules("Elu", {"replace": ["Relu"], "cond": ["f(1)"]}), "out of place"),
        (rules("Elu", {"replace": ["Relu"], "when": []}), "'when' is unknown"),
    ],
)
def test_files_that_are_no_rules_are_refused(data: bytes, complaint: str) -> None:
    with pytest.raises(pl.ParseError, match=complaint):
        load_rules(data)


@pytest.mark.parametrize("data", [rules("Gone", {"err": ""}), rules("Elu", {"replace": ["Gone"]})])
def test_operators_that_there_are_not_are_named(data: bytes) -> None:
    with pytest.raises(pl.OperatorError, match="'Gone'"):
        load_rules(data)


def test_two_new_nodes_of_one_name_are_refused() -> None:
    with pytest.raises(pl.ParseError, match="two new nodes have one name"):
        load_rules(rules("Elu", {"replace": ["Exp a", "Exp a"], "details": ["a.ins[0] = 1"]}))


@pytest.mark.parametrize(
    ("detail", "complaint"),
    [
        ("r.ins[0] = self.ins[z]", "Elu has no input 'z'"),
        ("r.ins[z] = self.ins[0]", "Relu has no input 'z'"),
        ("r.ins[0] = self.params[beta]", "there is no self.params.beta"),
        ("r.ins[0] = s.outs[0]", "there is no s.outs.0"),
        ("r.ins[0] = r.params[a]", "there is no r.params.a"),
        ("r.ins[0] = self.ins[0].dims[0]", "self.ins.0.dims.0 is not known"),
        ("r.ins[0] = self.ins[0].size", "there is no self.ins.0.size"),
        ('r.ins[0] = "x"', "neither a tensor nor a number"),
        ("r.ins[0] = [0.5]", "neither a tensor nor a number"),
        ("r.outs[0] = 1", "is 1, no tensor"),
        ("r.params[beta] = 1", "beta"),
        ("r.ins[0] = self.params[alpha] + self.ins[0]", "makes no sense"),
        ("r.ins[99999999999] = self.ins[0]", r"Relu has no ins\[99999999999\]"),
        ("r.outs[99999999999] = self.outs[0]", r"Relu has no outs\[99999999999\]"),
        ("r.ins[1] = self.ins[0]", r"Relu takes 1 inputs \(x\), got 2"),
        ("r.ins[0] = self.ins[7]", "Relu needs its input x"),
        ("r.ins[0] = r.outs[0]", "new nodes wait for each other: r"),
        ("r.ins[0] = [99999999999999999999]", "is not a value of int64"),
    ],
)
def test_details_that_make_no_sense_are_named_with_their_rule(detail: str, complaint: str) -> None:
    one = load_rules(rules("Elu", {"replace": ["Relu r"], "details": [detail]}))
    with pytest.raises(pl.PlaitError, match=complaint) as caught:
        one(net("Elu", "n"), allow_any)
    assert caught.value.__notes__ == [
        "rule 0, rules for Elu, rules, applied to node 'node': Elu(x) -> y"
    ]


def test_attributes_are_those_of_the_operator_whatever_they_are_called() -> None:
    details = ["r.ins[0] = self.ins[0]", "r.outs[0] = self.outs[0]", "r.params[name] = 1"]
    with pytest.raises(pl.OperatorError, match="Relu has no attribute 'name'"):
        applied(net("Elu", 4), rules("Elu", {"replace": ["Relu r"], "details": details}))


def test_new_nodes_may_come_in_any_order() -> None:
    details = ["a.ins[0] = b.outs[0]", "b.ins[0] = self.ins[0]", "a.outs[0] = self.outs[0]"]
    rule = {"replace": ["Neg a", "Exp b"], "details": details}
    assert ops(applied(net("Elu", 4), rules("Elu", rule))) == ["Exp", "Neg"]


def test_nodes_that_read_each_other_are_refused() -> None:
    details = ["a.ins[0] = b.outs[0]", "b.ins[0] = self.outs[0]", "a.outs[0] = self.outs[0]"]
    rule = {"replace": ["Neg a", "Exp b"], "details": details}
    with pytest.raises(pl.ParseError, match="new nodes wait for each other: "):
        applied(net("Elu", 4), rules("Elu", rule))


@pytest.mark.parametrize(
    ("op", "complaint"), [("Conv", "takes 2 to 3 inputs"), ("Loop", "needs the attribute 'body'")]
)
def test_an_operator_that_needs_more_is_refused(op: str, complaint: str) -> None:
    with pytest.raises(pl.OperatorError, match=complaint):
        applied(net("Elu", 4), rules("Elu", {"replace": [op]}))


def test_what_others_read_must_be_written() -> None:
    with pytest.raises(pl.GraphError, match="y"):
        applied(
            net("Elu", 4),
            rules("Elu", {"replace": ["Relu r"], "details": ["r.ins[0] = self.ins[0]"]}),
        )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    pl.save(net("Elu", 4, alpha=0.5), tmp_path / "m.plait")
    (tmp_path / "a.json").write_bytes(rules("Elu", {"replace": ["Celu"]}))
    (tmp_path / "b.json").write_bytes(rules("Celu", {"replace": ["Relu"]}))
    return tmp_path


def test_convert_applies_the_rules_of_files_in_turn(folder: Path) -> None:
    arguments: Sequence[str] = ("m.plait", "o.plait", "--rules", "a.json", "--rules", "b.json")
    result = plait(folder, "convert", *arguments)
    assert result.exit_code == 0, result.stderr
    assert ops(pl.load(folder / "o.plait")) == ["Relu"]


def test_rules_that_are_none_are_a_mistake_of_the_command_line(folder: Path) -> None:
    result = plait(folder, "convert", "m.plait", "o.plait", "--rules", "m.plait")
    assert_mistake(result, "m.plait", "not JSON")
    assert not (folder / "o.plait").exists()
