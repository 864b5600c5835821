"""The buffers of a plan: which tensors share bytes by meaning, and when each buffer is touched.

A view (Reshape, a contiguous slice) lies on its input's bytes. The inputs of a Concat may be
written in their place in the result. An output may overwrite an input of its dtype and shape if the
kernel allows it and every other access to those bytes comes before.

None of that holds inside an atomic program: its order of reads and writes is unknown, so all its
inputs and outputs are touched at one point, and nothing else has a buffer.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from ....devices.device import Device
from ....devices.memory import ALIGNMENT, HOST, SHARED
from ....graph.core.aliasing import find_joins, find_views
from ....graph.core.ir import Graph, Node
from ....graph.core.operator import Alias
from ....graph.values.dtypes import TEXT
from ...plans.placement import SCRATCH, Placement, Transfer
from ...plans.regions import PlacedTensor
from ...shapes.constraints import NONE, DynamicShapeConstraints
from .happens_before import START, HappensBefore, Point, collect_reads, is_atomic, list_points


@dataclass(slots=True, eq=False)
class Buffer:
    """Bytes of one tensor, or of several that share them, in a memory."""

    memory: str
    nbytes: int
    writers: set[Point]
    """Points that first write bytes of it; the previous use must end before all of them."""
    accesses: set[Point] = field(default_factory=set)
    """Points that read or write them, `writers` included."""
    offsets: dict[PlacedTensor, int] = field(default_factory=dict)
    """The tensors in it, by their distance from the start in bytes."""


ScratchOf: TypeAlias = Callable[[Device, Node], Mapping[str, int]]
"""Returns the bytes of a node's scratch buffers, by name."""


def collect_buffers(
    graph: Graph,
    placement: Placement,
    devices: Mapping[str, Device],
    order: HappensBefore,
    *,
    joins: bool = True,
    confined: bool = False,
    constraints: DynamicShapeConstraints = NONE,
    scratch: ScratchOf | None = None,
) -> list[Buffer]:
    """Return the buffers of an item of `graph` on `devices`, in order of first writers.

    `placement` and `order` are those of its steps. With `joins`, inputs of concatenations are
    written in place if possible: this saves copies, but the bytes live from the first write to the
    last read of any of them. With `confined`, inputs are overwritten only by outputs that no
    further step touches, so that items in flight can pass sooner. `constraints` leave room for
    other shapes. `scratch` replaces asking kernels, if the caller has the answers.
    """
    of = scratch or (lambda device, node: constraints.scratch(device, graph, node))
    return _Collector(graph, placement, devices, order, joins, confined, constraints, of).collect()


def find_objects(graph: Graph) -> frozenset[str]:
    return frozenset(name for name, spec in graph.tensors.items() if spec.dtype == TEXT)


def find_alignment(memory: str, devices: Mapping[str, Device]) -> int:
    return max(
        ALIGNMENT,
        *(
            device.capabilities.alignment
            for device in devices.values()
            if memory
            in {HOST, SHARED, *device.capabilities.accesses, *device.capabilities.copies_from}
        ),
    )


