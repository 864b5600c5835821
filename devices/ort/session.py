"""Sessions: subgraphs in ONNX Runtime's hands, each loaded once for all slots of a plan."""

from __future__ import annotations

import threading
import weakref
from typing import Any

from ...graph.dtypes import is_extension
from ...graph.formats.onnx.writer import to_onnx
from ...graph.ir import Graph
from ...graph.tensor import Array
from ..errors import KernelError
from .masks import with_whole_masks
from .runtime import load, newest_opset, options, runtime, summary

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
    inference : onnxruntime.InferenceSession
    """

    __slots__ = ("__weakref__", "graph", "inference")

    def __init__(self, graph: Graph, threads: int, device: str) -> None:
        self.graph = graph
        large = {n: a for n, a in graph.constants.items() if _is_handed_over(a)}
        chosen = options(threads)
        try:
            values = [runtime().OrtValue.ortvalue_from_numpy(array) for array in large.values()]
            chosen.add_external_initializers(list(large), values)
            model = to_onnx(with_whole_masks(graph), opset=newest_opset(), outside=large)
            self.inference: Any = load(model, chosen)
        except Exception as error:
            raise KernelError(
                f"ONNX Runtime does not take the subgraph: {summary(error)}",
                at=describe(graph, device),
                fix="pin its nodes to another device",
            ) from error


def _is_handed_over(array: Array) -> bool:
    return array.nbytes > EMBEDDED_BYTES and not is_extension(array.dtype)


class Sessions:
    """The sessions of one device, by subgraph; kept for as long as a program uses them."""

    def __init__(self, device: str) -> None:
        self._device = device
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
                session = self._sessions[key] = Session(graph, threads, self._device)
        return session


def describe(graph: Graph, device: str) -> str:
    """Return where an error happened that may be any of a subgraph's nodes."""
    nodes = graph.nodes
    named = ", ".join(repr(node.name) for node in nodes[:MAX_NAMED])
    more = f" and {len(nodes) - MAX_NAMED} more" if len(nodes) > MAX_NAMED else ""
    return f"subgraph {graph.name!r} of nodes {named}{more}, on device {device!r}"
