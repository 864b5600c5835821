"""Engines: with what ONNX Runtime computes, its own kernels for processors or a provider's."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

from ...graph.ir import Graph, Node
from ...graph.operator import Call
from ...graph.tensor import TensorSpec
from .differences import difference
from .explicit_pads import with_explicit_pads
from .faster_forms import with_faster_forms
from .integer_biases import with_integer_biases
from .masks import with_whole_masks
from .runtime import load, newest_opset, options, summary
from .saturation import without_saturation
from .threads import ONE_THREAD, Threads

KEPT_ANSWERS = 4096
"""About nodes, of each sort."""


Turn: TypeAlias = AbstractContextManager[object]
ANY_TIME: Turn = nullcontext()


@dataclass(frozen=True)
class Engine:
    """ONNX Runtime's own kernels. Equal engines make equal sessions.

    Attributes
    ----------
    kind : str
        Of the devices that compute with it.
    copies_inputs : bool
        True when an input is copied as it is bound, so that each run takes another binding.
    turn : context
        What is held while a model is loaded or run; nothing but where the engine bears one thread.
    """

    kind: str
    turn: ClassVar[Turn] = ANY_TIME
    copies_inputs: ClassVar[bool] = False

    def options(
        self, threads: Threads = ONE_THREAD, *, cores: Sequence[int] = (), optimize: bool = True
    ) -> Any:
        """Return the options of a session on these threads, to be loaded by `load`."""
        return options(threads, cores=cores, optimize=optimize)

    def opset(self) -> int:
        """Return the opset that models are written in."""
        return newest_opset()

    def load(self, model: Any, chosen: Any) -> Any:
        """Return ONNX Runtime's session for a model; whatever it raises goes through."""
        return load(model, chosen)

    def difference(
        self, node: Node, call: Call, outputs: Sequence[TensorSpec | None]
    ) -> str | None:
        """Return what would be computed otherwise than ONNX says; None where nothing is known."""
        return difference(node, call)

    def refusal(self, write: Callable[[bool], Any], like: Hashable) -> str | None:
        """Return why there is no kernel for a node; None if there is one.

        Parameters
        ----------
        write : callable
            Returns a model of the node: as it stands for True, else for any lengths and weights.
        like : hashable
            The same for nodes that differ in numbers alone.
        """
        return self.failure(write(False))

    def failure(self, model: Any, **entries: str) -> str | None:
        """Return why a model is not loaded, with these entries among the options; None if it is."""
        chosen = self.options(optimize=False)
        for name, value in entries.items():
            chosen.add_session_config_entry(f"session.{name}", value)
        try:
            self.load(model, chosen)
        except Exception as error:
            return summary(error)
        return None

    def formed(self, graph: Graph) -> Graph:
        """Return a graph in forms that are computed exactly, and fast; nested graphs apart."""
        for form in _FORMS:
            graph = form(graph)
        return graph


_FORMS = (
    *(with_whole_masks, with_explicit_pads, with_integer_biases, without_saturation),
    with_faster_forms,
)
PROCESSOR = Engine("ort")
