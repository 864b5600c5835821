"""Offers of every device for every node: support, predicted time, and reasons as text.

A node that a device lacks is offered to it as written out by the rules of
`plait.graph.decompositions`. Passes merge nodes if some device supports the result; the form is
decided with the device, so merging for one device takes no choice from another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf

from ....devices.device import Device, Support, check_support, explain_refusal
from ....graph.core.infer import infer_node
from ....graph.core.ir import Graph, Node, make_call
from ....graph.core.nested import find_async_operator
from ....graph.core.printing import format_bytes, format_seconds
from ....graph.core.traits import FULLY_CONNECTED, LENGTHS
from ....graph.decompositions.rules import decompositions
from ....graph.operators.control import iterate_placed_nodes, waits
from ....graph.passes.expand import expand_node
from ....graph.passes.rewriting import Rewriter
from ....graph.values.tensor import Array, spec_of
from ...costs import Costs
from ...costs.costs import PYTHON_S
from ...plans.partition import Option
from ...plans.request import Pins, find_pin
from .cutting import Parts
from .partition import WRITTEN_OUT, Homeless, explain_place, unsupported_error
from .problem import PartitionProblem

WORTHWHILE, FULLY_CONNECTED_WEIGHT = 3, 3
"""In Tengine's rule, the least weight of a run, and the weight of a fully connected node."""


@dataclass(frozen=True)
class WrittenOut:
    nodes: Mapping[str, Sequence[Node]] = field(default_factory=dict)
    """By the name of the replaced node; the last replacement has that name."""
    constants: Mapping[str, Array] = field(default_factory=dict)
    """Constants that they read, and more."""

    def into(self, graph: Graph) -> Graph:
        if not self.nodes:
            return graph
        tensors, found, added = dict(graph.tensors), list[Node](), dict[str, Array]()
        values = {**self.constants, **graph.constants}
        for node in graph.nodes:
            made = self.nodes.get(node.name, (node,))
            for one in made if node.name in self.nodes else ():
                # Constants of the replacements; those of the graph take precedence.
                read = {name: values[name] for name in one.inputs if name not in tensors and name}
                added.update(read)
                tensors.update({name: spec_of(value) for name, value in read.items()})
                specs = infer_node(one, make_call(one, tensors, values))
                tensors.update(pair for pair in zip(one.outputs, specs, strict=True) if pair[0])
            found += made
        return replace(graph, tensors=tensors).with_nodes(found, added)

    def spread(
        self, graph: Graph, devices: Sequence[str], parts: Parts
    ) -> tuple[Graph, list[str], Parts]:
        places, spread = list[range](), list[str]()
        for node, device in zip(graph.nodes, devices, strict=True):
            start = len(spread)
            spread += [device] * len(self.nodes.get(node.name, (node,)))
            places.append(range(start, len(spread)))
        inside = [[place for node in part for place in places[node]] for part in parts]
        return self.into(graph), spread, inside


class Forms:
    """Replacements of nodes that devices lack.

    The graph has the symbols of its shapes, if the nodes are for other shapes too.
    """

    def __init__(self, graph: Graph) -> None:
        self._rewriter = Rewriter(graph)
        self._graph_nodes = {node.name: node for node in graph.nodes}
        self._found: dict[tuple[str, str], Sequence[Node]] = {}

    def offer(self, node: Node, name: str, device: Device, answer: Support) -> Support:
        known = self._graph_nodes.get(node.name)
        # Nodes of nested graphs, and rewired ones, may have the same name.
        if node.op not in decompositions() or known is None or known.inputs != node.inputs:
            return answer
        made = expand_node(self._rewriter, known, partial(explain_refusal, device))
        if made is None or any(LENGTHS in one.operator.traits for one in made):
            return answer  # shapes are known ahead
        self._found[name, node.name] = made
        return Support(True, WRITTEN_OUT)

    def has(self, node: Node, device: str) -> bool:
        return (device, node.name) in self._found

    def of(self, graph: Graph, node: Node, device: str) -> Graph:
        form = WrittenOut({node.name: self._found[device, node.name]}, self._rewriter.constants)
        return form.into(graph.extract([node], node.name))

    def chosen(self, graph: Graph, devices: Sequence[str]) -> WrittenOut:
        nodes = {
            node.name: self._found[device, node.name]
            for node, device in zip(graph.nodes, devices, strict=True)
            if (device, node.name) in self._found
        }
        return WrittenOut(nodes, self._rewriter.constants if nodes else {})


