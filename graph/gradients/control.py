"""Gradients of If, Scan and Loop: nodes whose graphs go back.

The states of a Scan or Loop are computed again, this time all of them are kept; then a Scan goes
through the steps from the last to the first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..builder import GraphBuilder
from ..dtypes import kind_of
from ..errors import GraphError
from ..ir import Graph
from ..named_tensor import Tensor
from ..nested import call_graph
from ..operator import Call
from ..operators.control import axis_of, handed
from ..tensor import TensorSpec
from .adjoint import Adjoint
from .elementwise import Gradients
from .formula import Term
from .registry import gradient


@gradient("If")
def if_(at: Adjoint) -> Gradients:
    """The gradient of the branch that was taken."""
    captured = [at.input(index) for index in range(1, len(at.inputs))]
    specs = [x.spec for x in captured]
    wanted = [index for index in range(len(captured)) if at.wants(index + 1)]
    through = [index for index, g in enumerate(at.gradients) if g is not None]
    branches = {
        name: _backward(call_graph(at[name], specs), through, wanted)
        for name in ("then_branch", "else_branch")
    }
    # Both branches get everything, and each uses what it needs: which is taken is known at run
    # time.
    given = [*captured, *(at.gradient(index) for index in through)]
    made = at.formula.split("If", at.input(0), *given, outputs=len(wanted), **branches)
    yield from zip((index + 1 for index in wanted), made, strict=True)


def _backward(graph: Graph, through: Sequence[int], wanted: Sequence[int]) -> Graph:
    """Return the graph of gradients: of inputs, given those of outputs after all its inputs."""
    b, outputs = _opened(graph)
    ys = [outputs[graph.outputs[index]] for index in through]
    weights = [
        _like(b, f"{b.name}/of {graph.outputs[i]}", y) for i, y in zip(through, ys, strict=True)
    ]
    _put_out(b, graph, _gradients(b, ys, [graph.inputs[i] for i in wanted], weights), wanted)
    return b.build()


def _opened(graph: Graph) -> tuple[GraphBuilder, Mapping[str, str]]:
    """Return a builder that has the graph's inputs and nodes, and the names of its outputs."""
    b = GraphBuilder(f"{graph.name} backward")
    for name in graph.inputs:
        _declare(b, name, graph.tensors[name])
    return b, b.include(graph, {name: name for name in graph.inputs}, prefix="")


def _declare(b: GraphBuilder, name: str, spec: TensorSpec) -> str:
    if spec.shape is None:
        raise GraphError(
            f"no gradient can be built: how many dimensions {name!r} has is not known",
            at=b.name,
            fix="declare the shapes of inputs, with symbols for unknown lengths",
        )
    return b.input(name, spec.dtype, spec.shape)


def _like(b: GraphBuilder, name: str, tensor: str) -> str:
    return _declare(b, name, b.spec(tensor))


def _gradients(
    b: GraphBuilder, ys: Sequence[str], xs: Sequence[str], weights: Sequence[str]
) -> list[Tensor]:
    from .build import gradients  # which finds this rule

    return gradients(b, list(ys), list(xs), list(weights))


def _put_out(b: GraphBuilder, graph: Graph, made: Sequence[str], wanted: Sequence[int]) -> None:
    for index, name in zip(wanted, made, strict=True):
        b.output(f"{b.name}/to {graph.inputs[index]}", name)


