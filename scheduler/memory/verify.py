"""An independent check that a memory plan never lets two live tensors share a byte.

It shares no code with the planner: the order is a plain search through the points of the plan, and
tensors are compared pair by pair where their bytes overlap, not buffer by buffer.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import combinations

from ...graph.errors import InternalError
from ...graph.ir import Node
from ..partition.partition import Subgraph
from ..placement import OUTSIDE
from ..planning import Plan
from ..steps import Step, Transfer
from .buffers import Replica
from .memory_plan import SLOT

FEED, FETCH = "feed", "fetch"

Place = str | tuple[str, str]
"""A point of the plan: feed, fetch, or (step, node); without a node for what is one piece."""


def verify_memory(plan: Plan) -> None:
    """Raise InternalError if two tensors of a static plan could overlap while both are needed."""
    assert plan.memory is not None, "shapes are known"
    check = _Check(plan)
    regions: dict[tuple[str, str], list[Replica]] = defaultdict(list)
    for replica, location in plan.memory.locations.items():
        regions[location.memory, location.region].append(replica)
        check.is_inside(replica)
    for (_, region), replicas in regions.items():
        for a, b in combinations(replicas, 2):
            if check.overlap(a, b):
                check.pair(a, b, shared_by_items=region != SLOT)


@dataclass
class _Use:
    """Who writes a replica and who reads it."""

    nbytes: int
    writer: Place
    readers: list[Place] = field(default_factory=list)
    node: Node | None = None

    @property
    def places(self) -> list[Place]:
        return [self.writer, *self.readers]


class _Check:
    def __init__(self, plan: Plan) -> None:
        assert plan.placement is not None
        assert plan.memory is not None
        self._plan, self._placement, self._memory = plan, plan.placement, plan.memory
        self._uses: dict[Replica, _Use] = {}
        self._next: dict[Place, list[Place]] = defaultdict(list)
        self._collect()
        self._reached = {place: self._search(place) for place in list(self._next)}

    def is_inside(self, replica: Replica) -> None:
        """Raise unless the replica lies inside its region."""
        location = self._memory.locations[replica]
        pool = self._memory.pools[location.memory]
        inside = location.region == SLOT
        size = pool.slot_nbytes if inside else pool.lane_nbytes[location.region]
        if location.offset < 0 or location.offset + self._uses[replica].nbytes > size:
            raise InternalError(f"{replica} lies outside its region of {size} bytes")

    def overlap(self, a: Replica, b: Replica) -> bool:
        """True when the two have a byte in common."""
        start_a, start_b = self._memory.locations[a].offset, self._memory.locations[b].offset
        return start_a < start_b + self._uses[b].nbytes and start_b < start_a + self._uses[a].nbytes

    def pair(self, a: Replica, b: Replica, *, shared_by_items: bool) -> None:
        """Raise unless two overlapping replicas may share bytes."""
        if shared_by_items:
            steps_a = {self._step(place) for place in self._uses[a].places}
            steps_b = {self._step(place) for place in self._uses[b].places}
            if len(steps_a) != 1 or len(steps_b) != 1:
                raise InternalError(f"{a} and {b} outlive their step in memory that items share")
            if steps_a != steps_b:
                return  # the device runs one step at a time
        if self._root(a) == self._root(b) or self._over(a, b) or self._over(b, a):
            return
        raise InternalError(f"{a} and {b} overlap while both are needed")

    def _over(self, a: Replica, b: Replica) -> bool:
        """True when nobody needs a any more once b is written."""
        writer = self._uses[b].writer
        for place in self._uses[a].places:
            overwriting = place == writer and self._overwrites(b, a)
            if not overwriting and writer not in self._reached.get(place, ()):
                return False
        return True

    def _overwrites(self, b: Replica, a: Replica) -> bool:
        """True when b's kernel is allowed to write over its own input a."""
        node, graph = self._uses[b].node, self._plan.graph
        if node is None or self._memory.locations[a] != self._memory.locations[b]:
            return False
        if graph.tensors.get(a[0]) != graph.tensors.get(b[0]) or node.inputs.count(a[0]) != 1:
            return False
        return any(
            node.outputs[output] == b[0] and node.inputs[source] == a[0]
            for output, source in node.operator.inplace
            if source < len(node.inputs)
        )

    def _root(self, replica: Replica) -> Replica:
        """Return what a chain of views on the same bytes goes back to."""
        name, memory = replica
        node = self._uses[replica].node
        if node is not None:
            for output, source in node.operator.views:
                base = node.inputs[source], memory
                if node.outputs[output] != name or base not in self._memory.locations:
                    continue
                if self._memory.locations[base] == self._memory.locations[replica]:
                    return self._root(base)
        return replica

    def _collect(self) -> None:
        """Find every replica's writer and readers, and which place comes next after which."""
        graph, placement = self._plan.graph, self._placement
        for name in graph.inputs:
            self._uses[name, placement.home[name]] = _Use(graph.tensors[name].nbytes, FEED)
        for step in placement.steps:
            places = self._places(step)
            for earlier, later in zip([FEED, *places], [*places, FETCH], strict=True):
                self._next[earlier].append(later)
            for index in step.dependents:
                after = placement.steps[index]
                self._next[places[-1]].append(self._places(after)[0])
            if isinstance(step.work, Transfer):
                work = step.work
                self._uses[work.tensor, work.source].readers.append(places[0])
                self._uses[work.tensor, work.target] = _Use(work.nbytes, places[0])
            elif self._is_atomic(step):
                self._visit_whole(step.work, places[0], step.device)
            else:
                for node, place in zip(step.work.graph.nodes, places, strict=True):
                    self._visit(node, place, step.device)
        for name in graph.outputs:
            if name not in graph.constants:
                self._uses[name, placement.local[name, OUTSIDE]].readers.append(FETCH)

    def _visit(self, node: Node, place: Place, device: str) -> None:
        graph, placement = self._plan.graph, self._placement
        for name in set(node.inputs) - {""} - set(graph.constants):
            self._uses[name, placement.local[name, device]].readers.append(place)
        for name in filter(None, node.outputs):
            nbytes = graph.tensors[name].nbytes
            self._uses[name, placement.home[name]] = _Use(nbytes, place, node=node)
        for replica, nbytes in self._scratch(node, device):
            self._uses[replica] = _Use(nbytes, place)

    def _visit_whole(self, subgraph: Subgraph, place: Place, device: str) -> None:
        """Take an atomic program as one place that reads and writes; its inside is its own."""
        graph, placement = self._plan.graph, self._placement
        written = {name for node in subgraph.graph.nodes for name in node.outputs}
        read = {name for node in subgraph.graph.nodes for name in node.inputs}
        for name in read - written - {""} - set(graph.constants):
            self._uses[name, placement.local[name, device]].readers.append(place)
        for name in subgraph.graph.outputs:
            nbytes = graph.tensors[name].nbytes
            self._uses[name, placement.home[name]] = _Use(nbytes, place)

    def _is_atomic(self, step: Step) -> bool:
        return self._plan.prototypes[step.device].capabilities.atomic_programs

    def _scratch(self, node: Node, device: str) -> Iterator[tuple[Replica, int]]:
        owner, graph = self._plan.prototypes[device], self._plan.graph
        specs = owner.scratch(node, graph.call(node), graph.output_specs(node))
        for index, spec in enumerate(specs):
            yield (f"{node.name}\0scratch{index}", owner.capabilities.memory), spec.nbytes

    def _places(self, step: Step) -> list[Place]:
        if isinstance(step.work, Transfer) or self._is_atomic(step):
            return [(step.name, "")]
        return [(step.name, node.name) for node in step.work.graph.nodes]

    def _search(self, start: Place) -> set[Place]:
        found: set[Place] = set()
        open_places = list(self._next[start])
        while open_places:
            place = open_places.pop()
            if place not in found:
                found.add(place)
                open_places += self._next.get(place, [])
        return found

    @staticmethod
    def _step(place: Place) -> str:
        return place if isinstance(place, str) else place[0]