class _Collector:
    def __init__(
        self,
        graph: Graph,
        placement: Placement,
        devices: Mapping[str, Device],
        order: HappensBefore,
        joins: bool,
        confined: bool,
        constraints: DynamicShapeConstraints,
        scratch: ScratchOf,
    ) -> None:
        self._graph, self._placement = graph, placement
        self._devices, self._order = devices, order
        self._joins, self._confined, self._constraints = joins, confined, constraints
        self._scratch = scratch
        self._buffers: dict[Buffer, None] = {}
        self._of: dict[PlacedTensor, Buffer] = {}
        self._accesses: dict[PlacedTensor, set[Point]] = {}
        self._current: dict[Buffer, dict[PlacedTensor, tuple[int, int]]] = {}
        """The bytes of tensors that are not overwritten yet, which keeps chains of nodes fast."""
        self._alignments: dict[str, int] = {}
        self._parts_of: dict[str, frozenset[str]] = {}
        self._reads = collect_reads(graph, placement, devices, order)
        self._objects = find_objects(graph)

    def collect(self) -> list[Buffer]:
        arrivals = self._placement.arrivals
        # Fed tensors are written before any step, so nothing else of the item may lie there
        # earlier. Arrivals on a device are brought by a step, like any transfer.
        for name in (one for one in self._graph.entering if one not in arrivals):
            self._add((name, self._placement.home[name]), self._graph.tensors[name].nbytes, START)
        for step in self._placement.steps:
            if isinstance(step.work, Transfer):
                transfer = step.work
                placed = transfer.tensor, transfer.target
                # Departures go to an array of the caller, in no planned memory.
                if not transfer.leaves:
                    self._add(placed, transfer.nbytes, self._order.point(step))
            # Tensors inside an atomic program are the device's own.
            elif is_atomic(step, self._devices):
                for name in step.work.graph.outputs:
                    placed = name, self._placement.home[name]
                    self._add(placed, self._graph.tensors[name].nbytes, self._order.point(step))
            else:
                for node, point in list_points(step, step.work, self._order):
                    self._visit(node, step.device, point)
        # A fixed order: packing breaks ties by it, so plans are equal everywhere.
        return sorted(self._buffers, key=lambda buffer: min(buffer.writers))

    def _visit(self, node: Node, device: str, point: Point) -> None:
        taken: dict[Buffer, bool] = {}  # taken by outputs, and whether one overwrites
        views = self._views(node)
        # Views and equal sizes at the largest lengths may differ at others.
        may_share = not self._keeps_apart(node)
        for index, name in enumerate(node.outputs):
            if not name:
                continue
            placed, nbytes = (name, self._placement.home[name]), self._graph.tensors[name].nbytes
            place = self._viewed(node, views.get(index), device, placed) if may_share else None
            overwrites = place is None
            if place is None and may_share:
                place = self._overwritten(node, index, device, placed, point)
            # Outputs may be views of one buffer, but an overwritten one has a single taker.
            if place is None or (place.buffer in taken and (overwrites or taken[place.buffer])):
                self._add(placed, nbytes, point)
                if self._joins and may_share:
                    self._embed(node, index, device, placed, point)
                continue
            if overwrites:
                self._replace(place, nbytes)
            self._put(placed, *place, nbytes, point)
            taken[place.buffer] = overwrites
        for name, nbytes in self._scratch(self._devices[device], node).items():
            self._add((name, self._placement.local[SCRATCH, device]), nbytes, point)

    def _keeps_apart(self, node: Node) -> bool:
        objects = self._objects
        has_objects = not (objects.isdisjoint(node.inputs) and objects.isdisjoint(node.outputs))
        return has_objects or self._constraints.keeps_apart(node)

    def _views(self, node: Node) -> dict[int, Alias]:
        return {one.output: one for one in reversed(find_views(self._graph, node))}

    def _viewed(
        self, node: Node, alias: Alias | None, device: str, placed: PlacedTensor
    ) -> _Place | None:
        # A device that cannot address the shared bytes copies after all.
        if alias is None or alias.offset % self._alignment(placed[1]):
            return None
        base = self._input(node.inputs[alias.input], device, placed)
        return None if base is None else _Place(base.buffer, base.offset + alias.offset)

    def _overwritten(
        self, node: Node, index: int, device: str, placed: PlacedTensor, point: Point
    ) -> _Place | None:
        for output, source in node.operator.inplace:
            if output != index or source >= len(node.inputs):
                continue
            name = node.inputs[source]
            place = self._input(name, device, placed)
            # Only with equal dtype and shape is element i read before the kernel writes element i.
            if place is None or self._graph.tensors[name] != self._graph.tensors[placed[0]]:
                continue
            nbytes = self._graph.tensors[name].nbytes
            others = [*node.inputs[:source], *node.inputs[source + 1 :]]
            # Through another input, the kernel would read its own output.
            read_twice = any(
                other in self._overlapping(place, nbytes)
                for other in ((other, placed[1]) for other in others)
            )
            if read_twice or (self._confined and not self._stays(place.buffer, placed)):
                continue
            # Fed tensors lie apart from all others, so an output on one would be copied to be
            # joined.
            if START in place.buffer.writers and self._joins and self._is_joined(placed):
                continue
            if self._is_last(place, nbytes, point):
                return place
        return None

    def _is_joined(self, placed: PlacedTensor) -> bool:
        name, memory = placed
        return any(
            name in self._parts(reader, memory)
            for reader in self._graph.consumers[name]
            if reader.operator.joins is not None and not self._keeps_apart(reader)
        )

    def _parts(self, node: Node, memory: str) -> frozenset[str]:
        if node.name not in self._parts_of:
            self._parts_of[node.name] = frozenset(
                node.inputs[alias.input]
                for alias in find_joins(self._graph, node)
                if self._placement.home[node.outputs[alias.output]] == memory
                and alias.offset % self._alignment(memory) == 0
            )
        return self._parts_of[node.name]

    def _stays(self, buffer: Buffer, placed: PlacedTensor) -> bool:
        steps = {step for step, _ in buffer.accesses}
        return all(step in steps for step, _ in self._reads.get(placed, ()))

    def _is_last(self, place: _Place, nbytes: int, point: Point) -> bool:
        return all(
            # The node's own read may coincide with the write.
            access == point or self._order.precedes(access, point)
            for placed in self._overlapping(place, nbytes)
            for access in self._accesses[placed]
        )

    def _overlapping(self, place: _Place, nbytes: int) -> Iterator[PlacedTensor]:
        for placed, (begin, end) in self._current[place.buffer].items():
            if begin < place.offset + nbytes and place.offset < end:
                yield placed

    def _embed(
        self, node: Node, index: int, device: str, placed: PlacedTensor, point: Point
    ) -> None:
        """Move the buffers of inputs of `node` into that of output `index`, which joins them.

        The output lies at `placed`, and `device` writes it at `point`. A buffer moves as a whole,
        so the output must want every byte of it at its place.
        """
        target, runs = self._of[placed], list[_Run]()
        for alias in find_joins(self._graph, node):
            if alias.output == index:
                name = node.inputs[alias.input]
                nbytes = self._graph.tensors[name].nbytes
                place = self._input(name, device, placed)
                runs.append(_Run(alias.offset, alias.offset + nbytes, place))
        # Sorted, so that `_fits` can bisect: thousands of parts occur.
        runs.sort(key=lambda run: (run.begin, run.end))
        moved: dict[Buffer, int] = {}
        for run in runs:
            # A buffer that is joined twice lies in one place; the node copies it to the other.
            if run.place is not None and run.place.buffer not in moved:
                inner, shift = run.place.buffer, run.begin - run.place.offset
                if self._fits(inner, target, shift, runs):
                    moved[inner] = shift
        for inner, shift in moved.items():
            self._move(inner, target, shift)
        if runs and all(
            run.place is not None and moved.get(run.place.buffer) == run.begin - run.place.offset
            for run in runs
        ):
            target.writers.discard(point)  # nothing is left to copy

    def _move(self, inner: Buffer, target: Buffer, shift: int) -> None:
        target.writers |= inner.writers
        target.accesses |= inner.accesses
        for placed, offset in inner.offsets.items():
            target.offsets[placed] = offset + shift
            self._of[placed] = target
        for placed, (begin, end) in self._current.pop(inner).items():
            self._current[target][placed] = begin + shift, end + shift
        del self._buffers[inner]

    def _fits(self, inner: Buffer, target: Buffer, shift: int, runs: Sequence[_Run]) -> bool:
        # The caller writes fed tensors in a region of its own, before this buffer is claimed.
        if START in inner.writers or shift % self._alignment(target.memory):
            return False
        end = shift + inner.nbytes
        if shift < 0 or end > target.nbytes:
            return False
        # Runs are disjoint and sorted: only overlapping ones are compared.
        first = bisect_right(runs, shift, key=lambda run: run.end)
        last = bisect_left(runs, end, key=lambda run: run.begin)
        return all(run.place == (inner, run.begin - shift) for run in runs[first:last])

    def _alignment(self, memory: str) -> int:
        if memory not in self._alignments:
            self._alignments[memory] = find_alignment(memory, self._devices)
        return self._alignments[memory]

    def _input(self, name: str, device: str, placed: PlacedTensor) -> _Place | None:
        if not name or name in self._graph.constants:
            return None
        memory = self._placement.local[name, device]
        # Items share prepared tensors: none of them may write there.
        if memory != placed[1] or (name, memory) in self._placement.prepared:
            return None
        buffer = self._of[name, memory]
        return _Place(buffer, buffer.offsets[name, memory])

    def _add(self, placed: PlacedTensor, nbytes: int, writer: Point) -> None:
        buffer = Buffer(placed[1], nbytes, {writer})
        self._buffers[buffer] = None
        self._current[buffer] = {}
        self._put(placed, buffer, 0, nbytes, writer)

    def _replace(self, place: _Place, nbytes: int) -> None:
        """Forget tensors in the `nbytes` at `place`: followers of the output come after them."""
        self._current[place.buffer] = {
            placed: (begin, end)
            for placed, (begin, end) in self._current[place.buffer].items()
            # Tensors that extend beyond the overwritten bytes are partly intact.
            if begin < place.offset or place.offset + nbytes < end
        }

    def _put(
        self, placed: PlacedTensor, buffer: Buffer, offset: int, nbytes: int, writer: Point
    ) -> None:
        self._current[buffer][placed] = offset, offset + nbytes
        self._accesses[placed] = {writer, *self._reads.get(placed, ())}
        buffer.offsets[placed] = offset
        buffer.accesses |= self._accesses[placed]
        self._of[placed] = buffer


class _Place(NamedTuple):
    buffer: Buffer
    offset: int


class _Run(NamedTuple):
    """Bytes of an output that an input supplies, and its place if in the same memory."""

    begin: int
    end: int
    place: _Place | None
