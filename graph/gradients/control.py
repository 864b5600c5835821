"""Gradients of If, Scan and Loop: nodes with nested graphs of gradients.

The states of a Scan or Loop are recomputed, this time keeping all of them; then a Scan visits the
steps from the last to the first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..building.builder import GraphBuilder
from ..building.named_tensor import Tensor
from ..core.ir import Graph
from ..core.nested import call_graph
from ..core.operator import Call
from ..operators.control import get_axis, infer_nested_inputs
from ..values.dtypes import kind_of
from ..values.errors import GraphError
from ..values.tensor import TensorSpec
from .elementwise import Gradients
from .formula import Term
from .registry import Adjoint, gradient


@gradient("If")
def if_(at: Adjoint) -> Gradients:
    captured = [at.input(index) for index in range(1, len(at.inputs))]
    specs = [x.spec for x in captured]
    wanted = [index for index in range(len(captured)) if at.wants(index + 1)]
    through = [index for index, g in enumerate(at.gradients) if g is not None]
    branches = {
        name: _reverse_graph(call_graph(at[name], specs), through, wanted)
        for name in ("then_branch", "else_branch")
    }
    # Both branches get all inputs and use some: the branch is known at run time.
    given = [*captured, *(at.gradient(index) for index in through)]
    made = at.formula.split("If", at.input(0), *given, outputs=len(wanted), **branches)
    yield from zip((index + 1 for index in wanted), made, strict=True)


def _reverse_graph(graph: Graph, through: Sequence[int], wanted: Sequence[int]) -> Graph:
    """Return the graph from inputs and gradients of outputs `through` to those of `wanted`."""
    b, outputs = _open(graph)
    ys = [outputs[graph.outputs[index]] for index in through]
    weights = [
        _declare(b, f"{b.name}/of {graph.outputs[i]}", b.spec(y))
        for i, y in zip(through, ys, strict=True)
    ]
    _add_outputs(
        b, graph, _add_gradients(b, ys, [graph.inputs[i] for i in wanted], weights), wanted
    )
    return b.build()


def _open(graph: Graph) -> tuple[GraphBuilder, Mapping[str, str]]:
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


def _add_gradients(
    b: GraphBuilder, ys: Sequence[str], xs: Sequence[str], weights: Sequence[str]
) -> list[Tensor]:
    from .build import gradients  # imported late, since it finds this rule

    return gradients(b, list(ys), list(xs), list(weights))


def _add_outputs(b: GraphBuilder, graph: Graph, made: Sequence[str], wanted: Sequence[int]) -> None:
    for index, name in zip(wanted, made, strict=True):
        b.output(f"{b.name}/to {graph.inputs[index]}", name)


@dataclass(frozen=True)
class _Steps:
    """A Scan or a Loop, seen as a Scan."""

    at: Adjoint
    body: Graph
    """With the specs of every step. Its inputs are states, slices and captured tensors, its outputs
    the states and the stacked outputs."""
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
        return [i for i in self.states if kind_of(self.spec(i).dtype) == "f"]

    @property
    def wanted(self) -> list[int]:
        """The inputs other than states that need gradients."""
        others = (*self.scanned, *self.captured)
        return [i for i in others if self.places[i] >= 0 and self.at.wants(self.places[i])]

    @property
    def stacked(self) -> list[int]:
        """The outputs with a slice for each step, of those that have gradients."""
        outputs = range(len(self.states), len(self.at.gradients))
        return [index for index in outputs if self.at.gradients[index] is not None]

    def spec(self, index: int) -> TensorSpec:
        return self.body.tensors[self.body.inputs[index]]

    def axis(self, attribute: str, index: int) -> int:
        """Return the axis in `attribute` for the scanned input or stacked output `index`."""
        return get_axis(_make_call(self.at), attribute, index) if self.at.node.op == "Scan" else 0


def _make_call(at: Adjoint) -> Call:
    specs = tuple(None if x is None else x.spec for x in at.inputs)
    return Call(specs, (None,) * len(specs), at.node.attributes, len(at.gradients))


def _specialize_body(at: Adjoint) -> Graph:
    known = [at.formula.builder.spec(name) if name else None for name in at.node.outputs]
    return call_graph(at["body"], infer_nested_inputs(at.node.op, _make_call(at), known))


@gradient("Scan")
def scan(at: Adjoint) -> Gradients:
    # From the last step to the first, with each step's initial states.
    total, captured, scanned = len(at.inputs), at["captured"], at["num_scan_inputs"]
    first, last = total - captured - scanned, total - captured
    ranges = range(first), range(first, last), range(last, total)
    terms = [at.input(index) for index in range(total)]
    steps = _Steps(at, _specialize_body(at), *ranges, terms, range(total))
    names = ("num_scan_inputs", "captured", "scan_input_axes", "scan_input_directions")
    shared = {name: at[name] for name in names}
    yield from _differentiate(steps, _stack_again(at, steps.body, first, steps.states, shared))


@gradient("Loop")
def loop(at: Adjoint) -> Gradients:
    # A Scan over the numbers of its iterations.
    body, captured = _specialize_body(at), at["captured"]
    count = len(at.inputs) - 2 - captured
    states, others = range(2, 2 + count), range(2 + count, len(at.inputs))
    made = _stack_again(at, body, count, [*states, 0, 1], {"captured": captured})
    # In the order of a Scan: states, then the values of each step, namely the iteration's number
    # and condition, then captured tensors.
    order = [*states, 0, 1, *others]
    inputs = tuple(body.inputs[index] for index in order)
    outer = [at.input(index) for index in (*states, *others)]
    terms = [*outer[:count], *made[count:], *outer[count:]]
    ranges = range(count), range(count, count + 2), range(count + 2, len(order))
    places = [*states, -1, -1, *others]
    scanned = replace(body, inputs=inputs, outputs=body.outputs[1:])
    yield from _differentiate(_Steps(at, scanned, *ranges, terms, places), made[:count])


def _stack_again(
    at: Adjoint, body: Graph, states: int, kept: Sequence[int], attributes: dict[str, Any]
) -> list[Term]:
    """Return inputs of `body`, those of the indices `kept`, stacked over all iterations of `at`.

    A loop with `attributes` stacks them; the first `states` inputs are its states.
    """
    if not kept:
        return []
    b, outputs = _open(body)
    # States are carried as before, since later iterations depend on them.
    heads = states + (at.node.op == "Loop")  # its condition comes first
    for name in body.outputs[:heads]:
        b.output(f"{b.name}/next {name}", outputs[name])
    for index in kept:
        b.output(f"{b.name}/kept {body.inputs[index]}", body.inputs[index])
    count = states + len(kept)
    made = at.formula.split(at.node.op, *at.inputs, outputs=count, body=b.build(), **attributes)
    return made[states:]


def _differentiate(steps: _Steps, kept: Sequence[Term]) -> Gradients:
    """Yield the gradients for `steps`; `kept` are the stacked initial states of each step."""
    at, wanted = steps.at, steps.wanted
    body = _reverse_step(steps, wanted)
    added = [i for i in steps.captured if i in wanted]
    begin = [_get_state_gradient(steps, i) for i in steps.floats]
    # Captured tensors are read in each step: their gradients accumulate in a further state.
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
        **_reverse_ways(steps, len(kept), wanted),
    )
    order = [*steps.floats, *added, *(i for i in steps.scanned if i in wanted)]
    yield from zip((steps.places[i] for i in order), made, strict=True)


def _get_state_gradient(steps: _Steps, index: int) -> Term:
    given = steps.at.gradients
    g = given[index] if index < len(given) else None
    return steps.at.formula.like(steps.terms[index], 0) if g is None else g


def _reverse_step(steps: _Steps, wanted: Sequence[int]) -> Graph:
    """Return the body that goes one of `steps` back, and computes gradients of the inputs `wanted`.

    Its outputs are the gradients of the previous states, the sums for captured tensors, and those
    of slices.
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
    found = _add_gradients(b, ys, [names[i] for i in xs], [*of_states, *of_slices])
    for place, total in enumerate(sums, len(of_states)):
        # An output for each step, summed later, would need the memory of all steps.
        found[place] = b.op("Add", total, found[place])
    _add_outputs(b, graph, found, xs)
    return b.build()


def _reverse_ways(steps: _Steps, kept: int, wanted: Sequence[int]) -> dict[str, list[int]]:
    """Return axes and directions of the Scan back over `kept` states, for inputs `wanted`."""
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
