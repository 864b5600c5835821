"""Graphs in the form in which devices run them, once nodes have devices.

Nodes that a device lacks are written out in others, and elementwise chains become one node if it
asks for that. A chain ends with one node, and is a tree or a diamond before it: all its nodes write
tensors of one shape, which are read only inside. It runs in place of its last node. Costs and
partitions treat single nodes: chains are expanded before any new planning.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from heapq import heappop, heappush
from typing import NamedTuple, TypeAlias

from ...devices.device import Chaining
from ...devices.kinds import get_kind
from ...devices.refusals import find_refusal
from ...graph.core.infer import infer_node
from ...graph.core.ir import Graph, Node, make_call
from ...graph.core.operator import find_operator
from ...graph.operators.control import iterate_placed_nodes
from ...graph.operators.fused import FUSED, MOST_INPUTS
from ...graph.passes.pipeline import Applied, run_passes
from ...graph.values.tensor import Shape, TensorSpec
from ..costs.choices import DeviceChoices
from ..plans.partition import Partition
from ..plans.placement import Placement
from ..plans.request import PlanRequest, find_pin
from .partition.choose import Choice
from .placement import place

AFTER_CHOICE = frozenset({"write_out", "fuse_chains"})
"""Passes after the choice of devices, as plans list them."""


class Lowered(NamedTuple):
    """A graph as it will run, by a choice."""

    graph: Graph
    choice: Choice
    applied: tuple[Applied, ...] = ()
    """The rewrites of the graph."""
    template: Graph | None = None
    """The graph with its symbols, rewritten likewise."""

    @property
    def placement(self) -> Placement:
        """The places of all tensors, which exist once dimensions are known."""
        assert self.choice.placement is not None
        return self.choice.placement


def lower(graph: Graph, choice: Choice, request: PlanRequest, template: Graph | None) -> Lowered:
    """Return `graph`, a static one, as devices of `choice` get it, and `choice` for its nodes.

    Nodes that they lack are written out, and chains fused if `request` says so. `template` is the
    graph with its symbols, if its nodes are for other shapes too.
    """

    def write_out(given: Graph, _: object) -> Graph:
        return choice.graph if given is graph else given

    plain, applied = run_passes(graph, (write_out,))
    template = template and choice.written.into(template)
    chains = [
        chain
        for subgraph in choice.partition.subgraphs
        if request.options.fuses_chains
        and isinstance(device := request.devices[subgraph.device], Chaining)
        for chain in _Finder(subgraph.graph, device, template or plain).chains()
    ]
    if not chains:
        return Lowered(plain, choice, applied, template)

    def fuse_chains(given: Graph, _: object) -> Graph:
        return with_chains(given, chains) if given is plain else given

    fused, joined = run_passes(plain, (fuse_chains,))
    partition = _partition(fused, choice.partition)
    placement = place(fused, partition, request.devices, request.ends)
    judged = choice.judged
    if judged is not None:
        judged = replace(
            judged, graph=fused, partition=partition, placement=placement, rivals=[], others=[]
        )
    chosen = replace(choice, graph=fused, partition=partition, placement=placement, judged=judged)
    template = template and fuse_alike(template, fused)
    return Lowered(fused, chosen, (*applied, *joined), template)


def _partition(fused: Graph, partition: Partition) -> Partition:
    nodes = {node.name: node for node in fused.nodes}
    assignment, reasons = dict[str, str](), dict[str, str]()
    for path, _, node in iterate_placed_nodes(fused):
        old = path if path in partition.assignment else node.name  # nodes in a chain have a path
        assignment[path] = partition.assignment[old]
        reasons[path] = partition.reasons.get(old, "")
    subgraphs = []
    for one in partition.subgraphs:
        kept = [nodes[node.name] for node in one.graph.nodes if node.name in nodes]
        subgraphs.append(replace(one, graph=fused.extract(kept, one.name)))
    return Partition(assignment, reasons, tuple(subgraphs))


LEAST_BYTES, LEAST_BETWEEN_BYTES = 1 << 23, 1 << 25
"""Least bytes that a chain writes, and that lie between its nodes.

