"""Where every buffer lies, before the first run.

Two buffers may share bytes iff every access to one happens before the first write to the other, in
the order of `happens_before`: whatever runs concurrently is thereby apart.

K items in flight need K copies of what lives across steps. What only one step touches needs one
copy per device whatever K is, because a device runs one step at a time. Two layouts are compared
for each memory, and the smaller is kept:

    joint   K × (everything packed together)
    split   what single steps touch, once per device + K × (the rest)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ...devices.device import Device
from ...devices.memory import HOST, SHARED
from ...graph.ir import Graph
from ...graph.printing import counted
from ..errors import DoesNotFitError
from ..packing.packing import pack
from ..placement import Placement
from .buffers import Buffer, Replica, collect_buffers
from .happens_before import HappensBefore

SLOT = ""
"""The region of an item's own slot, where the name of a device is asked for."""


@dataclass(frozen=True, slots=True)
class Location:
    """Where a replica lies.

    Attributes
    ----------
    memory : str
    region : str
        `SLOT`, of which each item in flight has its own, or the device whose steps share it.
    offset : int
        Bytes from the start of the region.
    """

    memory: str
    region: str
    offset: int


@dataclass(frozen=True, slots=True)
class Pool:
    """What is allocated of one memory.

    Attributes
    ----------
    memory : str
    slot_nbytes : int
        Per item in flight.
    lane_nbytes : Mapping of str to int
        Once per device, for what only single steps touch.
    slots : int
        Items in flight, K.
    tensors_nbytes : int
        One item's buffers laid end to end, for comparison.
    lower_bound : int
        Bytes that no layout of one item can go below: of buffers that must all be apart.
    """

    memory: str
    slot_nbytes: int
    lane_nbytes: Mapping[str, int]
    slots: int
    tensors_nbytes: int
    lower_bound: int

    @property
    def nbytes(self) -> int:
        """All of it, for all items in flight."""
        return self.slots * self.slot_nbytes + sum(self.lane_nbytes.values())


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """The offsets of all buffers, and the sizes of the regions they lie in."""

    locations: Mapping[Replica, Location]
    pools: Mapping[str, Pool]


def plan_memory(
    graph: Graph, placement: Placement, devices: Mapping[str, Device], slots: int
) -> MemoryPlan:
    """Lay out every buffer of a static graph for `slots` items in flight.

    Raises
    ------
    DoesNotFitError
        If a memory is too small; the message says by how much.
    """
    order = HappensBefore(placement.steps)
    buffers = collect_buffers(graph, placement, devices, order)
    locations: dict[Replica, Location] = {}
    pools: dict[str, Pool] = {}
    for memory in sorted({buffer.memory for buffer in buffers}):
        inside = [buffer for buffer in buffers if buffer.memory == memory]
        layout = _Layout(memory, inside, order, _alignment(memory, devices))
        pool, places = layout.choose(placement, slots)
        _check_capacity(pool, devices)
        pools[memory] = pool
        for buffer, location in zip(inside, places, strict=True):
            locations.update(dict.fromkeys(buffer.replicas, location))
    return MemoryPlan(locations, pools)


