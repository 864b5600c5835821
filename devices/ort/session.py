"""Sessions: subgraphs in ONNX Runtime, each loaded once for all slots of a plan."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import replace
from functools import partial
from itertools import repeat
from typing import Any, TypeAlias

from ...graph.core.evaluation import was_evaluated
from ...graph.core.ir import Graph, Node
from ...graph.formats.onnx.writer import to_onnx
from ...graph.operators.bounded_call import BOUNDED_CALL, get_called_node
from ...graph.passes.captured_constants import with_constants_outside
from ...graph.passes.pipeline import Applied, compare_graphs, simplify_inside
from ...graph.passes.rewriting import MayMerge, allow_any
from ...graph.values.dtypes import is_extension
from ...graph.values.tensor import Array, Dim, TensorSpec
from ..errors import DeviceUnavailableError, KernelError, UnsupportedNodeError
from ..memory import View
from .empty import is_empty, remove_empty_inputs
from .engine import PROCESSOR, Engine
from .faster_forms import BEFORE_DILATIONS, is_faster_before
from .support import has_no_results
from .threads import ONE_THREAD, Threads

EMBEDDED_BYTES = 1024
"""Larger constants are shared with ONNX Runtime instead of being copied into the model.

Except for dtypes that numpy lacks: ONNX Runtime does not accept them from numpy.
"""

MAX_NAMED = 3


class Model:
    """A loaded model, for one graph or for several that differ in lengths.

    Attributes
    ----------
    graph : Graph
        Differing lengths are symbols in it, and differing constants are inputs.
    wider : Model or None
        The model for this graph and later ones that this one does not serve.
    widens : bool
        False if ONNX Runtime needs known lengths.
    """

    def __init__(self, graph: Graph, chosen: Any, device: str, engine: Engine = PROCESSOR) -> None:
        self.graph = graph
        self.inference: Any = _load(graph, chosen, device, engine)
        self.wider: Model | None = None
        self.widens = True


class Session:
    """A subgraph in ONNX Runtime.

    Parameters
    ----------
    model_of : callable
        Returns the model of the computed graph.

    Attributes
    ----------
    graph : Graph
        Kept alive, so that no other graph gets its id.
    computed : Graph
        The part for ONNX Runtime: nodes with non-empty results.
    model : Model or None
        None without such nodes.
    """

    def __init__(
        self, graph: Graph, model_of: Callable[[Graph], Model], engine: Engine = PROCESSOR
    ) -> None:
        self.graph = graph
        self.engine = engine
        # ONNX Runtime gets no empty tensors: not all of its kernels accept them.
        graph = _remove_bounds(graph)
        some_are_empty = any(map(is_empty, graph.tensors.values(), repeat(None)))
        computed = _with_results(remove_empty_inputs(graph)) if some_are_empty else graph
        self.computed = with_constants_outside(_in_own_forms(computed, engine), _is_handed_over)
        self.model = model_of(self.computed) if self.computed.nodes else None

    @property
    def inference(self) -> Any:
        """ONNX Runtime's session; None if nothing is computed."""
        return None if self.model is None else self.model.inference

    @property
    def given(self) -> Mapping[str, Array]:
        if self.model is None:
            return {}
        constants = self.computed.constants
        return {name: constants[name] for name in list_fed(self.model.graph, self.computed)}

    def find_for(self, views: Mapping[str, View], constants: Mapping[str, Array]) -> Session | None:
        """Return the session for tensors as long as `views`; None if that takes another model.

        `constants` are those of the subgraph that follow from lengths.
        """
        made = copy(self)
        while made.model is not None and made.model.wider is not None:
            made.model = made.model.wider
        if made.model is None or not made._takes(views):
            return None
        before, known, given = self.graph.constants, self.computed.constants, made.given
        for name in given.keys() | constants.keys():
            old, new = known.get(name), constants.get(name)
            if old is None or new is None:
                return None
            may_differ = name in given and old is before[name]
            if not (is_alike(old, new) if may_differ else is_same_constant(old, new)):
                return None
        made.computed = replace(self.computed, constants={**known, **constants})
        return made

    def _takes(self, views: Mapping[str, View]) -> bool:
        assert self.model is not None
        specs, graph = self.model.graph.tensors, self.computed
        return graph.outputs == self.graph.outputs and all(
            length and (isinstance(dim, str) or dim == length)
            for name in (*graph.inputs, *graph.outputs)
            for dim, length in zip(specs[name].shape or (), views[name].array.shape, strict=True)
        )


