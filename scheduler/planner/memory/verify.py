"""An independent check that a memory plan never lets two live tensors share a byte.

It shares no code with the planner: the order is a plain search through the points of the plan, and
tensors are compared one by one where their bytes overlap, not buffer by buffer. Overlapping tensors
of one item must have ordered lifetimes, or be kept apart by a lane, or want the same bytes. Of two
items that use the same copy of a region, the later must have waited with its first touch for the
last of the earlier: all touches of a region lie between its claims and its releases. Prepared
tensors are apart from everything. The region of a variable's next value, which is swapped in
without a copy, must not be fetched from.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ....graph.core.aliasing import find_runs
from ....graph.core.ir import Graph, Node
from ....graph.values.errors import InternalError
from ...plans.partition import Subgraph
from ...plans.placement import OUTSIDE, SCRATCH, Placement, Step, Transfer
from ...plans.plan import Plan
from ...plans.regions import ADMISSION, Location, PlacedTensor, Region
from .prepared import name_next_region

FEED, FETCH = "feed", "fetch"

Place = str | tuple[str, str]
"""A point of the plan: feed, fetch, or (step, node); the node is empty for atomic steps."""


def verify_memory(plan: Plan) -> None:
    """Raise InternalError if two tensors of `plan` could overlap while both are needed."""
    assert plan.memory is not None, "shapes are known"
    check = _Check(plan)
    inside: dict[tuple[str, str], list[PlacedTensor]] = defaultdict(list)
    for placed, location in plan.memory.locations.items():
        check.is_inside(placed)
        inside[location.memory, location.region].append(placed)
    becoming = {name_next_region(node.name) for node in plan.graph.variables.values()}
    for (memory, name), all_placed in inside.items():
        if check.are_prepared(all_placed):
            check.all_apart(all_placed)
            continue
        check.between_items(plan.memory.pools[memory].regions[name], all_placed)
        check.in_turn(all_placed)
        if name in becoming:
            check.may_become(plan.memory.pools[memory].regions[name], all_placed)


@dataclass
class _Use:
    """The writer and the readers of a placed tensor."""

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
        self._uses: dict[PlacedTensor, _Use] = {}
        self._next: dict[Place, list[Place]] = defaultdict(list)
        self._makers: dict[PlacedTensor, tuple[Node, str]] = {}
        self._reserved: dict[str, dict[str, int]] = defaultdict(dict)
        for name, nbytes in plan.memory.scratch.items():
            self._reserved[name.partition("\0")[0]][name] = nbytes
        self._device = {step.name: step.device for step in plan.steps if not step.awaited}
        self._collect()
        locations = plan.memory.locations
        self._contents = Contents(plan.graph, plan.placement, locations, self._makers)
        self._at = {place: index for index, place in enumerate(self._in_order())}
        self._reached = self._search()

    def is_inside(self, placed: PlacedTensor) -> None:
        location = self._memory.locations[placed]
        size = self._memory.pools[location.memory].regions[location.region].nbytes
        if location.offset < 0 or location.offset + self._uses[placed].nbytes > size:
            raise InternalError(f"{placed} lies outside its region of {size} bytes")

    def are_prepared(self, all_placed: Sequence[PlacedTensor]) -> bool:
        """Return whether `all_placed`, of one region, are prepared; raise if only some are."""
        found = {placed in self._placement.prepared for placed in all_placed}
        if len(found) > 1:
            raise InternalError("what items write lies in a region that is prepared for all")
        return found.pop()

    def all_apart(self, all_placed: Iterable[PlacedTensor]) -> None:
        reached = 0
        for placed in sorted(all_placed, key=self._begin):
            nbytes = self._uses[placed].nbytes
            if nbytes and self._begin(placed) < reached:
                raise InternalError(f"{placed} overlaps what is prepared, too")
            reached = max(reached, self._begin(placed) + nbytes)

    def may_become(self, region: Region, all_placed: Iterable[PlacedTensor]) -> None:
        """Raise unless assigned values of `all_placed` fill `region`, and none is fetched."""
        sources = {commit.source for commit in self._placement.commits}
        for placed in all_placed:
            if placed[0] in self._plan.graph.fetched:
                raise InternalError(f"{placed} is fetched, and becomes what a variable holds")
            is_all = not self._begin(placed) and self._uses[placed].nbytes == region.nbytes
            if placed in sources and not is_all:
                raise InternalError(f"{placed} is not all of {region.name!r}")

    def in_turn(self, all_placed: Iterable[PlacedTensor]) -> None:
        """Raise unless `all_placed`, in one region, may share its bytes in the order of writing.

        Each is compared with the current holders of its bytes. A dead tensor holds none: later
        writers come after this one, and so after all that preceded it.
        """
        held: list[tuple[int, int, PlacedTensor]] = []
        for placed in sorted(all_placed, key=self._written):
            begin, nbytes = self._begin(placed), self._uses[placed].nbytes
            end, left = begin + nbytes, list[tuple[int, int, PlacedTensor]]()
            for low, high, other in held:
                if low >= end or high <= begin or not nbytes or not self._pair(other, placed):
                    left.append((low, high, other))
                    continue
                # Only the overlapping bytes change hands; the other tensor keeps the rest.
                left += [(low, begin, other)] if low < begin else []
                left += [(end, high, other)] if end < high else []
            held = [*left, (begin, end, placed)] if nbytes else left

    def _pair(self, a: PlacedTensor, b: PlacedTensor) -> bool:
        """Raise unless `a` and `b` may share bytes; return whether `a` is dead before `b`."""
        if self._over(a, b):
            return True
        (step_a, device_a), *more_a = self._steps(a)
        (step_b, device_b), *more_b = self._steps(b)
        if not more_a and not more_b and step_a != step_b and device_a == device_b != "":
            return False  # the device runs one step at a time
        if self._contents.agree(a, b):
            return False
        raise InternalError(f"{a} and {b} overlap while both are needed")

    def between_items(self, region: Region, all_placed: Iterable[PlacedTensor]) -> None:
        """Raise unless claims keep `all_placed` of several items apart in copies of `region`."""
        # Without claims, only a device that runs one step at a time separates items, so nothing in
        # the region may outlive its step.
        if not region.claims:
            steps = [self._steps(placed) for placed in all_placed]
            devices = {device for touching in steps for _, device in touching}
            if max(map(len, steps)) > 1 or len(devices) > 1 or "" in devices or region.copies != 1:
                raise InternalError(f"items could meet in {region.name!r}, which nobody claims")
            return
        claims, releases = self._gates(region.claims), self._gates(region.releases)
        for placed in all_placed:
            for place in self._uses[placed].places:
                if not any(place in gate or self._leads(gate[-1], place) for gate in claims):
                    raise InternalError(f"{placed} is touched before {region.name!r} is claimed")
                if not any(place in gate or self._leads(place, gate[0]) for gate in releases):
                    raise InternalError(f"{placed} is touched after {region.name!r} is released")

    def _gates(self, steps: Iterable[int]) -> list[list[Place]]:
        planned = self._placement.steps
        ends: dict[int, list[Place]] = {ADMISSION: [FEED], len(planned): [FETCH]}
        return [ends[step] if step in ends else self._places(planned[step]) for step in steps]

    def _leads(self, earlier: Place, later: Place) -> bool:
        return bool(self._reached[self._at[earlier]] >> self._at[later] & 1)

    def _steps(self, placed: PlacedTensor) -> list[tuple[str, str]]:
        """Return the steps that touch `placed`, with their devices; that of the caller is empty."""
        steps = {self._step(place) for place in self._uses[placed].places}
        return sorted((step, self._device.get(step, "")) for step in steps)

    def _begin(self, placed: PlacedTensor) -> int:
        return self._memory.locations[placed].offset

    def _over(self, a: PlacedTensor, b: PlacedTensor) -> bool:
        writer = self._uses[b].writer
        for place in self._uses[a].places:
            overwriting = place == writer and self._overwrites(b, a)
            if not overwriting and not self._leads(place, writer):
                return False
        return True

    def _overwrites(self, b: PlacedTensor, a: PlacedTensor) -> bool:
        node, graph = self._uses[b].node, self._plan.graph
        if node is None or self._memory.locations[a] != self._memory.locations[b]:
            return False
        # An input that is read twice may be needed after the first output bytes are written.
        if graph.tensors.get(a[0]) != graph.tensors.get(b[0]) or node.inputs.count(a[0]) != 1:
            return False
        return any(
            node.outputs[output] == b[0] and node.inputs[source] == a[0]
            for output, source in node.operator.inplace
            if source < len(node.inputs)
        )

    def _collect(self) -> None:
        graph, placement = self._plan.graph, self._placement
        self._next[FEED].append(FETCH)  # there may be no step in between
        for name in set(graph.entering) - placement.arrivals:
            self._uses[name, placement.home[name]] = _Use(graph.tensors[name].nbytes, FEED)
        for name, memory in placement.prepared:
            self._uses[name, memory] = _Use(graph.tensors[name].nbytes, FEED)
        for step in placement.steps:
            places = self._places(step)
            for earlier, later in zip([FEED, *places], [*places, FETCH], strict=True):
                self._next[earlier].append(later)
            # Only waits order steps. A device runs one at a time in unknown order; `_pair` allows
            # for it.
            for index in step.dependents:
                after = placement.steps[index]
                self._next[places[-1]].append(self._places(after)[0])
            if isinstance(step.work, Transfer):
                work = step.work
                if not work.arrives:
                    self._uses[work.tensor, work.source].readers.append(places[0])
                if not work.leaves:
                    self._uses[work.tensor, work.target] = _Use(work.nbytes, places[0])
            elif self._is_atomic(step):
                self._visit_whole(step.work, places[0], step.device)
            else:
                for node, place in zip(step.work.graph.nodes, places, strict=True):
                    self._visit(node, place, step.device)
        for name in graph.leaving:
            if name not in graph.constants:
                self._uses[name, placement.local[name, OUTSIDE]].readers.append(FETCH)
        for commit in placement.commits:
            self._uses[commit.source].readers.append(FETCH)

    def _visit(self, node: Node, place: Place, device: str) -> None:
        graph, placement = self._plan.graph, self._placement
        for name in set(node.inputs) - {""} - set(graph.constants):
            self._uses[name, placement.local[name, device]].readers.append(place)
        for name in filter(None, node.outputs):
            nbytes = graph.tensors[name].nbytes
            self._uses[name, placement.home[name]] = _Use(nbytes, place, node=node)
            self._makers[name, placement.home[name]] = node, device
        for placed, nbytes in self._scratch(node, device):
            self._uses[placed] = _Use(nbytes, place)

    def _visit_whole(self, subgraph: Subgraph, place: Place, device: str) -> None:
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

    def _scratch(self, node: Node, device: str) -> Iterator[tuple[PlacedTensor, int]]:
        owner, graph = self._plan.prototypes[device], self._plan.graph
        specs = owner.scratch(node, graph.call(node), graph.output_specs(node))
        memory, reserved = self._placement.local[SCRATCH, device], self._reserved[node.name]
        for index in range(max(len(specs), len(reserved))):
            name = f"{node.name}\0scratch{index}"
            needed = specs[index].nbytes if index < len(specs) else 0
            if needed > reserved.get(name, needed):
                raise InternalError(f"{name!r} needs {needed} bytes")
            yield (name, memory), reserved.get(name, needed)

    def _places(self, step: Step) -> list[Place]:
        if isinstance(step.work, Transfer) or self._is_atomic(step):
            return [(step.name, "")]
        return [(step.name, node.name) for node in step.work.graph.nodes]

    def _in_order(self) -> Iterator[Place]:
        yield FEED
        for step in self._placement.steps:
            yield from self._places(step)
        yield FETCH

    def _search(self) -> list[int]:
        reached = [0] * len(self._at)
        # From the end, so that the sets of successors are complete; bits join without a loop.
        for place, index in reversed(self._at.items()):
            for later in self._next[place]:
                assert index < self._at[later], "steps are in a topological order"
                reached[index] |= reached[self._at[later]] | 1 << self._at[later]
        return reached

    def _written(self, placed: PlacedTensor) -> int:
        return self._at[self._uses[placed].writer]

    @staticmethod
    def _step(place: Place) -> str:
        return place if isinstance(place, str) else place[0]


class TensorPiece(NamedTuple):
    """Bytes `begin` to `end` of a placed tensor, which are those of `origin` from `start` on."""

    begin: int
    end: int
    origin: PlacedTensor
    start: int


@dataclass(slots=True, eq=False)
class Contents:
    """The pieces of every placed tensor, computed on demand: bytes that nodes find in place.

    A view has its base's bytes, a concatenation in place those of its inputs. Locations decide
    whether a byte is in place, not the planner's intention.

    `makers` has the node that writes a tensor and its device, except for fed and copied tensors and
    results of atomic programs.
    """

    _graph: Graph
    _placement: Placement
    _locations: Mapping[PlacedTensor, Location]
    _makers: Mapping[PlacedTensor, tuple[Node, str]]
    _pieces: dict[PlacedTensor, list[TensorPiece]] = field(default_factory=dict)

    def agree(self, a: PlacedTensor, b: PlacedTensor) -> bool:
        """Return whether `a` and `b` want equal values of every byte that they share."""
        shift = self._locations[b].offset - self._locations[a].offset
        for begin, end, origin, start in self._of(a):
            for other_begin, other_end, other_origin, other_start in self._of(b):
                low = max(begin, other_begin + shift)
                if low >= min(end, other_end + shift):
                    continue
                same = start + low - begin == other_start + low - shift - other_begin
                if origin != other_origin or not same:
                    return False
        return True

    def _of(self, placed: PlacedTensor) -> list[TensorPiece]:
        if placed not in self._pieces:
            self._pieces[placed] = self._find(placed)
        return self._pieces[placed]

    def _find(self, placed: PlacedTensor) -> list[TensorPiece]:
        if placed not in self._makers:
            spec = self._graph.tensors.get(placed[0])  # scratch has none
            return [TensorPiece(0, 1 << 62 if spec is None else spec.nbytes, placed, 0)]
        found: list[TensorPiece] = []
        node, device = self._makers[placed]
        for run in find_runs(self._graph, node):
            if run.target != placed[0] or run.source in self._graph.constants:
                continue
            base = run.source, self._placement.local[run.source, device]
            if self._lies(base, placed, run.begin - run.start):
                shift = run.begin - run.start
                for begin, end, origin, start in self._of(base):
                    low = max(begin + shift, run.begin)
                    high = min(end + shift, run.begin + run.nbytes)
                    if low < high:
                        found.append(TensorPiece(low, high, origin, start + low - shift - begin))
        return _fill_gaps(found, placed, self._graph.tensors[placed[0]].nbytes)

    def _lies(self, base: PlacedTensor, placed: PlacedTensor, shift: int) -> bool:
        there, here = self._locations[base], self._locations[placed]
        if (there.memory, there.region) != (here.memory, here.region):
            return False
        return there.offset == here.offset + shift


def _fill_gaps(found: list[TensorPiece], placed: PlacedTensor, nbytes: int) -> list[TensorPiece]:
    pieces, place = list[TensorPiece](), 0
    for piece in sorted(found):
        if place < piece.begin:
            pieces.append(TensorPiece(place, piece.begin, placed, place))
        pieces.append(piece)
        place = piece.end
    if place < nbytes:
        pieces.append(TensorPiece(place, nbytes, placed, place))
    return pieces