class _Layout:
    """The two layouts of one memory's buffers."""

    def __init__(
        self, memory: str, buffers: Sequence[Buffer], order: HappensBefore, alignment: int
    ) -> None:
        self._memory = memory
        self._buffers = buffers
        self._sizes = [-(-buffer.nbytes // alignment) * alignment for buffer in buffers]
        self._conflicts, self._lower_bound = _conflicts(buffers, self._sizes, order)

    def choose(self, placement: Placement, slots: int) -> tuple[Pool, list[Location]]:
        everything = range(len(self._buffers))
        joint = self._pack(everything, SLOT)
        joint_pool = self._pool(joint[0], {}, slots)
        if slots == 1:
            return joint_pool, [joint[1][i] for i in everything]
        inner: dict[int, list[int]] = {}
        outer: list[int] = []
        for index, buffer in enumerate(self._buffers):
            steps = {point[0] for point in buffer.accesses}
            own = 1 <= min(steps) == max(steps) <= len(placement.steps)
            (inner.setdefault(min(steps), []) if own else outer).append(index)
        slot_nbytes, places = self._pack(outer, SLOT)
        lane_nbytes: dict[str, int] = {}
        for step, indices in inner.items():
            device = placement.steps[step - 1].device
            nbytes, packed = self._pack(indices, device)
            lane_nbytes[device] = max(nbytes, lane_nbytes.get(device, 0))
            places.update(packed)
        split_pool = self._pool(slot_nbytes, lane_nbytes, slots)
        if joint_pool.nbytes <= split_pool.nbytes:
            return joint_pool, [joint[1][i] for i in everything]
        return split_pool, [places[i] for i in everything]

    def _pack(self, indices: Sequence[int], region: str) -> tuple[int, dict[int, Location]]:
        """Pack some of the buffers; return the bytes needed and each one's location."""
        position = {index: i for i, index in enumerate(indices)}
        sizes = [self._sizes[index] for index in indices]
        conflicts = [
            [position[other] for other in self._conflicts[index] if other in position]
            for index in indices
        ]
        packing = pack(sizes, conflicts)
        return packing.nbytes, {
            index: Location(self._memory, region, offset)
            for index, offset in zip(indices, packing.offsets, strict=True)
        }

    def _pool(self, slot_nbytes: int, lane_nbytes: Mapping[str, int], slots: int) -> Pool:
        total = sum(self._sizes)
        return Pool(self._memory, slot_nbytes, lane_nbytes, slots, total, self._lower_bound)


def _conflicts(
    buffers: Sequence[Buffer], sizes: Sequence[int], order: HappensBefore
) -> tuple[list[list[int]], int]:
    """Return for every buffer those it must not overlap, and a lower bound of the peak.

    The bound: what is alive for certain while some buffer is first written.
    """
    steps = [_mask(buffer) for buffer in buffers]
    last = [_last_places(buffer) for buffer in buffers]
    writers = [buffer.writer for buffer in buffers]
    before = [order.earlier[step] | 1 << step for step, _ in writers]

    def over(a: int, b: int) -> bool:
        """True when every access to a precedes the writer of b."""
        step, place = writers[b]
        return not steps[a] & ~before[b] and last[a].get(step, -1) < place

    conflicts: list[list[int]] = [[] for _ in buffers]
    alive = list(sizes)
    for a in range(len(buffers)):
        for b in range(a):
            if over(b, a) or over(a, b):
                continue
            conflicts[a].append(b)
            conflicts[b].append(a)
            if writers[a] == writers[b] or order.precedes(writers[b], writers[a]):
                alive[a] += sizes[b]
            elif order.precedes(writers[a], writers[b]):
                alive[b] += sizes[a]
    return conflicts, max(alive, default=0)


def _mask(buffer: Buffer) -> int:
    mask = 0
    for step, _ in buffer.accesses:
        mask |= 1 << step
    return mask


def _last_places(buffer: Buffer) -> dict[int, int]:
    last: dict[int, int] = {}
    for step, place in buffer.accesses:
        last[step] = max(place, last.get(step, -1))
    return last


def _alignment(memory: str, devices: Mapping[str, Device]) -> int:
    """Return the largest alignment that a device with access to the memory asks for."""
    return max(
        (
            device.capabilities.alignment
            for device in devices.values()
            if memory in device.capabilities.accesses or memory in (HOST, SHARED)
        ),
        default=1,
    )


def _check_capacity(pool: Pool, devices: Mapping[str, Device]) -> None:
    for name, device in devices.items():
        limit = device.capabilities.memory_bytes
        if device.capabilities.memory == pool.memory and limit is not None and pool.nbytes > limit:
            raise DoesNotFitError(
                f"the plan needs {pool.nbytes:,} bytes of memory {pool.memory!r}, "
                f"{name} has {limit:,}",
                at=f"{counted(pool.slots, 'item')} in flight, {pool.slot_nbytes:,} bytes each",
                fix="lower max_in_flight, feed smaller inputs, or give nodes to other devices",
            )