@dataclass(frozen=True, slots=True)
class Offers:
    """The devices that each node of a graph may go to."""

    graph: Graph
    devices: Mapping[str, Device]
    supports: Sequence[Sequence[Support]]
    """For every node the answer of every device."""
    pinned: Sequence[str | None]
    """For every node the pin that applies."""
    allowed: Sequence[tuple[int, ...]]
    """For every node the indices of its possible devices."""
    forms: Forms | None = None

    @property
    def is_settled(self) -> bool:
        """Whether every node has a single device."""
        return all(len(devices) == 1 for devices in self.allowed)

    def seconds(self, costs: Costs) -> list[list[float]]:
        """Return each node's seconds on each device by `costs`; infinity where it may not go."""
        return [
            [
                # Infinity excludes a device from every search without further checks.
                estimate_seconds(costs, self.graph, node, name, self.forms)
                if device in allowed
                else inf
                for device, name in enumerate(self.devices)
            ]
            for node, allowed in zip(self.graph.nodes, self.allowed, strict=True)
        ]

    def priced(self, costs: Costs, seconds: Sequence[Sequence[float]]) -> Priced:
        known = {
            (name, node.name): times[device]
            for node, times in zip(self.graph.nodes, seconds, strict=True)
            for device, name in enumerate(self.devices)
            # Not of replacements: one of them may have the name of the node.
            if times[device] < inf and not (self.forms and self.forms.has(node, name))
        }
        return Priced(**vars(replace(costs)), known=known)


@dataclass(frozen=True)
class Priced(Costs):
    """Costs that cache the times of one graph's nodes, by device and name."""

    known: Mapping[tuple[str, str], float] = field(default_factory=dict)

    def node_s(self, device: str, graph: Graph, node: Node) -> float:
        seconds = self.known.get((device, node.name))
        return super().node_s(device, graph, node) if seconds is None else seconds


def estimate_seconds(
    costs: Costs, graph: Graph, node: Node, device: str, forms: Forms | None = None
) -> float:
    if forms is None or not forms.has(node, device):
        return costs.node_s(device, graph, node)
    form = forms.of(graph, node, device)
    return sum(costs.node_s(device, form, one) for one in form.nodes)


def ask(
    graph: Graph,
    devices: Mapping[str, Device],
    pins: Pins,
    *,
    writes_out: bool = False,
    template: Graph | None = None,
) -> Offers:
    """Return the offers of `devices`, by `pins`, for all of `graph`, or raise UnsupportedOpError.

    With `writes_out`, devices are offered replacements for nodes that they lack, valid for all
    shapes of the `template`.
    """
    forms = Forms(template or graph) if writes_out else None
    names = tuple(devices)
    supports, pinned, allowed, homeless = [], [], [], []
    for node in graph.nodes:
        # All devices, even for a pinned node: reports show the alternatives.
        answers = [check_support(graph, node, device) for device in devices.values()]
        pattern = find_pin(node, pins)
        wanted = range(len(names)) if pattern is None else (names.index(pins[pattern]),)
        # Awaited nodes are not written out if a device supports them.
        is_awaited = find_async_operator(node) is not None and any(
            answers[index].ok for index in wanted
        )
        for index in wanted:
            if forms is not None and not answers[index].ok and not is_awaited:
                name = names[index]
                answers[index] = forms.offer(node, name, devices[name], answers[index])
        able = tuple(device for device in wanted if answers[device].ok)
        if not able:
            by = "" if pattern is None else f"pinned to {pins[pattern]} by {pattern!r}: "
            whys = (answers[d].reason if by else f"{names[d]}: {answers[d].reason}" for d in wanted)
            homeless.append(Homeless(graph, node, f"{by}{'; '.join(whys)}"))
        supports.append(answers)
        pinned.append(pattern)
        allowed.append(able)
    # All in one error: fixing one must not need another plan to find the next.
    if homeless:
        raise unsupported_error(graph, homeless, devices, pins)
    return Offers(graph, devices, supports, pinned, allowed, forms)


