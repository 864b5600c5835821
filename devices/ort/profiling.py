"""Shares of a program's time for its nodes, from ONNX Runtime's profiler.

A copy of the program is profiled on zeros. ONNX Runtime fuses nodes, and names the result after a
node or a tensor. Nodes without an entry are counted as parts of their reader, otherwise of their
producer, and share its time by the model. Layout conversions belong to no node, so to all.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Container, Iterable
from pathlib import Path
from time import perf_counter

import numpy as np

from ...graph.core.infer import get_cost
from ...graph.core.ir import Graph, Node
from ..kinds import guess
from ..model import name_family
from .engine import PROCESSOR, Engine
from .session import Model, Session
from .threads import Threads

RUNS, FEWEST = 20, 3
BUDGET_S = 0.3
"""After this time only the fewest runs are made."""

_KERNEL = "_kernel_time"
_BLOCKED = "_nchwc"
"""Suffix of a tensor's name if it is computed in blocks of channels."""


def measure_shares(
    graph: Graph, threads: Threads, device: str, engine: Engine = PROCESSOR
) -> dict[str, float]:
    """Return the share of each node in the time of `graph` on `device`; empty if unknown.

    `engine` runs it on `threads`. Raises KernelError if ONNX Runtime refuses the subgraph.
    """
    seconds = measure_seconds(graph, threads, device, engine)
    whole = sum(seconds.values())
    return {name: one / whole for name, one in seconds.items()} if whole else {}


def measure_seconds(
    graph: Graph, threads: Threads, device: str, engine: Engine = PROCESSOR
) -> dict[str, float]:
    """Return the seconds of each node of `graph` on `device`, without layout conversions.

    `engine` runs it on `threads`.
    """
    spent: dict[str, float] = {}
    for name, least in _profile(graph, threads, device, engine).items():
        node = _find_named(graph, name)
        if node is not None:
            spent[node.name] = spent.get(node.name, 0.0) + least
    model, seconds = guess(device), dict.fromkeys((node.name for node in graph.nodes), 0.0)
    for name, members in join_nodes(graph, spent).items():
        weights = [
            model.kernel_s(name_family(graph, node), get_cost(graph, node)) for node in members
        ]
        for node, weight in zip(members, weights, strict=True):
            seconds[node.name] = spent[name] * weight / sum(weights)
    return seconds


def _profile(graph: Graph, threads: Threads, device: str, engine: Engine) -> dict[str, float]:
    """Return the shortest seconds of each profiler entry when `engine` runs `graph` on `threads`.

    `device` names the device in errors.
    """
    with tempfile.TemporaryDirectory() as folder:
        chosen = engine.options(threads)
        chosen.enable_profiling = True
        chosen.profile_file_prefix = str(Path(folder) / "ort")
        loaded = Session(graph, lambda computed: Model(computed, chosen, device, engine))
        if loaded.inference is None:
            return {}
        specs = ((name, graph.tensors[name]) for name in loaded.computed.inputs)
        feeds = {name: np.zeros(spec.static_shape, spec.dtype) for name, spec in specs}
        spent = 0.0
        for run in range(1 + RUNS):
            if run > FEWEST and spent > BUDGET_S:
                break
            start = perf_counter()
            loaded.inference.run(None, feeds)
            spent += perf_counter() - start
        events = json.loads(Path(loaded.inference.end_profiling()).read_text())
    found: dict[str, list[float]] = {}
    for event in events:
        if event.get("cat") == "Node" and event["name"].endswith(_KERNEL):
            found.setdefault(event["name"].removesuffix(_KERNEL), []).append(event["dur"] / 1e6)
    return {name: min(every) for name, every in found.items()}


def join_nodes(graph: Graph, ran: Container[str]) -> dict[str, list[Node]]:
    groups = {node.name: [node] for node in graph.nodes if node.name in ran}
    group_of = dict(groups)
    for readers in (True, False):
        for node in reversed(graph.nodes) if readers else graph.nodes:
            if node.name not in group_of:
                beside = _list_readers(graph, node) if readers else _list_makers(graph, node)
                group = next((group_of[one.name] for one in beside if one.name in group_of), None)
                if group is not None:
                    group.append(node)
                    group_of[node.name] = group
    return groups


def _find_named(graph: Graph, name: str) -> Node | None:
    by_name = {node.name: node for node in graph.nodes}
    found = by_name.get(name) or graph.producers.get(name.removesuffix(_BLOCKED))
    if found is None:
        begins = [one for one in by_name if name.startswith(one)]
        found = by_name[max(begins, key=len)] if begins else None
    return found


def _list_readers(graph: Graph, node: Node) -> Iterable[Node]:
    return (reader for name in node.outputs if name for reader in graph.consumers[name])


def _list_makers(graph: Graph, node: Node) -> Iterable[Node]:
    return (graph.producers[name] for name in node.inputs if name in graph.producers)
