"""Sessions: subgraphs in ONNX Runtime's hands, each loaded once for all slots of a plan."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ...graph.captured_constants import with_constants_outside
from ...graph.dtypes import is_extension
from ...graph.formats.onnx.writer import to_onnx
from ...graph.ir import Graph
from ...graph.tensor import Array
from ..errors import KernelError
from .empty import without_empty_inputs
from .runtime import load, newest_opset, options, runtime, summary
from .support import computes_nothing

EMBEDDED_BYTES = 1024
"""Larger constants are handed over as they are, not copied into the model and out again.

Not those of dtypes that numpy lacks: ONNX Runtime does not take them from numpy.
"""

MAX_NAMED = 3


class Session:
    """A subgraph loaded into ONNX Runtime.

    Attributes
    ----------
    graph : Graph
        Kept, so that no other one gets its identity meanwhile.
    computed : Graph
        What ONNX Runtime has of it: the nodes whose results have elements.
    inference : onnxruntime.InferenceSession or None
        None where there are no such nodes.
    """

    __slots__ = ("__weakref__", "computed", "graph", "inference")

    def __init__(self, graph: Graph, chosen: Any, device: str) -> None:
        self.graph = graph
        self.computed = _with_results(without_empty_inputs(graph))
        self.computed = with_constants_outside(self.computed, _is_handed_over)
        self.inference: Any = None
        if self.computed.nodes:
            self.inference = _load(self.computed, chosen, device)


def _load(graph: Graph, chosen: Any, device: str) -> Any:
    large = {n: a for n, a in graph.constants.items() if _is_handed_over(a)}
    try:
        values = [runtime().OrtValue.ortvalue_from_numpy(array) for array in large.values()]
        chosen.add_external_initializers(list(large), values)
        return load(to_onnx(graph, opset=newest_opset(), outside=large), chosen)
    except Exception as error:
        raise KernelError(
            f"ONNX Runtime does not take the subgraph: {summary(error)}",
            at=describe(graph, device),
            fix="pin its nodes to another device",
        ) from error


def _with_results(graph: Graph) -> Graph:
    """Return a graph without the nodes that have nothing to compute, and what only they need."""
    needed, kept = set(graph.outputs), []
    for node in reversed(graph.nodes):
        if needed.isdisjoint(node.outputs) or computes_nothing(node, graph.output_specs(node)):
            continue
        needed.update(node.inputs)
        kept.append(node)
    if len(kept) == len(graph.nodes):
        return graph
    part = graph.extract(kept[::-1], graph.name)
    written = {name for node in kept for name in node.outputs}
    return replace(part, outputs=tuple(name for name in graph.outputs if name in written))


def _is_handed_over(array: Array) -> bool:
    return array.nbytes > EMBEDDED_BYTES and not is_extension(array.dtype)


class Sessions:
    """The sessions of one device, by subgraph; kept for as long as a program uses them."""

    def __init__(self, device: str, cores: Sequence[int] = ()) -> None:
        self._device = device
        self._cores = cores
        self._lock = threading.Lock()
        self._sessions: weakref.WeakValueDictionary[tuple[int, int], Session] = (
            weakref.WeakValueDictionary()
        )

    def of(self, graph: Graph, threads: int) -> Session:
        """Return the subgraph's session on so many threads, loading it if it is new."""
        key = id(graph), threads
        with self._lock:
            session = self._sessions.get(key)
            if session is None:
                chosen = options(threads, cores=self._cores)
                session = self._sessions[key] = Session(graph, chosen, self._device)
        return session


def describe(graph: Graph, device: str) -> str:
    """Return where an error happened that may be any of a subgraph's nodes."""
    nodes = graph.nodes
    named = ", ".join(repr(node.name) for node in nodes[:MAX_NAMED])
    more = f" and {len(nodes) - MAX_NAMED} more" if len(nodes) > MAX_NAMED else ""
    return f"subgraph {graph.name!r} of nodes {named}{more}, on device {device!r}"
