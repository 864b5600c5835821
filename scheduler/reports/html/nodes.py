"""The table of nodes: operator, device, cost, reason, alternatives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ....graph.core.infer import get_cost
from ....graph.core.ir import Graph, Node
from ....graph.core.printing import attribute_texts
from ....graph.operators.control import iterate_placed_nodes
from ...costs import Costs
from ...plans.partition import SESSION, Option
from ...plans.plan import Plan
from ...profile import NodeTime, Profile
from .columns import Texts, round_digits

COLUMNS = (
    "name",
    "op",
    "device",
    "subgraph",
    "reason",
    "cost_us",
    "basis",
    "measured_us",
    "min_us",
    "runs",
    "flops",
    "nbytes",
    "inputs",
    "outputs",
    "attributes",
    "options",
)


def list_nodes(
    plan: Plan | None, profile: Profile | None, costs: Costs | None, texts: Texts
) -> dict[str, list[Any]]:
    """Return the nodes as columns; a column without values is empty.

    Nodes of `plan` come first, then nodes of nested graphs, then measured nodes of `profile` that
    the plan lacks, since they were made when values became known. `costs` of a simulation replace
    those of the plan. Strings are replaced by numbers in `texts`.
    """
    times = {(node.name, node.device): node for node in (profile.nodes if profile else ())}
    rows: list[dict[str, Any]] = []
    if plan is not None:
        table = _Table(plan, costs, texts)
        # Nodes inside a bounded node have no device of their own.
        placed = [
            entry for entry in iterate_placed_nodes(plan.graph) if entry[0] in plan.assignment
        ]
        listed = sorted(placed, key=lambda entry: entry[1] is not plan.graph)
        for path, graph, node in listed:
            measured = times.pop((path, plan.assignment[path]), None)
            rows.append({**table.row(path, graph, node), **_to_columns(measured)})
    for (name, device), measured in times.items():
        row = {"name": name, "op": texts.number(measured.op), "device": texts.number(device)}
        rows.append({**row, **_to_columns(measured)})
    columns = {column: [row.get(column) for row in rows] for column in COLUMNS}
    return {
        column: values if any(value is not None for value in values) else []
        for column, values in columns.items()
    }


def _to_columns(time: NodeTime | None) -> dict[str, Any]:
    if time is None or not time.runs:
        return {}
    return {
        "measured_us": round_digits(time.total_ns / time.runs / 1e3, 5),
        "min_us": round_digits(time.min_ns / 1e3, 5),
        "runs": time.runs,
    }


class _Table:
    def __init__(self, plan: Plan, costs: Costs | None, texts: Texts) -> None:
        self._plan, self._texts = plan, texts
        self._costs = costs
        self._options = plan.decision.options if plan.decision is not None else {}
        self._subgraph = {
            node.name: subgraph.index
            for subgraph in plan.subgraphs
            for node in subgraph.graph.nodes
        }

    def row(self, path: str, graph: Graph, node: Node) -> dict[str, Any]:
        plan, texts = self._plan, self._texts
        device = plan.assignment[path]
        options = self._options.get(path, ())
        row: dict[str, Any] = {
            "name": path,
            "op": texts.number(node.op),
            "device": texts.number(device),
            "subgraph": self._subgraph.get(path) if graph is plan.graph else None,
            "reason": texts.number(plan.reasons[path]),
            "inputs": self._tensors(graph, node.inputs),
            "outputs": self._tensors(graph, node.outputs),
            "attributes": texts.numbers(attribute_texts(node)) or None,
            "options": [self._plain(option) for option in options],
        }
        if device != SESSION and _is_static(graph, node):
            cost = get_cost(graph, node)
            row |= {"flops": cost.flops, "nbytes": cost.nbytes}
            row |= self._cost(graph, node, device, options)
        return row

    def _cost(
        self, graph: Graph, node: Node, device: str, options: Sequence[Option]
    ) -> dict[str, Any]:
        offers = options if self._costs is None else ()
        own = next((option for option in offers if option.device == device), None)
        if own is not None and own.seconds is not None and own.basis is not None:
            seconds, basis = own.seconds, own.basis
        else:
            costs = self._costs or self._plan.costs
            seconds, basis = costs.node_s(device, graph, node), costs.basis(device, graph, node)
        return {"cost_us": round_digits(seconds * 1e6), "basis": self._texts.number(basis)}

    def _tensors(self, graph: Graph, names: Sequence[str]) -> list[list[int]]:
        number = self._texts.number
        return [[number(name), number(str(graph.tensors[name]))] for name in names if name]

    def _plain(self, option: Option) -> list[Any]:
        device, reason = self._texts.numbers((option.device, option.reason))
        us = None if option.seconds is None else round_digits(option.seconds * 1e6)
        return [device, int(option.supported), reason, us]


def _is_static(graph: Graph, node: Node) -> bool:
    specs: Mapping[str, Any] = graph.tensors
    return all(specs[name].is_static for name in (*node.inputs, *node.outputs) if name)
