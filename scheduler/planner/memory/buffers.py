"""The buffers of a plan: which tensors share bytes by meaning, and when each buffer is touched.

A view (Reshape, a slice that is one run) lies on its input's bytes. The inputs of a Concat may be
written where the result is to have them. An output may overwrite an input that has its dtype and
shape, where the kernel allows it and every other access to those bytes comes before.

None of that holds inside an atomic program: nobody knows the order in which it reads its inputs and
writes its outputs, so all of them are touched at one point, and nothing else has a buffer.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from ....devices.device import Device
from ....devices.memory import ALIGNMENT, HOST, SHARED
from ....graph.aliasing import joins_of, views_of
from ....graph.ir import Graph, Node
from ....graph.operator import Alias
from ...plans.placement import SCRATCH, Placement, Transfer
from ...plans.regions import PlacedTensor
from ...shapes.constraints import NONE, DynamicShapeConstraints
from .happens_before import START, HappensBefore, Point, is_atomic, points_of, reads_of


@dataclass(slots=True, eq=False)
class Buffer:
    """Bytes that one tensor, or several that share them, occupy in a memory.

    Attributes
    ----------
    memory : str
    nbytes : int
    writers : set of Point
        Where bytes of it are first written; what it replaces must be over before all of them.
    accesses : set of Point
        Every point that reads or writes them, `writers` included.
    offsets : dict of PlacedTensor to int
        What lies there, and how many bytes from the start.
    """

    memory: str
    nbytes: int
    writers: set[Point]
    accesses: set[Point] = field(default_factory=set)
    offsets: dict[PlacedTensor, int] = field(default_factory=dict)


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
    """Return the buffers of one item, in the order of their first writers.

    With `joins`, what is concatenated is written in place where that can be: less is copied, but
    the bytes live from the first write to the last read of any of it. With `confined`, inputs are
    overwritten only by what no further step touches: items in flight can pass sooner. With
    constraints there is room for other shapes too. `scratch` answers for these, where that is asked
    often.
    """
    of = scratch or (lambda device, node: constraints.scratch(device, graph, node))
    return _Collector(graph, placement, devices, order, joins, confined, constraints, of).collect()


def alignment_of(memory: str, devices: Mapping[str, Device]) -> int:
    """Return what offsets in the memory are multiples of.

    Of powers of two the largest suits all: those of the devices that view it, and the host's.
    """
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
        """The bytes of what has not been overwritten, so that a chain of nodes is quick to ask."""
        self._alignments: dict[str, int] = {}
        self._parts_of: dict[str, frozenset[str]] = {}
        self._reads = reads_of(graph, placement, devices, order)

    def collect(self) -> list[Buffer]:
        arrivals = self._placement.arrivals
        # What is fed is written before any step, so that nothing of the item may lie there earlier.
        # What arrives on a device is brought by a step, like any transfer.
        for name in (one for one in self._graph.entering if one not in arrivals):
            self._add((name, self._placement.home[name]), self._graph.tensors[name].nbytes, START)
        for step in self._placement.steps:
            if isinstance(step.work, Transfer):
                transfer = step.work
                placed = transfer.tensor, transfer.target
                # What leaves goes to an array of the caller's, in no planned memory.
                if not transfer.leaves:
                    self._add(placed, transfer.nbytes, self._order.point(step))
            # What lies between the nodes of such a program is the device's own business.
            elif is_atomic(step, self._devices):
                for name in step.work.graph.outputs:
                    placed = name, self._placement.home[name]
                    self._add(placed, self._graph.tensors[name].nbytes, self._order.point(step))
            else:
                for node, point in points_of(step, step.work, self._order):
                    self._visit(node, step.device, point)
        # A fixed order, by what all buffers have: packing breaks ties by it, and plans are the same
        # anywhere.
        return sorted(self._buffers, key=lambda buffer: min(buffer.writers))

    def _visit(self, node: Node, device: str, point: Point) -> None:
        """Give the node's outputs and scratch their buffers."""
        taken: dict[Buffer, bool] = {}  # by outputs, and whether one overwrites what was there
        views = self._views(node)
        # What is a view, or of equal size, at the largest lengths need not be so at others.
        may_share = not self._constraints.keeps_apart(node)
        for index, name in enumerate(node.outputs):
            if not name:
                continue
            placed, nbytes = (name, self._placement.home[name]), self._graph.tensors[name].nbytes
            place = self._viewed(node, views.get(index), device, placed) if may_share else None
            overwrites = place is None
            if place is None and may_share:
                place = self._overwritten(node, index, device, placed, point)
            # Outputs may be views of one buffer, but while it is overwritten it has one taker.
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

    def _views(self, node: Node) -> dict[int, Alias]:
        """Return by which alias each output may be a view, the first one where there are more."""
        return {one.output: one for one in reversed(views_of(self._graph, node))}

    def _viewed(
        self, node: Node, alias: Alias | None, device: str, placed: PlacedTensor
    ) -> _Place | None:
        """Return where the output is a view of an input."""
        # Where the bytes are shared but a device could not address them, a copy is made after all.
        if alias is None or alias.offset % self._alignment(placed[1]):
            return None
        base = self._input(node.inputs[alias.input], device, placed)
        return None if base is None else _Place(base.buffer, base.offset + alias.offset)

    def _overwritten(
        self, node: Node, index: int, device: str, placed: PlacedTensor, point: Point
    ) -> _Place | None:
        """Return where an input lies that the output may overwrite."""
        for output, source in node.operator.inplace:
            if output != index or source >= len(node.inputs):
                continue
            name = node.inputs[source]
            place = self._input(name, device, placed)
            # Only with the same dtype and shape has element i been read when the kernel writes
            # element i.
            if place is None or self._graph.tensors[name] != self._graph.tensors[placed[0]]:
                continue
            nbytes = self._graph.tensors[name].nbytes
            others = [*node.inputs[:source], *node.inputs[source + 1 :]]
            # Through another input the kernel would read what it has just written through this one.
            read_twice = any(
                other in self._overlapping(place, nbytes)
                for other in ((other, placed[1]) for other in others)
            )
            if read_twice or (self._confined and not self._stays(place.buffer, placed)):
                continue
            # What is fed lies apart from all others: what overwrites it is copied to be joined.
            if START in place.buffer.writers and self._joins and self._is_joined(placed):
                continue
            if self._is_last(place, nbytes, point):
                return place
        return None

    def _is_joined(self, placed: PlacedTensor) -> bool:
        """True for what another node in the memory joins where it may lie from the beginning."""
        name, memory = placed
        return any(
            name in self._parts(reader, memory)
            for reader in self._graph.consumers[name]
            if reader.operator.joins is not None and not self._constraints.keeps_apart(reader)
        )

    def _parts(self, node: Node, memory: str) -> frozenset[str]:
        """Return the inputs of a node that may lie in its outputs in a memory."""
        if node.name not in self._parts_of:
            self._parts_of[node.name] = frozenset(
                node.inputs[alias.input]
                for alias in joins_of(self._graph, node)
                if self._placement.home[node.outputs[alias.output]] == memory
                and alias.offset % self._alignment(memory) == 0
            )
        return self._parts_of[node.name]

    def _stays(self, buffer: Buffer, placed: PlacedTensor) -> bool:
        """True when only steps that touch the buffer anyway read the placed tensor."""
        steps = {step for step, _ in buffer.accesses}
        return all(step in steps for step, _ in self._reads.get(placed, ()))

    def _is_last(self, place: _Place, nbytes: int, point: Point) -> bool:
        """True when every access to those bytes but that at `point` comes before it."""
        return all(
            # The node's own read is among the accesses: that one may coincide with the write.
            access == point or self._order.precedes(access, point)
            for placed in self._overlapping(place, nbytes)
            for access in self._accesses[placed]
        )

    def _overlapping(self, place: _Place, nbytes: int) -> Iterator[PlacedTensor]:
        """Yield what has a byte in common with a range of a buffer."""
        for placed, (begin, end) in self._current[place.buffer].items():
            if begin < place.offset + nbytes and place.offset < end:
                yield placed

    def _embed(
        self, node: Node, index: int, device: str, placed: PlacedTensor, point: Point
    ) -> None:
        """Move the buffers of inputs that are runs of a new output's bytes into its buffer.

        A buffer moves as a whole: wherever it comes to lie, the output must want of each byte what
        is there.
        """
        target, runs = self._of[placed], list[_Run]()
        for alias in joins_of(self._graph, node):
            if alias.output == index:
                name = node.inputs[alias.input]
                nbytes = self._graph.tensors[name].nbytes
                place = self._input(name, device, placed)
                runs.append(_Run(alias.offset, alias.offset + nbytes, place))
        # In order, so that `_fits` finds by bisection what a buffer would overlap: thousands of
        # parts occur.
        runs.sort(key=lambda run: (run.begin, run.end))
        moved: dict[Buffer, int] = {}
        for run in runs:
            # A buffer that is joined twice can lie in one of the two places; the node copies the
            # other.
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
        """Make a buffer part of another, `shift` bytes from its start."""
        target.writers |= inner.writers
        target.accesses |= inner.accesses
        for placed, offset in inner.offsets.items():
            target.offsets[placed] = offset + shift
            self._of[placed] = target
        for placed, (begin, end) in self._current.pop(inner).items():
            self._current[target][placed] = begin + shift, end + shift
        del self._buffers[inner]

    def _fits(self, inner: Buffer, target: Buffer, shift: int, runs: Sequence[_Run]) -> bool:
        """True when a buffer may lie `shift` bytes inside the target."""
        # What is fed was written by the caller, in a region of its own, before this buffer was
        # claimed.
        if START in inner.writers or shift % self._alignment(target.memory):
            return False
        end = shift + inner.nbytes
        if shift < 0 or end > target.nbytes:
            return False
        # Runs lie one behind the other: only those that the buffer would overlap are looked at.
        first = bisect_right(runs, shift, key=lambda run: run.end)
        last = bisect_left(runs, end, key=lambda run: run.begin)
        return all(run.place == (inner, run.begin - shift) for run in runs[first:last])

    def _alignment(self, memory: str) -> int:
        if memory not in self._alignments:
            self._alignments[memory] = alignment_of(memory, self._devices)
        return self._alignments[memory]

    def _input(self, name: str, device: str, placed: PlacedTensor) -> _Place | None:
        """Return where a device reads a tensor, if it lies in the memory of `placed`."""
        if not name or name in self._graph.constants:
            return None
        memory = self._placement.local[name, device]
        # What is prepared once is there for all items: none of them may write on it.
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
        """Forget what an output overwrites: whoever comes after the output comes after that too."""
        self._current[place.buffer] = {
            placed: (begin, end)
            for placed, (begin, end) in self._current[place.buffer].items()
            # What reaches beyond the overwritten bytes is still looked at: some of it is as it was.
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
    """Where a tensor lies in a buffer."""

    buffer: Buffer
    offset: int


class _Run(NamedTuple):
    """Bytes of an output that an input is, and where that lies so far, if in the same memory."""

    begin: int
    end: int
    place: _Place | None
