"""Control flow as one step: branches and bodies bound to arrays, in scratch memory of their node.

A device that binds nodes to arrays binds nested graphs in the same way, by a function that it
passes. This module places their tensors and runs them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol, TypeAlias

import numpy as np

from ..graph.core.aliasing import find_views
from ..graph.core.ir import Graph, Node
from ..graph.core.nested import list_graphs
from ..graph.core.operator import Call, Specs
from ..graph.operators.control import fits_whole
from ..graph.values.dims import normalize_axis
from ..graph.values.tensor import Array, TensorSpec
from .device import Support, scratch_name
from .event import CancelledWorkError, Event
from .memory import ALIGNMENT, View

MOST_NODES = 256
"""The limit for the graphs of one node; larger ones are planned on their own, over all devices."""


class NestedProgram(Protocol):
    def run(self, event: Any) -> None:
        """Run the nodes until `event` is cancelled."""


Supports: TypeAlias = Callable[[Node, Call], Support]
ScratchOf: TypeAlias = Callable[[Node, Call, Specs], Sequence[TensorSpec]]
Bind: TypeAlias = Callable[[Graph, Mapping[str, View], Mapping[str, Array]], NestedProgram]


def supports(node: Node, call: Call, ask: Supports) -> Support:
    graphs = list_graphs(node)
    if not fits_whole(node, call):
        return Support(False, "shapes in it depend on values")
    if sum(len(graph.nodes) for graph in graphs) > MOST_NODES:
        return Support(False, f"it holds more than {MOST_NODES} nodes")
    for graph in graphs:
        for inner in graph.nodes:
            answer = ask(inner, graph.call(inner))
            if not answer.ok:
                return Support(False, f"{inner.name!r} in it: {answer.reason}")
    return Support(True, "runs what it holds")


def list_scratch(node: Node, of: ScratchOf) -> tuple[TensorSpec, ...]:
    nbytes = max(
        _Layout(graph, _list_own_inputs(node, graph), of).nbytes for graph in list_graphs(node)
    )
    return (TensorSpec(np.uint8, (nbytes,)),)


def bind(
    node: Node,
    views: Mapping[str, View],
    constants: Mapping[str, Array],
    of: ScratchOf,
    bind_graph: Bind,
) -> Step:
    def body(graph: Graph) -> Body:
        return Body(node, graph, views, constants, of, bind_graph)

    def array(name: str) -> Array | None:
        return None if not name else constants[name] if name in constants else views[name].array

    inputs, outputs = [*map(array, node.inputs)], [*map(array, node.outputs)]
    if node.op == "If":
        then, other = (body(node.attributes[name]) for name in ("then_branch", "else_branch"))
        return Branches(inputs[0], then, other, outputs)
    return Iterations(node, body(node.attributes["body"]), inputs, outputs)


class _Layout:
    """The places of a nested graph's tensors and scratch buffers in one buffer.

    Tensors that are never alive at once may share bytes; views share their sources' bytes.

    Parameters
    ----------
    inputs : sequence of str
        Those of its inputs that are also placed here.
    of : callable
        Returns the scratch buffers of a node.

    Attributes
    ----------
    places : Mapping of str to (int, TensorSpec)
        Offset and spec of each.
    """

    def __init__(self, graph: Graph, inputs: Sequence[str], of: ScratchOf) -> None:
        self.places: dict[str, tuple[int, TensorSpec]] = {}
        self.nbytes = 0
        self._live: list[tuple[int, int, int]] = []  # start, end, and the last node that reads it
        # The source of a view lives until the last reader of the view.
        root, end = _find_roots(graph), len(graph.nodes)
        last: dict[str, int] = {}
        for place, node in enumerate(graph.nodes):
            last.update((root.get(name, name), place) for name in node.inputs)
        # Results are read when all nodes have run, and inputs of a loop again in its next
        # iteration.
        last.update((root.get(name, name), end) for name in graph.outputs)
        for name in inputs:
            self._put(name, graph.tensors[name], -1, end)
        for place, node in enumerate(graph.nodes):
            for name in filter(None, node.outputs):
                if name in root:
                    self.places[name] = self.places[root[name]][0], graph.tensors[name]
                else:
                    self._put(name, graph.tensors[name], place, last.get(name, place))
            for index, spec in enumerate(of(node, graph.call(node), graph.output_specs(node))):
                self._put(scratch_name(node, index), spec, place, place)

    def _put(self, name: str, spec: TensorSpec, first: int, last: int) -> None:
        # A node's inputs are alive while it writes its outputs: only tensors without further
        # readers make room.
        self._live = sorted(one for one in self._live if one[2] >= first)
        start = 0
        for begin, end, _ in self._live:
            if start + spec.nbytes <= begin:
                break
            start = max(start, end)
        end = start + -(-spec.nbytes // ALIGNMENT) * ALIGNMENT
        self._live.append((start, end, last))
        self.places[name] = start, spec
        self.nbytes = max(self.nbytes, end)


def _find_roots(graph: Graph) -> dict[str, str]:
    """Return by name the source of each view in `graph` that covers an output of a node."""
    root: dict[str, str] = {}
    for node in graph.nodes:
        for alias in find_views(graph, node):
            source, target = node.inputs[alias.input], node.outputs[alias.output]
            is_all = graph.tensors[source].nbytes == graph.tensors[target].nbytes
            if source in graph.producers and is_all and not alias.offset:
                root[target] = root.get(source, source)
    return root


def _list_own_inputs(node: Node, graph: Graph) -> Sequence[str]:
    if node.op == "If":
        return ()
    return graph.inputs[: len(graph.inputs) - node.attributes["captured"]]


class Body:
    """A nested graph bound to arrays.

    `inputs` are those that are not captured; `run` is called with an event.
    """

    def __init__(
        self,
        node: Node,
        graph: Graph,
        views: Mapping[str, View],
        constants: Mapping[str, Array],
        of: ScratchOf,
        bind_graph: Bind,
    ) -> None:
        nodes = (replace(inner, name=f"{node.name}/{inner.name}") for inner in graph.nodes)
        graph = replace(graph, nodes=tuple(nodes))
        own = _list_own_inputs(node, graph)
        buffer = views[scratch_name(node, 0)]
        places = _Layout(graph, own, of).places
        found = {name: _cut_view(buffer, *place) for name, place in places.items()}
        captured = graph.inputs[len(own) :]
        outer = dict(zip(captured, node.inputs[len(node.inputs) - len(captured) :], strict=True))
        found |= {name: views[outer[name]] for name in captured if outer[name] in views}
        # Captured tensors without views are constants outside.
        known = {name: constants[outer[name]] for name in captured if name not in found}
        known |= graph.constants
        arrays = {**{name: view.array for name, view in found.items()}, **known}
        self.inputs = [arrays[name] for name in own]
        self.outputs = [arrays[name] for name in graph.outputs]
        self.run = bind_graph(graph, found, known).run


def _cut_view(buffer: View, offset: int, spec: TensorSpec) -> View:
    cells = buffer.array[offset : offset + spec.nbytes].view(spec.dtype)
    return View(buffer.arena, buffer.offset + offset, spec, cells.reshape(spec.static_shape))


class Branches:
    event: Any = Event()
    """The enclosing program's; cancelling it stops the body."""

    def __init__(
        self, cond: Array | None, then: Body, other: Body, outputs: Sequence[Array | None]
    ) -> None:
        self._cond = cond
        # Indexed by the condition.
        self._ways = tuple((body, _pair_copies(outputs, body.outputs)) for body in (other, then))

    def __call__(self) -> None:
        assert self._cond is not None
        body, copies = self._ways[bool(self._cond.item())]
        body.run(self.event)
        for target, source in copies:
            np.copyto(target, source)