def assign_by_order(offers: Offers) -> tuple[dict[str, str], dict[str, str]]:
    """Assign nodes to the first device that `offers` allow; return reasons by node, too."""
    names = tuple(offers.devices)
    assignment: dict[str, str] = {}
    reasons: dict[str, str] = {}
    every = zip(offers.graph.nodes, offers.supports, offers.pinned, offers.allowed, strict=True)
    for node, answers, pattern, (first, *_) in every:
        refused = [f"{names[d]}: {answers[d].reason}" for d in range(first)]
        assignment[node.name] = names[first]
        reasons[node.name] = (
            f"pinned by {pattern!r}" if pattern else explain_place(answers[first], refused)
        )
    return assignment, reasons


def list_options(
    graph: Graph, devices: Mapping[str, Device], costs: Costs, forms: Forms | None = None
) -> dict[str, tuple[Option, ...]]:
    """Return the options of all `devices` for each node of `graph`.

    They have times by `costs` if the graph is static. `forms` are those of nodes written out.
    """
    return {
        path: tuple(
            _make_written_option(graph, node, name, costs, forms)
            if forms is not None and around is graph and forms.has(node, name)
            else _make_option(around, node, name, device, costs)
            for name, device in devices.items()
        )
        for path, around, node in iterate_placed_nodes(graph)
        if not waits(node)
    }


def _make_written_option(graph: Graph, node: Node, name: str, costs: Costs, forms: Forms) -> Option:
    form = forms.of(graph, node, name)
    # Times of mixed sources count as the least reliable.
    bases = {costs.basis(name, form, one) for one in form.nodes}
    basis = bases.pop() if len(bases) == 1 else "model"
    return Option(name, True, WRITTEN_OUT, estimate_seconds(costs, graph, node, name, forms), basis)


def _make_option(graph: Graph, node: Node, name: str, device: Device, costs: Costs) -> Option:
    answer = check_support(graph, node, device)
    specs = [graph.tensors[tensor] for tensor in (*node.inputs, *node.outputs) if tensor]
    if not answer.ok or not all(spec.is_static for spec in specs):
        return Option(name, answer.ok, answer.reason)
    seconds, basis = costs.node_s(name, graph, node), costs.basis(name, graph, node)
    return Option(name, True, answer.reason, seconds, basis)


def explain_settled(offers: Offers) -> dict[str, str]:
    names = tuple(offers.devices)
    return {
        node.name: _explain_only(offers, index, names)
        for index, node in enumerate(offers.graph.nodes)
    }


def explain_weighed(
    offers: Offers, problem: PartitionProblem, costs: Costs, assignment: Sequence[int]
) -> dict[str, str]:
    names = tuple(offers.devices)
    return {
        node.name: _explain_only(offers, index, names)
        if len(offers.allowed[index]) == 1
        else _explain_weighed(offers, problem, costs, assignment, index)
        for index, node in enumerate(offers.graph.nodes)
    }


def explain_written(
    graph: Graph, written: WrittenOut, assignment: Mapping[str, str]
) -> dict[str, str]:
    return {
        one.name: f"written out: {assignment[name]} lacks {graph.node(name).op}"
        for name, nodes in written.nodes.items()
        for one in nodes
        if one.name != name
    }


def _explain_only(offers: Offers, index: int, names: Sequence[str]) -> str:
    (device,) = offers.allowed[index]
    pattern = offers.pinned[index]
    if pattern is not None:
        return f"pinned by {pattern!r}"
    answers = offers.supports[index]
    refused = [f"{names[d]}: {one.reason}" for d, one in enumerate(answers) if not one.ok]
    text = answers[device].reason
    return f"{text} (not on {'; '.join(refused)})" if refused else text


def _explain_weighed(
    offers: Offers, problem: PartitionProblem, costs: Costs, assignment: Sequence[int], index: int
) -> str:
    names, here = problem.names, assignment[index]
    seconds = problem.seconds[index]
    node = offers.graph.nodes[index]
    times = [f"{format_seconds(seconds[here])} here"]
    times += [
        f"{format_seconds(seconds[device])} on {names[device]}"
        for device in offers.allowed[index]
        if device != here
    ]
    faster = [d for d in offers.allowed[index] if seconds[d] < seconds[here]]
    text = ", ".join(times)
    if faster:
        best = min(faster, key=lambda device: (seconds[device], device))
        text = f"with its neighbours: {text}; {_describe_move(problem, assignment, index, best)}"
    text += _describe_basis(offers, costs, node, names[here])
    refused = [
        f"{names[d]}: {one.reason}" for d, one in enumerate(offers.supports[index]) if not one.ok
    ]
    return f"{text} (not on {'; '.join(refused)})" if refused else text


