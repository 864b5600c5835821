"""Tensors of a static graph that can share bytes, so that no kernel needs to run."""

from __future__ import annotations

from typing import NamedTuple

from ..values.errors import OperatorError
from .infer import asking
from .ir import Graph, Node
from .operator import Alias, AliasRule


class Run(NamedTuple):
    """Bytes that a node copies unchanged from an input.

    Attributes
    ----------
    source, target : str
        An input and an output.
    start, begin : int
        Their offsets in the source and in the target.
    """

    source: str
    start: int
    target: str
    begin: int
    nbytes: int


def find_views(graph: Graph, node: Node) -> tuple[Alias, ...]:
    """Find the outputs of `node` in `graph` that are a run of an input's bytes, and their offsets.

    Raises OperatorError if the operator's rule names bytes that the input does not have.
    """
    operator = node.operator
    if not operator.views and operator.parts is None:
        return ()
    found = [Alias(*pair) for pair in operator.views]
    found += _ask_rule(graph, node, operator.parts, "parts")
    return tuple(alias for alias in found if node.outputs[alias.output])


def find_joins(graph: Graph, node: Node) -> tuple[Alias, ...]:
    """Find the inputs of `node` in `graph` that are a run of an output's bytes, and their offsets.

    Raises OperatorError if the operator's rule names bytes that the output does not have, or some
    of them twice.
    """
    found = _ask_rule(graph, node, node.operator.joins, "joins")
    ends: dict[int, int] = {}
    for output, index, offset in sorted(found, key=lambda alias: (alias.output, alias.offset)):
        if offset < ends.get(output, 0):
            raise _wrong_rule_error(
                node, "joins", f"inputs overlap in output {output}, at byte {offset}"
            )
        ends[output] = offset + graph.tensors[node.inputs[index]].nbytes
    return found


def _ask_rule(graph: Graph, node: Node, ask: AliasRule | None, rule: str) -> tuple[Alias, ...]:
    """Check and return the aliases that the rule `ask` yields for `node` in `graph`.

    All their bytes must exist: a plan places other tensors next to them, which a wrong rule would
    overwrite.
    """
    if ask is None:
        return ()
    call = graph.call(node)
    with asking(node, call):
        found = tuple(ask(call))
    for output, index, offset in found:
        if not (0 <= output < len(node.outputs) and 0 <= index < len(node.inputs)):
            raise _wrong_rule_error(node, rule, f"there is no output {output} or no input {index}")
        if not (node.outputs[output] and node.inputs[index]):
            continue
        made, read = graph.tensors[node.outputs[output]], graph.tensors[node.inputs[index]]
        part, whole = (made, read) if rule == "parts" else (read, made)
        if offset < 0 or offset + part.nbytes > whole.nbytes:
            run = f"bytes {offset} to {offset + part.nbytes} of {whole}, which has {whole.nbytes}"
            raise _wrong_rule_error(node, rule, f"output {output} and input {index} share {run}")
    return found


def _wrong_rule_error(node: Node, rule: str, what: str) -> OperatorError:
    return OperatorError(
        f"the rule {rule!r} of {node.op} is wrong: {what}", at=str(node), fix="correct the rule"
    )


def find_runs(graph: Graph, node: Node) -> tuple[Run, ...]:
    runs: list[Run] = []
    for output, index, offset in find_views(graph, node):
        source, target = node.inputs[index], node.outputs[output]
        runs.append(Run(source, offset, target, 0, graph.tensors[target].nbytes))
    for output, index, offset in find_joins(graph, node):
        source, target = node.inputs[index], node.outputs[output]
        runs.append(Run(source, 0, target, offset, graph.tensors[source].nbytes))
    return tuple(runs)


def is_copy(node: Node, runs: tuple[Run, ...]) -> bool:
    """Return whether the outputs of `node` consist of these `runs`."""
    return bool(runs) and {run.target for run in runs}.issuperset(filter(None, node.outputs))