Measured on 2 cores with 1 MiB of cache each and 32 MiB together, numpy 2.4: shorter tensors stay in
cache, and a chain may take 1.1 times as long as its nodes; from 16 MB on it takes 0.35 to 0.9 of
their time (bench_chains.py).
"""

MOST_NODES = 64

Chain: TypeAlias = Sequence[Node]


def expand_chains(graph: Graph) -> Graph:
    if all(node.op != FUSED for node in graph.nodes):
        return graph
    tensors, nodes = dict(graph.tensors), list[Node]()
    for node in graph.nodes:
        if node.op != FUSED:
            nodes.append(node)
            continue
        for member in node.attributes["body"].nodes:
            (spec,) = infer_node(member, make_call(member, tensors, graph.constants))
            tensors.setdefault(member.outputs[0], spec)
            nodes.append(member)
    return replace(graph, nodes=tuple(nodes), tensors=tensors)


def with_chains(graph: Graph, chains: Iterable[Chain]) -> Graph:
    last = {chain[-1].name: chain for chain in chains}
    inside = {node.name for chain in last.values() for node in chain}
    return graph.with_nodes(
        [
            _fuse(graph, last[node.name]) if node.name in last else node
            for node in graph.nodes
            if node.name in last or node.name not in inside
        ]
    )


def fuse_alike(template: Graph, fused: Graph) -> Graph:
    nodes = {node.name: node for node in template.nodes}
    bodies = (node.attributes["body"] for node in fused.nodes if node.op == FUSED)
    return with_chains(template, [[nodes[one.name] for one in body.nodes] for body in bodies])


class _Finder:
    """Finds the profitable chains of a subgraph on a device, from its last node to its first.

    `shapes` is the graph with its symbols, if the chains are for other shapes too.
    """

    def __init__(self, graph: Graph, device: Chaining, shapes: Graph) -> None:
        self._graph, self._device, self._shapes = graph, device, shapes
        self._place = {node.name: place for place, node in enumerate(graph.nodes)}
        self._taken: set[str] = set()

    def chains(self) -> Iterator[Chain]:
        # From the end: a chain extends backwards from its last node as far as possible.
        for root in reversed(self._graph.nodes):
            if root.name in self._taken or not self._is_large(root) or not self._is_member(root):
                continue
            chain = self._grown(root)
            if len(chain) > 1 and self._pays(root, len(chain)):
                self._taken.update(chain)
                yield sorted(chain.values(), key=lambda node: self._place[node.name])

    def _is_large(self, node: Node) -> bool:
        specs = (self._graph.tensors[name] for name in node.outputs if name)
        return any(spec.is_static and spec.nbytes >= LEAST_BYTES for spec in specs)

    def _pays(self, root: Node, count: int) -> bool:
        nbytes = self._graph.tensors[root.outputs[0]].nbytes
        # Fusing saves writing and reading each tensor between nodes.
        return (count - 1) * nbytes >= LEAST_BETWEEN_BYTES

    def _grown(self, root: Node) -> dict[str, Node]:
        inside, reads = {root.name: root}, {*filter(None, root.inputs)}
        waiting: list[tuple[int, str]] = []
        self._push(root, waiting)
        while waiting and len(inside) < MOST_NODES:
            _, name = heappop(waiting)  # the last one: its readers have been examined
            node = self._graph.producers[name]
            # The chain's inputs with this member: its inputs replace its output.
            grown = {*reads, *filter(None, node.inputs)} - {name}
            if self._joins(node, root, inside, reads) and len(grown) <= MOST_INPUTS:
                inside[node.name], reads = node, grown
                self._push(node, waiting)
        return inside

    def _push(self, node: Node, waiting: list[tuple[int, str]]) -> None:
        for name in dict.fromkeys(node.inputs):
            producer = self._graph.producers.get(name)
            if producer is not None:
                heappush(waiting, (-self._place[producer.name], name))

    def _joins(self, node: Node, root: Node, inside: Mapping[str, Node], reads: set[str]) -> bool:
        if node.name in inside or node.name in self._taken or len(node.outputs) != 1:
            return False
        (name,) = node.outputs
        if name in self._graph.fetched:
            return False
        # Another reader needs the tensor in memory.
        if any(reader.name not in inside for reader in self._graph.consumers[name]):
            return False
        if self._shape(node) is None or self._shape(node) != self._shape(root):
            return False
        if not self._is_member(node):
            return False
        # Adjacent nodes run no later than before; others keep their inputs until the chain runs,
        # which must not take more bytes than fusing saves.
        is_next = len(inside) == self._place[root.name] - self._place[node.name]
        return is_next or self._holds_no_more(node, reads)

    def _holds_no_more(self, node: Node, reads: set[str]) -> bool:
        """Return whether a node run later holds no more bytes, beside `reads`, than it writes."""
        specs, known = self._graph.tensors, {*reads, *self._graph.constants, ""}
        held = sum(specs[name].nbytes for name in {*node.inputs} - known)
        return held <= specs[node.outputs[0]].nbytes

    def _is_member(self, node: Node) -> bool:
        if len(node.outputs) != 1 or not self._graph.tensors[node.outputs[0]].is_static:
            return False
        return self._device.chains(node, self._graph.call(node))

    def _shape(self, node: Node) -> Shape | None:
        spec = self._shapes.tensors.get(node.outputs[0])
        return None if spec is None else spec.shape


def _fuse(graph: Graph, chain: Chain) -> Node:
    last = chain[-1]
    written = {node.outputs[0] for node in chain}
    read = dict.fromkeys(name for node in chain for name in node.inputs if name)
    inputs = tuple(name for name in read if name not in written)
    tensors = {name: TensorSpec(graph.tensors[name].dtype) for name in (*inputs, *sorted(written))}
    # Without shapes: bodies are equal at all lengths, so compiled code is shared.
    body = Graph(last.name, inputs, last.outputs, tuple(chain), tensors, {})
    attributes = find_operator(FUSED).complete({"body": body}, str(last))
    return Node(last.name, FUSED, inputs, last.outputs, attributes)


def move_to_measured(lowered: Lowered, request: PlanRequest, choices: DeviceChoices) -> Lowered:
    """Move subgraphs of `lowered` to faster devices in `choices`, unless `request` pins them."""
    choice, devices = lowered.choice, {get_kind(n): d for n, d in request.devices.items()}
    assignment, reasons = dict(choice.partition.assignment), dict(choice.partition.reasons)
    subgraphs = list(choice.partition.subgraphs)
    for number, one in enumerate(subgraphs):
        graph, kind = one.graph, get_kind(one.device)
        answer = kind in choices.software and choices.answers.get(choices.key(graph))
        if not answer or answer == kind or (device := devices.get(answer)) is None:
            continue
        pinned = (find_pin(node, request.kept) for node in graph.nodes)
        if any(pinned) or any(find_refusal(device, graph, node) for node in graph.nodes):
            continue
        for path, _, _ in iterate_placed_nodes(graph):
            assignment[path] = device.name
            reasons[path] = f"real items took longer on {one.device!r}"
        subgraphs[number] = one.on(device.name)
    if assignment == choice.partition.assignment:
        return lowered
    partition = Partition(assignment, reasons, tuple(subgraphs))
    placement = place(lowered.graph, partition, request.devices, request.ends)
    why = f"{choice.decision.why}; then some moved to a device measured to be faster"
    decision = replace(choice.decision, why=why)
    # Without `judged`: its figures are of the devices before.
    chosen = replace(
        choice, partition=partition, placement=placement, decision=decision, judged=None
    )
    return lowered._replace(choice=chosen)
