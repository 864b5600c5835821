"""Control flow that is known ahead becomes plain nodes: a chosen branch, an unrolled loop.

If(true, x; f, g) -> f(x)        Loop(2, ., s; f) -> f(f(s))        Scan likewise, slice by slice

The node "add" of the body of "loop" becomes "loop[0]/add", "loop[1]/add" and so on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...graph.core.ir import Graph, Node
from ...graph.core.nested import walk_nodes
from ...graph.core.operator import Call, find_operator
from ...graph.operators.control import choose_branch, get_axis, repeats
from ...graph.values.dims import normalize_axis
from ...graph.values.names import Names
from ...graph.values.tensor import Array

UNROLLED_NODES = 256
"""The largest number of nodes that a loop may become; the session runs longer loops body by body.
A loop in a loop has its share of the outer loop's allowance, so that the total stays small."""


@dataclass(frozen=True, slots=True)
class Inlined:
    """The replacement of a node: constants by name, and nodes in order.

    `allowance` is the number of nodes that a loop among them may become.
    """

    constants: Mapping[str, Array]
    nodes: Sequence[Node]
    allowance: int


@dataclass(frozen=True, slots=True)
class Namespace:
    """The names in use in the graph around a node."""

    nodes: Names
    tensors: Names


def inline_node(node: Node, call: Call, names: Namespace, allowance: int) -> Inlined | None:
    """Return the plain nodes that replace `node`, of control flow, with new `names`.

    None if values decide its course, or a loop would become more nodes than `allowance`. `call` has
    the known values.
    """
    writer, steps = _Writer(node, names), 1
    if node.op == "If":
        condition = call.value(0)
        if condition is None:
            return None
        results = writer.copy(choose_branch(call, bool(condition.item())), node.inputs[1:])
        writer.publish(results, node.outputs)
    else:
        unroll = _unroll_loop if node.op == "Loop" else _unroll_scan
        steps = unroll(writer, node, call, allowance)
    return Inlined(writer.constants, writer.nodes, allowance // steps) if steps else None


def _unroll_loop(writer: _Writer, node: Node, call: Call, allowance: int) -> int:
    body, trips, condition = node.attributes["body"], call.value(0), call.value(1)
    if trips is None or (call.has(1) and condition is None):
        return 0
    count = max(int(trips.item()), 0) if condition is None or condition.item() else 0
    if not repeats(body) or not _is_short(body, count, allowance):
        return 0
    states, captured = _split(node, 2)
    rows: list[list[str]] = []
    for step in range(count):
        head = writer.constant(f"{step}", np.int64(step)), writer.constant("cond", np.bool_(True))
        _, *results = writer.copy(body, (*head, *states, *captured), f"[{step}]")
        states, stacked = results[: len(states)], results[len(states) :]
        rows.append(stacked)
    writer.publish(states, node.outputs[: len(states)])
    for index, name in enumerate(node.outputs[len(states) :]):
        writer.stack([row[index] for row in rows], 0, name)
    return count


def _unroll_scan(writer: _Writer, node: Node, call: Call, allowance: int) -> int:
    body, n_scanned = node.attributes["body"], node.attributes["num_scan_inputs"]
    given, captured = _split(node, 0)
    states, scanned = given[: len(given) - n_scanned], given[len(given) - n_scanned :]
    directions = node.attributes["scan_input_directions"] or (0,) * n_scanned
    specs = [call.spec(len(states) + index) for index in range(n_scanned)]
    if not all(spec.is_static for spec in specs):
        return 0
    axes = [
        normalize_axis(get_axis(call, "scan_input_axes", index), len(spec.static_shape))
        for index, spec in enumerate(specs)
    ]
    count = specs[0].static_shape[axes[0]]
    if not _is_short(body, count, allowance):
        return 0
    rows: list[list[str]] = []
    for step in range(count):
        slices = [
            writer.pick(name, axis, count - 1 - step if backward else step, f"{step}/{index}")
            for index, (name, axis, backward) in enumerate(
                zip(scanned, axes, directions, strict=True)
            )
        ]
        results = writer.copy(body, (*states, *slices, *captured), f"[{step}]")
        states, stacked = results[: len(states)], results[len(states) :]
        rows.append(stacked)
    writer.publish(states, node.outputs[: len(states)])
    backwards = node.attributes["scan_output_directions"] or ()
    for index, name in enumerate(node.outputs[len(states) :]):
        column = [row[index] for row in rows]
        if index < len(backwards) and backwards[index]:
            column.reverse()
        writer.stack(column, get_axis(call, "scan_output_axes", index), name)
    return count


def _split(node: Node, first: int) -> tuple[list[str], list[str]]:
    end = len(node.inputs) - node.attributes["captured"]
    return list(node.inputs[first:end]), list(node.inputs[end:])


def _is_short(body: Graph, count: int, allowance: int) -> bool:
    return count > 0 and count * sum(1 for _ in walk_nodes(body)) <= allowance


class _Writer:
    def __init__(self, node: Node, names: Namespace) -> None:
        self.constants: dict[str, Array] = {}
        self.nodes: list[Node] = []
        self._name = node.name
        self._names = names

    def copy(self, graph: Graph, inputs: Sequence[str], iteration: str = "") -> list[str]:
        """Add the nodes of a nested `graph`, fed with `inputs`; return the names of its outputs.

        `iteration` is part of new names.
        """
        names = {"": "", **dict(zip(graph.inputs, inputs, strict=True))}
        prefix = f"{self._name}{iteration}/"
        for name, value in graph.constants.items():
            names[name] = self._names.tensors.take(prefix + name)
            self.constants[names[name]] = value
        for node in graph.nodes:
            names.update(
                {name: self._names.tensors.take(prefix + name) for name in node.outputs if name}
            )
            copied = replace(
                node,
                name=self._names.nodes.take(prefix + node.name),
                inputs=tuple(names[name] for name in node.inputs),
                outputs=tuple(names[name] for name in node.outputs),
            )
            self.nodes.append(copied)
        return [names[name] for name in graph.outputs]

    def constant(self, name: str, value: Any) -> str:
        name = self._names.tensors.take(f"{self._name}/{name}")
        self.constants[name] = np.asarray(value)
        return name

    def pick(self, name: str, axis: int, index: int, suffix: str) -> str:
        place = self.constant(f"{suffix}/index", np.int64(index))
        made = self._names.tensors.take(f"{self._name}/{suffix}/slice")
        self._add("Gather", (name, place), made, axis=axis)
        return made

    def stack(self, names: Sequence[str], axis: int, output: str) -> None:
        if not output:
            return
        where = self.constant(f"{output}/axis", np.asarray([axis], np.int64))
        rows = []
        for index, name in enumerate(names):
            rows.append(self._names.tensors.take(f"{self._name}/{output}/{index}"))
            self._add("Unsqueeze", (name, where), rows[-1])
        self._add("Concat", rows, output, axis=axis)

    def publish(self, names: Sequence[str], outputs: Sequence[str]) -> None:
        for name, output in zip(names, outputs, strict=False):
            if output:
                self._add("Identity", (name,), output)

    def _add(self, op: str, inputs: Sequence[str], output: str, **attributes: Any) -> None:
        complete = find_operator(op).complete(attributes, self._name)
        name = self._names.nodes.take(f"{self._name}/{op.lower()}")
        self.nodes.append(Node(name, op, tuple(inputs), (output,), complete))