def _load(graph: Graph, chosen: Any, device: str, engine: Engine) -> Any:
    # Shared with ONNX Runtime instead of being copied into the model and parsed from it.
    large = {n: a for n, a in graph.constants.items() if _is_handed_over(a)}
    try:
        engine.share(chosen, large)
        model = to_onnx(graph, opset=engine.opset(), outside=large)
        if engine is PROCESSOR and is_faster_before(graph):
            model.opset_import[0].version = BEFORE_DILATIONS
        return engine.load(model, chosen)
    except DeviceUnavailableError:
        raise
    except Exception as error:
        what = f"{engine.runtime} does not take the subgraph: {engine.summarize(error)}"
        raise refusal_error(what, describe(graph, device), _find_refused(graph, engine)) from error


def _find_refused(graph: Graph, engine: Engine) -> Sequence[Node]:
    found = []
    for node in graph.nodes:
        names = {name for name in (*node.inputs, *node.outputs) if name}
        specs = {name: graph.tensors[name] for name in names}
        constants = {name: graph.constants[name] for name in names if name in graph.constants}
        fed = tuple(name for name in dict.fromkeys(node.inputs) if name and name not in constants)
        alone = Graph("alone", fed, tuple(filter(None, node.outputs)), (node,), specs, constants)
        try:
            engine.load(to_onnx(alone, opset=engine.opset()), engine.options())
        except Exception:
            found.append(node)
    return found


def refusal_error(what: str, at: str, nodes: Iterable[Node]) -> UnsupportedNodeError:
    """Return the error with text `what`, `at` a place, for `nodes` that other devices may run."""
    error = UnsupportedNodeError(what, at=at, fix="pin its nodes to another device")
    error.nodes = tuple(node.name for node in nodes)
    return error


def _in_own_forms(graph: Graph, engine: Engine) -> Graph:
    def simplify(nested: Graph, _: MayMerge) -> tuple[Graph, Sequence[Applied]]:
        made = _in_own_forms(nested, engine)
        changed = made.nodes != nested.nodes
        return made, [compare_graphs(_in_own_forms.__name__, nested, made, 0.0)] if changed else []

    return simplify_inside(engine.rewrite(graph), allow_any, simplify)[0]


def _remove_bounds(graph: Graph) -> Graph:
    """Return `graph` with the called nodes in place of bounded calls, which programs handle."""
    calls = [node for node in graph.nodes if node.op == BOUNDED_CALL]
    if not calls:
        return graph
    shapes = {call.outputs[-1] for call in calls}
    return replace(
        graph,
        nodes=tuple(
            get_called_node(node) if node.op == BOUNDED_CALL else node for node in graph.nodes
        ),
        outputs=tuple(name for name in graph.outputs if name not in shapes),
        tensors={name: spec for name, spec in graph.tensors.items() if name not in shapes},
    )


def _with_results(graph: Graph) -> Graph:
    """Return `graph` without nodes that compute nothing, and without their exclusive inputs."""
    # Backwards: readers are decided before their inputs.
    needed, kept = set(graph.outputs), []
    for node in reversed(graph.nodes):
        if needed.isdisjoint(node.outputs) or has_no_results(node, graph.output_specs(node)):
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


_Models: TypeAlias = weakref.WeakValueDictionary[tuple[object, ...], Model]

_of_one_thread: _Models = weakref.WeakValueDictionary()
"""Models that run only on their callers' threads: any number of devices can run them at once."""

_lock = threading.Lock()


class Sessions:
    """The sessions of one device by subgraph, kept while a program uses them.

    Subgraphs that differ only in lengths share a model. Devices with one thread each share models
    too: replicas, and sessions of the same plan.
    """

    def __init__(self, device: str, cores: Sequence[int] = (), engine: Engine = PROCESSOR) -> None:
        self._device = device
        self._cores = cores
        self._engine = engine
        self._models: _Models = weakref.WeakValueDictionary()
        self._sessions: weakref.WeakValueDictionary[tuple[int, Threads], Session] = (
            weakref.WeakValueDictionary()
        )

    def of(self, graph: Graph, threads: Threads) -> Session:
        key = id(graph), threads
        with _lock:
            session = self._sessions.get(key)
            if session is None:
                session = Session(graph, partial(self._model, threads), self._engine)
                self._sessions[key] = session
        return session

    def _model(self, threads: Threads, graph: Graph) -> Model:
        # With its own threads a model runs once at a time: other devices would wait for it.
        models = _of_one_thread if threads == ONE_THREAD else self._models
        key = self._engine, threads, *_identify(graph)
        model = models.get(key)
        if model is None:
            made = models[key] = self._load(graph, threads)
            return made
        # Differing lengths become symbols once; each model refers to the one for more lengths.
        while (shared := widen(model.graph, graph)) is not model.graph:
            if shared is None or not model.widens:
                return self._load(graph, threads)
            try:
                model.wider = model.wider or self._load(shared, threads)
            except KernelError:
                # Some kernels need known lengths: then each length has its own model.
                model.widens = False
            else:
                model = model.wider
        return model

    def _load(self, graph: Graph, threads: Threads) -> Model:
        chosen = self._engine.options(threads, cores=self._cores)
        return Model(graph, chosen, self._device, self._engine)