def _describe_move(
    problem: PartitionProblem, assignment: Sequence[int], index: int, device: int
) -> str:
    sizes = [
        nbytes
        for other, nbytes in (*problem.tasks.producers[index], *problem.tasks.consumers[index])
        # Without latency, the way stays within one memory: nothing is copied.
        if assignment[other] != device and problem.ways[assignment[other]][device].latency_s > 0
    ]
    where = problem.names[device]
    if sizes:
        copies = "a copy" if len(sizes) == 1 else f"{len(sizes)} copies"
        return f"moving it to {where} would add {copies} of {format_bytes(sum(sizes))}"
    return f"moving it to {where} would make the whole no shorter"


def _describe_basis(offers: Offers, costs: Costs, node: Node, device: str) -> str:
    basis = costs.basis(device, offers.graph, node)
    if basis != "model":
        return f", {basis}"
    if node.operator.function is not None:
        return f"; what a Python function takes is unknown, {format_seconds(PYTHON_S)} assumed"
    return ""


def assign_by_runs(offers: Offers) -> tuple[dict[str, str], dict[str, str]]:
    """Assign nodes by Tengine's rule, as `offers` allow; return reasons by node, too.

    The rule, for comparison, makes runs of supported nodes, unless they are too short. In Tengine
    there is one device, here the first, with the CPU as its fallback, here the others, and the
    nodes form a row. Each node that the device lacks goes to the CPU, together with the nodes up to
    the next such one if these weigh less than 3: a fully connected node counts 3, any other 1.
    Nodes before the first go to the device. Neighbours on the same device are one subgraph.

    Three mistakes of its source are fixed. A node without outputs is not unsupported. An
    unsupported first node has no empty subgraph before it. Subgraphs are cut along edges, so that a
    branch unrelated to an unsupported node is not split. With more than two devices, nodes that the
    first does not get go to the first of the others that supports them.
    """
    graph, names = offers.graph, tuple(offers.devices)
    assignment: dict[str, str] = {}
    reasons: dict[str, str] = {}
    for first, after in _split_segments(offers):
        blocked = 0 not in offers.allowed[first]
        inside = range(first + blocked, after)
        weight = sum(_weigh(graph, graph.nodes[index]) for index in inside)
        short = blocked and weight < WORTHWHILE
        for index in range(first, after):
            node, allowed = graph.nodes[index], offers.allowed[index]
            others = [device for device in allowed if device]
            leaves = short and others
            device = others[0] if leaves or 0 not in allowed else 0
            assignment[node.name] = names[device]
            reasons[node.name] = _explain(offers, index, names, bool(leaves), weight)
    return assignment, reasons


def _split_segments(offers: Offers) -> list[tuple[int, int]]:
    count = len(offers.allowed)
    begins = [index for index, allowed in enumerate(offers.allowed) if 0 not in allowed]
    if count and 0 not in begins:
        begins.insert(0, 0)
    return list(zip(begins, [*begins[1:], count], strict=True))


def _weigh(graph: Graph, node: Node) -> int:
    connected = FULLY_CONNECTED in node.operator.traits
    connected |= node.op == "MatMul" and node.inputs[1] in graph.constants
    return FULLY_CONNECTED_WEIGHT if connected else 1


def _explain(offers: Offers, index: int, names: Sequence[str], leaves: bool, weight: int) -> str:
    pattern = offers.pinned[index]
    if pattern is not None:
        return f"pinned by {pattern!r}"
    if 0 not in offers.allowed[index]:
        return f"not on {names[0]}: {offers.supports[index][0].reason}"
    if leaves:
        return f"a run of weight {weight} is too short for {names[0]}: it takes {WORTHWHILE}"
    return f"part of a run on {names[0]}: {offers.supports[index][0].reason}"
