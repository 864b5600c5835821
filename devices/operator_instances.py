"""Instances of operators that are classes, one for each of their nodes in an open plan.

There is one for a node, whatever number of items is in flight: a device runs their programs one
after the other. It is opened when the plan is, after all constants are there and what follows from
them is computed, and closed with the plan.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from ..graph.errors import PlaitError, all_told, is_ctrl_c
from ..graph.ir import Graph, Node
from ..graph.item_order import is_ordered
from ..graph.operator_lifecycle import OperatorLifecycle
from ..graph.tensor import Array, read_only
from .memory import View
from .program import kernel_error

Work = Callable[[], object]


class OperatorInstances:
    """The instances of one open plan, or of one key of a stream. Methods block.

    Parameters
    ----------
    once : iterable of str
        The tensors that are computed once, when the plan is opened, before anything is asked for.
    """

    def __init__(self, once: Iterable[str] = ()) -> None:
        self.once = frozenset(once)
        self._lock = threading.Lock()
        self._open: dict[str, OperatorLifecycle] = {}
        self._closings: list[Work] = []

    def of(
        self,
        device: str,
        graph: Graph,
        views: Mapping[str, View],
        call: Callable[[Work], object] = lambda work: work(),
        constants: Mapping[str, Array] | None = None,
    ) -> dict[str, OperatorLifecycle]:
        """Return the instances for a subgraph's nodes, by name.

        Those that are not there yet are made: all of them are prepared, then they are opened in the
        order of the nodes. `call` calls what opens and closes them, on the device's own thread.
        `constants` are the graph's as the device has them, where these are others.

        Raises
        ------
        OperatorError
            If one is not to be run like that; none of the subgraph is opened then.
        KernelError, DeviceMemoryError
            If one cannot be opened; those before it are closed with the plan.
        """
        nodes = [node for node in graph.nodes if node.operator.owns]
        with self._lock:
            missing = [node for node in nodes if node.name not in self._open]
            if missing:
                known = _list_known(graph, views, self.once, constants)
                call(partial(self._start, device, graph, missing, known, call))
            return {node.name: self._open[node.name] for node in nodes}

    def for_items(self, present: ItemInstances) -> OperatorInstances:
        """Return the same for a program that uses other instances for some items."""
        return _InstancesByItem(self, present)

    @property
    def is_empty(self) -> bool:
        """True if no instance is open."""
        return not self._closings

    def find(self, node: str, start: Callable[[OperatorInstances], None]) -> OperatorLifecycle:
        """Return the instance of a node, which `start` opens at first."""
        if node not in self._open:
            start(self)
        return self._open[node]

    def on_close(self, work: Work) -> None:
        """Call this too when the plan is closed: it closes what another process has opened."""
        self._closings.append(work)

    def close(self) -> None:
        """Close all instances, in reverse order.

        Raises
        ------
        KernelError, DeviceError
            The first error, with the others in its notes; all instances are closed.
        """
        with self._lock:
            closings, self._closings = self._closings, []
            self._open.clear()
        errors: list[PlaitError] = []
        for close in reversed(closings):
            try:
                close()
            except PlaitError as error:
                errors.append(error)
        if errors:
            raise all_told(errors)

    def _start(
        self,
        device: str,
        graph: Graph,
        nodes: Sequence[Node],
        known: Mapping[str, Array],
        call: Callable[[Work], object],
    ) -> None:
        made = [_prepared(graph, node) for node in nodes]
        for node, life in zip(nodes, made, strict=True):
            # Those that are the same for all items.
            inputs = [read_only(known[name]) if name in known else None for name in node.inputs]
            _told(device, node, "opened", partial(life.open, inputs))
            self._open[node.name] = life
            self._closings.append(partial(call, partial(_told, device, node, "closed", life.close)))


class ItemInstances:
    """The instances of the item that a bound program runs for.

    Attributes
    ----------
    own : OperatorInstances or None
        Those of its key; None if it uses the plan's.
    """

    __slots__ = ("own",)

    def __init__(self) -> None:
        self.own: OperatorInstances | None = None


class _InstancesByItem(OperatorInstances):
    """The instances of a plan, for a program that uses those of an item's key in their place."""

    def __init__(self, plan: OperatorInstances, present: ItemInstances) -> None:
        super().__init__(plan.once)
        self._plan, self._present = plan, present
        self.on_close = plan.on_close  # type: ignore[method-assign]

    def of(
        self,
        device: str,
        graph: Graph,
        views: Mapping[str, View],
        call: Callable[[Work], object] = lambda work: work(),
        constants: Mapping[str, Array] | None = None,
    ) -> dict[str, OperatorLifecycle]:
        found = self._plan.of(device, graph, views, call, constants)
        known = _list_known(graph, views, self.once, constants)

        def start(node: Node, own: OperatorInstances) -> None:
            own._start(device, graph, [node], known, call)

        for node in graph.nodes:
            if node.name in found and is_ordered(node.operator):
                life, present = found[node.name], self._present
                found[node.name] = _LifeByItem(life, node.name, present, partial(start, node))
        return found


class _LifeByItem(OperatorLifecycle):
    """Runs a node's instance for the present item."""

    def __init__(
        self,
        life: OperatorLifecycle,
        node: str,
        present: ItemInstances,
        start: Callable[[OperatorInstances], None],
    ) -> None:
        self._life, self._node, self._present, self._start = life, node, present, start

    def run(self, *inputs: Array | None, **attributes: Any) -> Any:
        own = self._present.own
        life = self._life if own is None else own.find(self._node, self._start)
        return life.run(*inputs, **attributes)


def _list_known(
    graph: Graph,
    views: Mapping[str, View],
    once: frozenset[str],
    constants: Mapping[str, Array] | None,
) -> dict[str, Array]:
    """Return the tensors that are the same for all items."""
    known = {name: view.array for name, view in views.items() if name in once}
    return known | dict(graph.constants if constants is None else constants)


def _prepared(graph: Graph, node: Node) -> OperatorLifecycle:
    kind = node.operator.function
    assert isinstance(kind, type)
    life = OperatorLifecycle(kind, node.op, str(node))
    try:
        life.prepare(graph.call(node))
    except PlaitError as error:
        error.at = error.at or str(node)
        raise
    return life


def _told(device: str, node: Node, what: str, work: Work) -> None:
    """Do something with a node's instance; what is raised names the node."""
    try:
        work()
    except BaseException as error:
        if is_ctrl_c(error):
            raise
        raise kernel_error(error, node, device, f", when it was {what}") from error