@dataclass(frozen=True)
class _Steps:
    """A Scan or a Loop, seen as a Scan."""

    at: Adjoint
    body: Graph
    """With the specs that it has in every step. Its inputs are states, slices and what is captured,
    its outputs the states, and what is stacked."""
    states: range
    scanned: range
    captured: range
    """Places among the body's inputs."""
    terms: Sequence[Term]
    """Initial values, sliced tensors and constants of the body's inputs."""
    places: Sequence[int]
    """Their indices among the node's inputs, or -1."""

    @property
    def floats(self) -> list[int]:
        """The states that gradients flow through."""
        return [i for i in self.states if kind_of(self.spec(i).dtype) == "f"]

    @property
    def wanted(self) -> list[int]:
        """The inputs beside states whose gradients are needed."""
        others = (*self.scanned, *self.captured)
        return [i for i in others if self.places[i] >= 0 and self.at.wants(self.places[i])]

    @property
    def stacked(self) -> list[int]:
        """The outputs that have a slice for each step, of those that have gradients."""
        outputs = range(len(self.states), len(self.at.gradients))
        return [index for index in outputs if self.at.gradients[index] is not None]

    def spec(self, index: int) -> TensorSpec:
        return self.body.tensors[self.body.inputs[index]]

    def axis(self, attribute: str, index: int) -> int:
        """Return what an attribute says of a scanned input or a stacked output."""
        return axis_of(_call(self.at), attribute, index) if self.at.node.op == "Scan" else 0


def _call(at: Adjoint) -> Call:
    """Return the node without names."""
    specs = tuple(None if x is None else x.spec for x in at.inputs)
    return Call(specs, (None,) * len(specs), at.node.attributes, len(at.gradients))


def _body(at: Adjoint) -> Graph:
    """Return the body with the specs that it has in every step."""
    known = [at.formula.builder.spec(name) if name else None for name in at.node.outputs]
    return call_graph(at["body"], handed(at.node.op, _call(at), known))


@gradient("Scan")
def scan(at: Adjoint) -> Gradients:
    """From the last step to the first, with the states that each began with."""
    total, captured, scanned = len(at.inputs), at["captured"], at["num_scan_inputs"]
    first, last = total - captured - scanned, total - captured
    ranges = range(first), range(first, last), range(last, total)
    terms = [at.input(index) for index in range(total)]
    steps = _Steps(at, _body(at), *ranges, terms, range(total))
    names = ("num_scan_inputs", "captured", "scan_input_axes", "scan_input_directions")
    shared = {name: at[name] for name in names}
    yield from _back(steps, _again(at, steps.body, first, steps.states, shared))


@gradient("Loop")
def loop(at: Adjoint) -> Gradients:
    """Views a Loop as a Scan over the numbers of its iterations."""
    body, captured = _body(at), at["captured"]
    count = len(at.inputs) - 2 - captured
    states, others = range(2, 2 + count), range(2 + count, len(at.inputs))
    made = _again(at, body, count, [*states, 0, 1], {"captured": captured})
    # As a Scan has them: states first, then what differs from step to step, the iteration's number
    # and its condition, then what is captured.
    order = [*states, 0, 1, *others]
    inputs = tuple(body.inputs[index] for index in order)
    outer = [at.input(index) for index in (*states, *others)]
    terms = [*outer[:count], *made[count:], *outer[count:]]
    ranges = range(count), range(count, count + 2), range(count + 2, len(order))
    places = [*states, -1, -1, *others]
    scanned = replace(body, inputs=inputs, outputs=body.outputs[1:])
    yield from _back(_Steps(at, scanned, *ranges, terms, places), made[:count])


def _again(
    at: Adjoint, body: Graph, states: int, kept: Sequence[int], attributes: dict[str, Any]
) -> list[Term]:
    """Return what a node like this one stacks up that puts out some of its body's inputs."""
    if not kept:
        return []
    b, outputs = _opened(body)
    # States have to go round as they did, as the next iterations follow from them.
    heads = states + (at.node.op == "Loop")  # its condition comes first
    for name in body.outputs[:heads]:
        b.output(f"{b.name}/next {name}", outputs[name])
    for index in kept:
        b.output(f"{b.name}/kept {body.inputs[index]}", body.inputs[index])
    count = states + len(kept)
    made = at.formula.split(at.node.op, *at.inputs, outputs=count, body=b.build(), **attributes)
    return made[states:]