class Iterations:
    """A Loop or Scan: runs a body repeatedly, with its states."""

    event: Any = Event()
    """See `Branches`."""

    def __init__(
        self,
        node: Node,
        body: Body,
        inputs: Sequence[Array | None],
        outputs: Sequence[Array | None],
    ) -> None:
        self._body = body
        given = inputs[: len(inputs) - node.attributes["captured"]]
        self._head: Sequence[Array] = ()
        self._trips = self._cond = self._continues = None
        self._slices: list[tuple[Array, Array]] = []
        if node.op == "Loop":
            # Both may be absent, and inputs at the end left out altogether.
            self._trips, self._cond = [*given[:2], None, None][:2]
            self._head, states = body.inputs[:2], body.inputs[2:]
            self._continues, results = body.outputs[0], body.outputs[1:]
            initial = given[2:]
        else:
            count = len(given) - node.attributes["num_scan_inputs"]
            initial, scanned = given[:count], _move_axes(node, "input", given[count:])
            states, results = body.inputs[:count], body.outputs
            self._slices = list(zip(body.inputs[count:], scanned, strict=True))
        # Absent outputs at the end are computed nevertheless.
        targets = [*outputs, *[None] * (len(results) - len(outputs))]
        self._initial = _pair_copies(states, initial)
        self._final = _pair_copies(targets, states)
        rows, wanted = results[len(states) :], targets[len(states) :]
        pairs = zip(_move_axes(node, "output", wanted), rows, strict=True)
        self._rows = [(y, row) for y, row in pairs if y is not None]
        moved = [pair for pair in _pair_copies(states, results) if pair[0] is not pair[1]]
        # A result may be another state or a view of it, which would be overwritten.
        self._crossing = [
            (a, b) for a, b in moved if any(np.may_share_memory(b, s) for s in states)
        ]
        self._straight = [pair for pair in moved if not any(pair is one for one in self._crossing)]

    def __call__(self) -> None:
        """Run the body while its condition holds, up to its number of iterations."""
        for state, given in self._initial:
            np.copyto(state, given)
        continues, step, count = self._cond is None or self._cond.item(), 0, self._count()
        while continues and step < count:
            if self.event.cancelled:
                raise CancelledWorkError("the work was cancelled in a loop")
            self._iterate(step)
            continues = self._continues is None or self._continues.item()
            step += 1
        for y, state in self._final:
            np.copyto(y, state)

    def _count(self) -> float:
        if self._slices:
            return len(self._slices[0][1])
        return math.inf if self._trips is None else self._trips.item()

    def _iterate(self, step: int) -> None:
        for one, value in zip(self._head, (step, True), strict=False):
            one[...] = value  # other nodes may have used the memory
        for target, scanned in self._slices:
            np.copyto(target, scanned[step])
        self._body.run(self.event)
        for y, row in self._rows:
            y[step] = row
        # All are copied before any is overwritten: two states may have been swapped.
        held = [(state, result.copy()) for state, result in self._crossing]
        for state, result in (*self._straight, *held):
            np.copyto(state, result)


Step: TypeAlias = Branches | Iterations
"""A bound node of control flow, which runs when called."""


def _pair_copies(targets: Sequence[Any], sources: Sequence[Any]) -> list[tuple[Array, Array]]:
    pairs = zip(targets, sources, strict=False)
    return [(target, source) for target, source in pairs if target is not None]


def _move_axes(node: Node, what: str, arrays: Sequence[Array | None]) -> list[Any]:
    axes = node.attributes.get(f"scan_{what}_axes") or ()
    backwards = node.attributes.get(f"scan_{what}_directions") or ()
    found: list[Array | None] = []
    for index, array in enumerate(arrays):
        if array is not None:
            axis = normalize_axis(axes[index] if index < len(axes) else 0, array.ndim)
            array = np.moveaxis(array, axis, 0)
            array = array[::-1] if index < len(backwards) and backwards[index] else array
        found.append(array)
    return found
