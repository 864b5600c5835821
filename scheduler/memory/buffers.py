"""The buffers of a plan: which tensors share bytes by meaning, and when each buffer is touched.

A view (Reshape and the like) lies on its input's bytes. An output may overwrite an input that has
its dtype and shape, where the kernel allows it and every other access to those bytes comes before.

None of that holds inside an atomic program: nobody knows the order in which it reads its inputs and
writes its outputs, so all of them are touched at one point, and nothing else has a buffer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from ...devices.device import Device, scratch_specs
from ...graph.ir import Graph, Node
from ..partition.partition import Subgraph
from ..placement import OUTSIDE, Placement
from ..steps import Step, Transfer
from .happens_before import START, HappensBefore, Point

Replica = tuple[str, str]
"""A tensor, or a scratch buffer, in a memory."""


@dataclass(slots=True)
class Buffer:
    """Bytes that one tensor, or several that share them, occupy in a memory.

    Attributes
    ----------
    memory : str
    nbytes : int
    writer : Point
        Where the bytes are first written.
    accesses : set of Point
        Every point that reads or writes them, `writer` included.
    replicas : list of Replica
        What lies there.
    """

    memory: str
    nbytes: int
    writer: Point
    accesses: set[Point] = field(default_factory=set)
    replicas: list[Replica] = field(default_factory=list)


def collect_buffers(
    graph: Graph, placement: Placement, devices: Mapping[str, Device], order: HappensBefore
) -> list[Buffer]:
    """Return the buffers of one item, in the order of their writers."""
    return _Collector(graph, placement, devices, order).collect()


class _Collector:
    def __init__(
        self,
        graph: Graph,
        placement: Placement,
        devices: Mapping[str, Device],
        order: HappensBefore,
    ) -> None:
        self._graph, self._placement = graph, placement
        self._devices, self._order = devices, order
        self._buffers: list[Buffer] = []
        self._of: dict[Replica, Buffer] = {}
        self._reads = self._collect_reads()

    def collect(self) -> list[Buffer]:
        for name in self._graph.inputs:
            self._add((name, self._placement.home[name]), self._graph.tensors[name].nbytes, START)
        for step in self._placement.steps:
            if isinstance(step.work, Transfer):
                transfer = step.work
                replica = transfer.tensor, transfer.target
                self._add(replica, transfer.nbytes, self._order.point(step))
            elif self._is_atomic(step):
                for name in step.work.graph.outputs:
                    replica = name, self._placement.home[name]
                    self._add(replica, self._graph.tensors[name].nbytes, self._order.point(step))
            else:
                for node, point in self._points(step, step.work):
                    self._visit(node, step.device, point)
        return self._buffers

    def _collect_reads(self) -> dict[Replica, list[Point]]:
        reads: dict[Replica, list[Point]] = {}
        local = self._placement.local
        for step in self._placement.steps:
            if isinstance(step.work, Transfer):
                source = step.work.tensor, step.work.source
                reads.setdefault(source, []).append(self._order.point(step))
                continue
            if self._is_atomic(step):
                for name in step.work.graph.inputs:
                    replica = name, local[name, step.device]
                    reads.setdefault(replica, []).append(self._order.point(step))
                continue
            for node, point in self._points(step, step.work):
                for name in dict.fromkeys(filter(None, node.inputs)):
                    if name not in self._graph.constants:
                        reads.setdefault((name, local[name, step.device]), []).append(point)
        for name in self._graph.outputs:
            if name not in self._graph.constants:
                reads.setdefault((name, local[name, OUTSIDE]), []).append(self._order.end)
        return reads

    def _is_atomic(self, step: Step) -> bool:
        return self._devices[step.device].capabilities.atomic_programs

    def _points(self, step: Step, subgraph: Subgraph) -> Iterator[tuple[Node, Point]]:
        for place, node in enumerate(subgraph.graph.nodes):
            yield node, self._order.point(step, place)

    def _visit(self, node: Node, device: str, point: Point) -> None:
        """Give the node's outputs and scratch their buffers."""
        taken: list[Buffer] = []
        for index, name in enumerate(node.outputs):
            if not name:
                continue
            replica = name, self._placement.home[name]
            shared = self._viewed(node, index, device, replica) or self._overwritten(
                node, index, device, replica, point
            )
            if shared is None or any(shared is buffer for buffer in taken):
                self._add(replica, self._graph.tensors[name].nbytes, point)
            else:
                self._join(shared, replica, point)
                taken.append(shared)
        owner = self._devices[device]
        for name, spec in scratch_specs(owner, self._graph, node).items():
            self._add((name, owner.capabilities.memory), spec.nbytes, point)

    def _viewed(self, node: Node, index: int, device: str, replica: Replica) -> Buffer | None:
        """Return the buffer of the input that the output is a view of."""
        for output, source in node.operator.views:
            if output == index:
                return self._input(node.inputs[source], device, replica)
        return None

    def _overwritten(
        self, node: Node, index: int, device: str, replica: Replica, point: Point
    ) -> Buffer | None:
        """Return the buffer of an input that the output may overwrite."""
        for output, source in node.operator.inplace:
            if output != index or source >= len(node.inputs):
                continue
            name = node.inputs[source]
            buffer = self._input(name, device, replica)
            if buffer is None or self._graph.tensors[name] != self._graph.tensors[replica[0]]:
                continue
            others = [*node.inputs[:source], *node.inputs[source + 1 :]]
            read_twice = any(self._input(other, device, replica) is buffer for other in others)
            if not read_twice and self._is_last(buffer, point):
                return buffer
        return None

    def _is_last(self, buffer: Buffer, point: Point) -> bool:
        """True when every access to the buffer but that at `point` comes before it."""
        return all(
            access == point or self._order.precedes(access, point) for access in buffer.accesses
        )

    def _input(self, name: str, device: str, replica: Replica) -> Buffer | None:
        """Return the buffer a device reads a tensor in, if it lies in the replica's memory."""
        if not name or name in self._graph.constants:
            return None
        memory = self._placement.local[name, device]
        return self._of[name, memory] if memory == replica[1] else None

    def _add(self, replica: Replica, nbytes: int, writer: Point) -> None:
        buffer = Buffer(replica[1], nbytes, writer)
        self._buffers.append(buffer)
        self._join(buffer, replica, writer)

    def _join(self, buffer: Buffer, replica: Replica, writer: Point) -> None:
        buffer.replicas.append(replica)
        buffer.accesses.add(writer)
        buffer.accesses.update(self._reads.get(replica, ()))
        self._of[replica] = buffer
