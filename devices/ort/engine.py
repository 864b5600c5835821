"""Engines of ONNX Runtime: its own kernels for processors, or a provider's."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

from ...graph.core.ir import Graph, Node
from ...graph.core.operator import Call
from ...graph.values.tensor import Array, TensorSpec
from .accepted_forms import with_explicit_pads, with_whole_masks
from .differences import find_difference
from .faster_forms import with_faster_forms, with_integer_biases
from .runtime import find_newest_opset, load, load_runtime, make_options, summarize
from .saturation import avoid_saturation
from .threads import ONE_THREAD, Threads

KEPT_ANSWERS = 4096
"""Limit of remembered answers about nodes, of each kind."""


Turn: TypeAlias = AbstractContextManager[object]
ANY_TIME: Turn = nullcontext()


@dataclass(frozen=True)
class Engine:
    """ONNX Runtime's own kernels. Equal engines make equal sessions."""

    kind: str
    """The kind of the devices that use it."""
    runtime: ClassVar[str] = "ONNX Runtime"
    takes_text: ClassVar[bool] = True
    spins: ClassVar[bool] = True
    forms: ClassVar[tuple[Callable[[Graph], Graph], ...]] = (
        *(with_whole_masks, with_explicit_pads, with_integer_biases, avoid_saturation),
        with_faster_forms,
    )
    """Exact and fast forms of graphs for its kernels."""
    turn: ClassVar[Turn] = ANY_TIME
    """Held while a model is loaded or run, for engines that allow one thread at a time."""
    copies_inputs: ClassVar[bool] = False
    """True if binding an input copies it, so that each run needs a new binding."""

    def options(
        self, threads: Threads = ONE_THREAD, *, cores: Sequence[int] = (), optimize: bool = True
    ) -> Any:
        return make_options(threads, cores=cores, optimize=optimize)

    def opset(self) -> int:
        return find_newest_opset()

    def find_software(self) -> str:
        """Return the runtime with its version; raises DeviceUnavailableError without it."""
        find_newest_opset()
        return f"onnxruntime {load_runtime().__version__}"

    def share(self, chosen: Any, arrays: Mapping[str, Array]) -> None:
        """Make a model read constants from `arrays` without copies; `chosen` are its options."""
        values = [load_runtime().OrtValue.ortvalue_from_numpy(array) for array in arrays.values()]
        chosen.add_external_initializers(list(arrays), values)

    def summarize(self, error: Exception) -> str:
        return summarize(error)

    def load(self, model: Any, chosen: Any) -> Any:
        """Create ONNX Runtime's session of `model`, with options `chosen`; errors pass through."""
        return load(model, chosen)

    def difference(
        self, node: Node, call: Call, outputs: Sequence[TensorSpec | None]
    ) -> str | None:
        return find_difference(node, call)

    def refusal(self, write: Callable[[bool], Any], like: Hashable) -> str | None:
        """Return why a node lacks a kernel, or None.

        `write` returns a model of the node: exact for True, else for any lengths and weights. Nodes
        that differ only in numbers have an equal `like`.
        """
        return self.failure(write(False))

    def failure(self, model: Any, **entries: str) -> str | None:
        """Return why `model` does not load with `entries` added to the options, or None."""
        chosen = self.options(optimize=False)
        for name, value in entries.items():
            chosen.add_session_config_entry(f"session.{name}", value)
        try:
            self.load(model, chosen)
        except Exception as error:
            return summarize(error)
        return None

    def rewrite(self, graph: Graph) -> Graph:
        for form in self.forms:
            graph = form(graph)
        return graph


PROCESSOR = Engine("ort")