def _back(steps: _Steps, kept: Sequence[Term]) -> Gradients:
    """Yield the gradients, given the states that each step began with."""
    at, wanted = steps.at, steps.wanted
    body = _step_back(steps, wanted)
    added = [i for i in steps.captured if i in wanted]
    begin = [_of_state(steps, i) for i in steps.floats]
    # What is captured is read in each step: its gradients are a further state, where they add up.
    begin += [at.formula.like(steps.terms[i], 0) for i in added]
    scanned = [steps.terms[i] for i in steps.scanned]
    outer = [at.gradient(i) for i in steps.stacked]
    captured = [steps.terms[i] for i in steps.captured]
    made = at.formula.split(
        "Scan",
        *(*begin, *scanned, *kept, *outer, *captured),
        outputs=len(body.outputs),
        body=body,
        num_scan_inputs=len(scanned) + len(kept) + len(outer),
        captured=len(captured),
        **_ways(steps, len(kept), wanted),
    )
    order = [*steps.floats, *added, *(i for i in steps.scanned if i in wanted)]
    yield from zip((steps.places[i] for i in order), made, strict=True)


def _of_state(steps: _Steps, index: int) -> Term:
    """Return the gradient of a last state; zeros like the first one where nothing depends on it."""
    given = steps.at.gradients
    g = given[index] if index < len(given) else None
    return steps.at.formula.like(steps.terms[index], 0) if g is None else g


def _step_back(steps: _Steps, wanted: Sequence[int]) -> Graph:
    """Return the body that takes gradients of states, slices, and what is captured.

    It puts out gradients of the states before, those of what is captured added up, and of slices.
    """
    graph, b = steps.body, GraphBuilder(f"{steps.body.name} backward")
    names = graph.inputs
    added = [i for i in steps.captured if i in wanted]
    of_states = [
        _declare(b, f"{b.name}/of {graph.outputs[i]}", steps.spec(i)) for i in steps.floats
    ]
    sums = [_declare(b, f"{b.name}/sum {names[i]}", steps.spec(i)) for i in added]
    for index in (*steps.scanned, *steps.states):
        _declare(b, names[index], steps.spec(index))
    outputs = [graph.outputs[i] for i in steps.stacked]
    of_slices = [_declare(b, f"{b.name}/of {name}", graph.tensors[name]) for name in outputs]
    for index in steps.captured:
        _declare(b, names[index], steps.spec(index))
    made = b.include(graph, {name: name for name in names}, prefix="")
    ys = [made[graph.outputs[i]] for i in (*steps.floats, *steps.stacked)]
    slices = [i for i in steps.scanned if i in wanted]
    xs = [*steps.floats, *added, *slices]
    found = _gradients(b, ys, [names[i] for i in xs], [*of_states, *of_slices])
    for place, total in enumerate(sums, len(of_states)):
        # Not an output for each step, whose sum would take the memory of all steps.
        found[place] = b.op("Add", total, found[place])
    _put_out(b, graph, found, xs)
    return b.build()


def _ways(steps: _Steps, kept: int, wanted: Sequence[int]) -> dict[str, list[int]]:
    """Return axes and directions for going back: every direction is turned."""
    scanned = range(len(steps.scanned))
    axes = [steps.axis("scan_input_axes", i) for i in scanned]
    turned = [1 - steps.axis("scan_input_directions", i) for i in scanned]
    stacked = [index - len(steps.states) for index in steps.stacked]
    own = [index - len(steps.states) for index in steps.scanned if index in wanted]
    return {
        "scan_input_axes": [
            *axes,
            *[0] * kept,
            *(steps.axis("scan_output_axes", i) for i in stacked),
        ],
        "scan_input_directions": [
            *turned,
            # Stacked from the first step on, and read from the last.
            *[1] * kept,
            *(1 - steps.axis("scan_output_directions", i) for i in stacked),
        ],
        "scan_output_axes": [axes[i] for i in own],
        "scan_output_directions": [turned[i] for i in own],
    }
