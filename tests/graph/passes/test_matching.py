"""Patterns: what fits, what is captured, and rules that never end."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import plait as pl
import pytest
from plait.graph.core.ir import Graph, Node
from plait.graph.passes.matching import Constant, Match, Pattern, Rule, apply, matches
from plait.graph.passes.rewriting import Rewriter
from plait.graph.values.errors import GraphError


def found(graph: Graph, pattern: Pattern) -> list[Match]:
    rewriter = Rewriter(graph)
    return [match for node in graph.nodes for match in matches(rewriter, pattern, node)]


def sum_of(a: str, b: str) -> Graph:
    """Return y = |x| + -z, in the order of the names given."""
    builder = pl.GraphBuilder("sum")
    x, z = (builder.input(name, "float32", (2,)) for name in "xz")
    made = {"abs": builder.op("Abs", x), "neg": builder.op("Neg", z)}
    builder.output("y", builder.op("Add", made[a], made[b], name="add"))
    return builder.build()


@pytest.mark.parametrize("order", [("abs", "neg"), ("neg", "abs")])
def test_operands_that_commute_fit_in_either_order(order: tuple[str, str]) -> None:
    pattern = Pattern("Add", (Pattern("Abs", ("p",)), Pattern("Neg", ("q",))))
    (match,) = found(sum_of(*order), pattern)
    assert match.tensors == {"p": "x", "q": "z"}
    assert match.last.name == "add"


def test_operands_that_do_not_commute_fit_in_theirs() -> None:
    b = pl.GraphBuilder("difference")
    x = b.input("x", "float32", (2,))
    b.output("y", b.op("Sub", x, b.op("Neg", x)))
    assert found(b.build(), Pattern("Sub", (Pattern("Neg", ("p",)), "p"))) == []


def test_one_name_is_one_tensor() -> None:
    pattern = Pattern("Add", (Pattern("Abs", ("p",)), Pattern("Neg", ("p",))))
    assert found(sum_of("abs", "neg"), pattern) == []


def test_one_of_several_operators_fits() -> None:
    pattern = Pattern(("Sub", "Add"), (Pattern(("Abs", "Neg"), ("p",)), Pattern("Neg", ("q",))))
    assert len(found(sum_of("abs", "neg"), pattern)) == 1


def test_what_is_read_elsewhere_does_not_fit_unless_it_is_shared() -> None:
    b = pl.GraphBuilder("shared")
    inner = b.op("Abs", b.input("x", "float32", (2,)), name="abs")
    b.output("y", b.op("Exp", inner))
    b.output("z", b.op("Neg", inner, name="neg"))
    graph = b.build()
    assert found(graph, Pattern("Neg", (Pattern("Abs", ("p",)),))) == []
    (match,) = found(graph, Pattern("Neg", (Pattern("Abs", ("p",), shared=True, name="inner"),)))
    assert [node.name for node in match.nodes] == ["neg"]
    assert match.named["inner"].name == "abs"


def test_what_is_fetched_does_not_fit() -> None:
    b = pl.GraphBuilder("fetched")
    inner = b.op("Abs", b.input("x", "float32", (2,)))
    b.output("seen", inner)
    b.output("y", b.op("Neg", inner))
    assert found(b.build(), Pattern("Neg", (Pattern("Abs", ("p",)),))) == []


def test_constants_fit_by_value_or_by_what_is_asked_of_them() -> None:
    b = pl.GraphBuilder("constants")
    x = b.input("x", "float32", (2,))
    b.output("y", b.op("Div", x, np.float32(1 / 3)))
    graph = b.build()
    assert len(found(graph, Pattern("Div", ("p", 1 / 3)))) == 1
    assert found(graph, Pattern("Div", ("p", 0.25))) == []
    assert found(graph, Pattern("Div", ("p", Constant("c", lambda c: c.item() > 1)))) == []
    (match,) = found(graph, Pattern("Div", ("p", Constant("c", lambda c: c.item() < 1))))
    assert match.tensors["c"] in graph.constants


def test_a_name_alone_is_no_constant() -> None:
    b = pl.GraphBuilder("constants")
    b.output("y", b.op("Div", b.input("x", "float32", (2,)), np.float32(3)))
    assert found(b.build(), Pattern("Div", ("p", "q"))) == []


@pytest.mark.parametrize(("wanted", "fits"), [(0.2, True), (0.3, False), (lambda a: a < 1, True)])
def test_attributes_fit_by_value_or_by_question(wanted: object, fits: bool) -> None:
    b = pl.GraphBuilder("attributes")
    b.output("y", b.op("LeakyRelu", b.input("x", "float32", (2,)), alpha=0.2))
    assert bool(found(b.build(), Pattern("LeakyRelu", ("p",), {"alpha": wanted}))) == fits


def test_inputs_that_are_absent_fit_nothing_but_none() -> None:
    b = pl.GraphBuilder("absent")
    b.output("y", b.op("Clip", b.input("x", "float32", (2,)), None, np.float32(3)))
    graph = b.build()
    assert len(found(graph, Pattern("Clip", ("p", None, 3.0)))) == 1
    assert found(graph, Pattern("Clip", ("p", Constant("low"), 3.0))) == []


def test_what_a_rule_writes_is_matched_again() -> None:
    b = pl.GraphBuilder("tower")
    x = b.input("x", "float32", (2,))
    for _ in range(5):
        x = b.op("Abs", x)
    b.output("y", x)
    rewriter = Rewriter(b.build())
    apply(rewriter, [Rule("once", Pattern("Abs", (Pattern("Abs", ("p",)),)), once)])
    assert [node.op for node in rewriter.result().nodes] == ["Abs"]


def once(rewriter: Rewriter, match: Match) -> Sequence[Node]:
    last = match.last
    return [rewriter.make("Abs", (match.tensors["p"],), last.outputs, name=last.name)]


def test_rules_that_undo_one_another_are_named() -> None:
    def swap(op: str, other: str) -> Rule:
        def build(rewriter: Rewriter, match: Match) -> Sequence[Node]:
            inputs, last = (match.tensors["p"],), match.last
            return [rewriter.make(other, inputs, last.outputs, name=last.name)]

        return Rule(f"{op} to {other}", Pattern(op, ("p",)), build)

    b = pl.GraphBuilder("swap")
    b.output("y", b.op("Neg", b.input("x", "float32", (2,))))
    with pytest.raises(GraphError, match=r"'(Neg to Abs|Abs to Neg)' was applied again and again"):
        apply(Rewriter(b.build()), [swap("Neg", "Abs"), swap("Abs", "Neg")])


def test_a_rule_that_thinks_better_of_it_changes_nothing() -> None:
    graph = sum_of("abs", "neg")
    rewriter = Rewriter(graph)
    apply(rewriter, [Rule("never", Pattern("Abs", ("p",)), lambda rewriter, match: None)])
    assert rewriter.result() is graph
