"""Recomputation changes no bit of a gradient, whatever is kept, and reads nothing else."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import plait as pl
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from plait.graph.core.ir import Graph
from plait.graph.gradients.recomputation import AGAIN, find_between, is_again

SHAPE = (3, 4)
FED = {"x": SHAPE, "w": (4, 4)}
UNARY = ("Sin", "Tanh", "Relu", "Sigmoid", "Neg")
BINARY = ("Add", "Mul", "Sub", "Max")
KINDS = (*UNARY, *BINARY, "MatMul", "LayerNormalization", "Split", "Where", "Reshape")


@st.composite
def networks(draw: st.DrawFn, max_nodes: int = 12) -> Graph:
    """Draw a graph over float32 from x and w to a total of all that nobody else reads."""
    b = pl.GraphBuilder("drawn")
    w = b.input("w", "float32", (4, 4))
    known = [b.input("x", "float32", SHAPE)]
    for _ in range(draw(st.integers(1, max_nodes))):
        kind = draw(st.sampled_from(KINDS))
        h, other = draw(st.sampled_from(known[-4:])), draw(st.sampled_from(known))
        if kind in UNARY:
            known.append(b.op(kind, h))
        elif kind in BINARY:
            known.append(b.op(kind, h, other))
        elif kind == "MatMul":
            known.append(b.op("MatMul", h, w))
        elif kind == "LayerNormalization":
            known.append(b.op(kind, h, np.linspace(1, 2, 4, dtype="float32")))
        elif kind == "Split":
            parts = b.op("Split", h, outputs=2, axis=1, num_outputs=2)
            known.append(b.op("Concat", *reversed(parts), axis=1))
        elif kind == "Where":
            known.append(b.op("Where", b.op("Greater", h, 0.1), h, other))
        else:
            flat = b.op("Reshape", h, np.array([4, 3]))
            known.append(b.op("Reshape", b.op("Sin", flat), np.array(SHAPE)))
    read = {name for node in b.nodes for name in node.inputs}
    b.output("y", b.op("Sum", *(name for name in known if name not in read or name == known[-1])))
    return b.build()


def results(graph: Graph, simplified: bool) -> dict[str, NDArray[Any]]:
    random = np.random.default_rng(0)
    fed: dict[str, NDArray[Any]] = {
        name: random.normal(size=FED[name]).astype("float32") for name in graph.inputs
    }
    plan = pl.plan(graph, passes=pl.passes.PASSES if simplified else ())
    return dict(pl.run(plan, fed))


def bits(graph: Graph, simplified: bool) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in results(graph, simplified).items()}


def tensors(graph: Graph) -> list[str]:
    return [*graph.inputs, *(name for node in graph.nodes for name in node.outputs if name)]


@st.composite
def checkpointed(draw: st.DrawFn) -> tuple[Graph, Any]:
    graph = draw(networks())
    some = st.lists(st.sampled_from(tensors(graph)), max_size=4, unique=True)
    return graph, draw(st.just("auto") | some)


@settings(max_examples=15, deadline=None)
@given(drawn=checkpointed(), simplified=st.booleans())
def test_gradients_are_the_same_bits(drawn: tuple[Graph, Any], simplified: bool) -> None:
    graph, kept = drawn
    plain = pl.gradients(graph, "y", ["x", "w"])
    saving = pl.gradients(graph, "y", ["x", "w"], checkpoint=kept)
    assert bits(saving, simplified) == bits(plain, simplified)


@settings(max_examples=6, deadline=None)
@given(drawn=checkpointed(), again=st.booleans())
def test_gradients_of_gradients_are_the_same_sums(drawn: tuple[Graph, Any], again: bool) -> None:
    """In another order: what comes to a copy is added up there first."""
    graph, kept = drawn
    plain = pl.gradients(pl.gradients(graph, "y", "x"), "gradient/x", "w")
    saving = pl.gradients(graph, "y", "x", checkpoint=kept)
    twice = pl.gradients(saving, "gradient/x", "w", checkpoint="auto" if again else None)
    wanted = results(plain, simplified=False)
    for name, found in results(twice, simplified=False).items():
        size = float(np.abs(wanted[name]).max())
        np.testing.assert_allclose(found, wanted[name], rtol=1e-4, atol=1e-5 * max(size, 1))


@settings(max_examples=40, deadline=None)
@given(checkpointed())
def test_what_lies_before_the_last_checkpoint_is_read_only_if_it_is_kept(
    drawn: tuple[Graph, Any],
) -> None:
    graph, kept = drawn
    if kept == "auto":
        return
    made = pl.gradients(graph, "y", ["x", "w"], checkpoint=kept)
    forward = find_between(graph.nodes, ["x", "w"], ["y"])
    ends = [i for i, node in enumerate(forward) if not set(kept).isdisjoint(node.outputs)]
    gone = {
        name
        for node in forward[: max(ends, default=0)]
        for name in node.outputs
        if set(kept).isdisjoint(node.outputs)
    }
    old = {node.name for node in graph.nodes}
    read = {t for node in made.nodes if node.name not in old for t in node.inputs}
    assert gone.isdisjoint(read)
    copied = Counter(node.name.removeprefix(AGAIN) for node in made.nodes if is_again(node))
    assert set(copied) <= {node.name for node in forward if gone.issuperset(node.outputs)}
    assert set(copied.values()) <= {1}