def _identify(graph: Graph) -> tuple[object, ...]:
    """Return a key of names and weights, equal for graphs like `graph` with other lengths."""
    constants = graph.constants.values()
    # By address: equal weights elsewhere are another model, and comparing them would take longer.
    # Evaluated constants may differ with lengths.
    weights = (
        array.ctypes.data
        for array in constants
        if array.nbytes > MOST_NBYTES and not was_evaluated(array)
    )
    return graph.inputs, tuple(node.name for node in graph.nodes), *weights


def describe(graph: Graph, device: str) -> str:
    nodes = graph.nodes
    named = ", ".join(repr(node.name) for node in nodes[:MAX_NAMED])
    more = f" and {len(nodes) - MAX_NAMED} more" if len(nodes) > MAX_NAMED else ""
    return f"subgraph {graph.name!r} of nodes {named}{more}, on device {device!r}"


MOST_NBYTES = 1024
"""Larger constants of equal shape are weights, and equal only if they are the same memory."""


def widen(model: Graph, graph: Graph) -> Graph | None:
    """Return a model for `graph` and all that `model` serves, if there is one, or None.

    A graph for other shapes differs in lengths, and in constants that follow from them, such as the
    shape for a Reshape. ONNX Runtime accepts open lengths, and any constant as an input. So one
    model serves all, and its prepacked weights exist once. The result is `model` itself if that
    serves the graph already.
    """
    if len(model.nodes) != len(graph.nodes) or model.outputs != graph.outputs:
        return None
    fed = list_fed(model, graph)
    if model.inputs != (*graph.inputs, *fed) or model.nodes != graph.nodes:
        return None
    if model.constants.keys() | set(fed) != graph.constants.keys():
        return None
    pairs = {name: (array, graph.constants[name]) for name, array in model.constants.items()}
    differing = [name for name, pair in pairs.items() if not is_same_constant(*pair)]
    if not all(_may_be_fed(*pairs[name]) for name in differing):
        return None
    names = (*model.inputs, *differing, *model.outputs)
    specs = {name: _find_common(name, model.tensors[name], graph.tensors[name]) for name in names}
    open_specs = {name: spec for name, spec in specs.items() if spec is not None}
    if len(open_specs) < len(specs):
        return None
    if not differing and all(spec == model.tensors[name] for name, spec in open_specs.items()):
        return model
    return replace(
        model,
        inputs=(*model.inputs, *differing),
        tensors={**model.tensors, **open_specs},
        constants={n: a for n, a in model.constants.items() if n not in differing},
    )


def list_fed(model: Graph, graph: Graph) -> tuple[str, ...]:
    return model.inputs[len(graph.inputs) :]


def is_alike(one: Array, other: Array) -> bool:
    return bool(one.dtype == other.dtype and one.shape == other.shape)


def is_same_constant(one: Array, other: Array) -> bool:
    if one is other:
        return True
    if not is_alike(one, other):
        return False
    if one.nbytes > MOST_NBYTES:
        return bool(one.ctypes.data == other.ctypes.data)
    return bool(one.tobytes() == other.tobytes())


def _may_be_fed(one: Array, other: Array) -> bool:
    if is_extension(one.dtype) or not (one.size and other.size):
        return False
    # Short as inputs are, it is not a weight that would be prepacked.
    return bool(one.shape != other.shape or one.nbytes <= MOST_NBYTES)


def _find_common(name: str, one: TensorSpec, other: TensorSpec) -> TensorSpec | None:
    if one == other:
        return one
    if one.dtype != other.dtype or one.shape is None or other.shape is None:
        return None
    if len(one.shape) != len(other.shape):
        return None
    return TensorSpec(one.dtype, tuple(_open_dims(name, one.shape, other.shape)))


def _open_dims(name: str, one: tuple[Dim, ...], other: tuple[Dim, ...]) -> Iterator[Dim]:
    for axis, (length, another) in enumerate(zip(one, other, strict=True)):
        yield length if length == another else f"{name}.{axis}"
