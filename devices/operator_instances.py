"""Instances of operators that are classes, one for each of their nodes in an open plan.

A node has one instance for any number of items in flight: a device runs their programs in turn. It
is opened with the plan, after all constants and the tensors computed from them are known, and
closed with it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from ..graph.core.ir import Graph, Node
from ..graph.functions.operator_lifecycle import OperatorLifecycle
from ..graph.operators.item_order import is_ordered
from ..graph.values.errors import PlaitError, combine_errors, is_ctrl_c
from ..graph.values.tensor import Array, read_only
from .memory import View
from .program import kernel_error

Work = Callable[[], object]


class OperatorInstances:
    """The instances of one open plan, or of one key of a stream. Methods block.

    Parameters
    ----------
    once : iterable of str
        The tensors that are computed once, when the plan is opened, before any instance is made.
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
        """Return instances, by name, for nodes of `graph`, a subgraph on `views`; open new ones.

        All new instances are prepared before the first is opened, in the order of the nodes. `call`
        runs opening and closing on the thread of `device`. `constants` replace the graph's if the
        device has converted them. Raises OperatorError if one cannot run like that; none of the
        subgraph is opened then; KernelError or DeviceMemoryError if one cannot be opened; earlier
        ones are closed with the plan.
        """
        nodes = [node for node in graph.nodes if node.operator.owns]
        with self._lock:
            missing = [node for node in nodes if node.name not in self._open]
            if missing:
                known = _list_known(graph, views, self.once, constants)
                call(partial(self._start, device, graph, missing, known, call))
            return {node.name: self._open[node.name] for node in nodes}

    @property
    def is_empty(self) -> bool:
        return not self._closings

    def on_close(self, work: Work) -> None:
        """Call `work` too when the plan is closed, for instances in other processes."""
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
            raise combine_errors(errors)

    def _start(
        self,
        device: str,
        graph: Graph,
        nodes: Sequence[Node],
        known: Mapping[str, Array],
        call: Callable[[Work], object],
    ) -> None:
        made = [_prepare(graph, node) for node in nodes]
        for node, life in zip(nodes, made, strict=True):
            # Inputs that are equal for all items.
            inputs = [read_only(known[name]) if name in known else None for name in node.inputs]
            _run_named(device, node, "opened", partial(life.open, inputs))
            self._open[node.name] = life
            self._closings.append(
                partial(call, partial(_run_named, device, node, "closed", life.close))
            )


class ItemInstances(OperatorInstances):
    """The instances that a program uses: a plan's, or those of the key of the present item.

    `own` are those of the key; None if the item has none.
    """

    def __init__(self, plan: OperatorInstances) -> None:
        super().__init__(plan.once)
        self._plan = plan
        self.own: OperatorInstances | None = None

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
        for node in graph.nodes:
            if node.name in found and is_ordered(node.operator):
                start = device, graph, [node], known, call
                found[node.name] = _ItemLifecycle(self, node.name, found[node.name], start)
        return found

    def on_close(self, work: Work) -> None:
        self._plan.on_close(work)


class _ItemLifecycle(OperatorLifecycle):
    """Runs the instance of a node that the present item uses; opens it if it is new."""

    def __init__(
        self, instances: ItemInstances, node: str, life: OperatorLifecycle, start: tuple[Any, ...]
    ) -> None:
        self._instances, self._node, self._life, self._start = instances, node, life, start

    def run(self, *inputs: Array | None, **attributes: Any) -> Any:
        own = self._instances.own
        if own is None:
            return self._life.run(*inputs, **attributes)
        if self._node not in own._open:
            own._start(*self._start)
        return own._open[self._node].run(*inputs, **attributes)


def _list_known(
    graph: Graph,
    views: Mapping[str, View],
    once: frozenset[str],
    constants: Mapping[str, Array] | None,
) -> dict[str, Array]:
    """Return `constants` of `graph`, and `views` made `once`, by name: the same for all items."""
    known = {name: view.array for name, view in views.items() if name in once}
    return known | dict(graph.constants if constants is None else constants)


def _prepare(graph: Graph, node: Node) -> OperatorLifecycle:
    kind = node.operator.function
    assert isinstance(kind, type)
    life = OperatorLifecycle(kind, node.op, str(node))
    try:
        life.prepare(graph.call(node))
    except PlaitError as error:
        error.at = error.at or str(node)
        raise
    return life


def _run_named(device: str, node: Node, what: str, work: Work) -> None:
    try:
        work()
    except BaseException as error:
        if is_ctrl_c(error):
            raise
        raise kernel_error(error, node, device, f", when it was {what}") from error
