"""Programs: a session bound to one slot's buffers, which ONNX Runtime reads and writes in place."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from ...graph.core.ir import Graph, Node
from ...graph.formats.onnx.forms import ELEMENT_TYPE_OF
from ...graph.functions.python import check_within
from ...graph.operators.bounded_call import BOUNDED_CALL, infer_lengths
from ...graph.values.dtypes import TEXT, is_extension
from ...graph.values.errors import PlaitError
from ...graph.values.tensor import Array, shorten_array
from ..donation import Donation
from ..errors import KernelError
from ..event import CancelledWorkError, Event
from ..memory import View
from .engine import ANY_TIME, Turn
from .runtime import extract_message, is_refusal, load_runtime, summarize
from .session import Session, describe, refusal_error

Bind: TypeAlias = Callable[[Array], object]

_NODE = re.compile(r"running \w+ node\. Name:'(.*?)' Status Message: (.*)", re.DOTALL)


class OrtProgram:
    def __init__(self, session: Session, views: Mapping[str, View], device: str) -> None:
        self.graph: Graph = session.graph
        self._device = device
        self._session = session
        inputs, outputs = session.computed.inputs, session.computed.outputs
        bound = (*inputs, *outputs)
        self._views = {name: views[name] for name in bound}  # a binding keeps no memory alive
        self._new_options = load_runtime().RunOptions
        self._options = self._new_options()
        self._run: Any = _skip
        self._binding: Any = None
        if session.inference is None:
            return
        calls = [_Call(node, views) for node in session.graph.nodes if node.op == BOUNDED_CALL]
        if calls or any(view.spec.dtype == TEXT for view in self._views.values()):
            fed = {**{name: views[name] for name in inputs}, **session.given}
            written = {name: views[name].array for name in outputs}
            self._run = partial(_run_unbound, session.inference, fed, written, calls)
            return
        copies, turn = session.engine.copies_inputs, session.engine.turn
        binding = session.inference.io_binding()
        for name in () if copies else inputs:
            binding.bind_input(*_describe_array(name, views[name].array))
        with turn:
            for name, array in session.given.items():
                binding.bind_input(*_describe_array(name, array))
        for name in outputs:
            binding.bind_output(*_describe_array(name, views[name].array))
        # The public method checks before each run, which is unnecessary here.
        inference = getattr(session.inference, "_sess", None)
        inner = getattr(binding, "_iobinding", None)
        if inference is None or inner is None:
            inference, inner = session.inference, binding
        self._run = inference.run_with_iobinding
        self._binding = inner
        moving = {
            name: views[name].donation or (Donation(views[name].array) if copies else None)
            for name in inputs
        }
        if rebound := [
            (_make_binder(binding, name, views[name].array), place)
            for name, place in moving.items()
            if place is not None
        ]:
            self._run = partial(_run_rebound, rebound, self._run)
        given = {name: views[name].donation for name in outputs}
        if gifts := [(name, views[name].array, one) for name, one in given.items() if one]:
            self._run = partial(_run_giving, binding, gifts, self._run)
        if turn is not ANY_TIME:
            self._run = partial(_run_in_turn, turn, self._run)

    @property
    def loaded(self) -> Hashable:
        """The model, which programs for other lengths can share."""
        return self._session.model

    def rebound(self, views: Mapping[str, View]) -> OrtProgram | None:
        """Return the program for `views` of other lengths; None if they need another model."""
        return self.rebound_with(views, {})

    def rebound_with(
        self, views: Mapping[str, View], constants: Mapping[str, Array]
    ) -> OrtProgram | None:
        session = self._session.find_for(views, constants)
        return None if session is None else type(self)(session, views, self._device)

    def __call__(self) -> None:
        """Run the subgraph; raise KernelError if it fails."""
        try:
            self._run(self._binding, self._options)
        except Exception as error:
            raise self._kernel_error(error) from error

    def run(self, event: Event) -> None:
        """Run the subgraph, and stop when `event` is cancelled.

        Raises CancelledWorkError if it was stopped; KernelError if it failed; `at` names the node
        if ONNX Runtime reports it, else the subgraph.
        """
        # New options for each run: a late cancellation must not stop the next run.
        options = self._new_options()
        event.stop_by(partial(setattr, options, "terminate", True))
        try:
            self._run(self._binding, options)
        except Exception as error:
            if event.cancelled:
                raise CancelledWorkError("the work was cancelled while it ran") from error
            raise self._kernel_error(error) from error

    def _find_named(self, text: str) -> list[Node]:
        """Return the nodes that an ONNX Runtime `text` names, by operator or output.

        Its optimizers rename nodes after their outputs.
        """
        words = set(re.findall(r"\w+", text))
        named = {word for name in re.findall("'(.*?)'", text) for word in (name, name[:-6])}
        return [
            node
            for node in self.graph.nodes
            if node.op in words or named.intersection((node.name, *node.outputs))
        ]

    def _kernel_error(self, error: Exception) -> KernelError:
        if isinstance(error, PlaitError):  # of what it yielded
            return KernelError(
                error.what, at=f"{error.at}, on device {self._device!r}", fix=error.fix
            )
        found = _NODE.search(str(error))
        name = None if found is None else found[1]
        concerned = [node for node in self.graph.nodes if node.name == name]
        what, at = summarize(error), describe(self.graph, self._device)
        if found is not None and concerned:
            what, at = (
                extract_message(found[2]) or what,
                f"{concerned[0]}, on device {self._device!r}",
            )
        if not is_refusal(error):
            return KernelError(what, at=at)
        return refusal_error(what, at, concerned or self._find_named(str(error)))


def _skip(*_: object) -> None: ...


class _Call:
    """A call with bounds; its results are written to the beginning of the largest arrays."""

    def __init__(self, node: Node, views: Mapping[str, View]) -> None:
        *self.names, shapes = node.outputs
        self._label = str(node)
        self._dims = infer_lengths(node, [views[name].spec for name in node.inputs])
        self._largest = [views[name].array for name in self.names]
        self._shapes = views[shapes].array

    def store(self, results: Sequence[Array]) -> None:
        """Write `results` and their lengths; raise GraphError if one is too long."""
        arrays, lengths = check_within(self._label, tuple(results), self._largest, self._dims)
        for largest, array in zip(self._largest, arrays, strict=True):
            shorten_array(largest, array.shape)[...] = array
        self._shapes[...] = lengths


def _run_unbound(
    inference: Any,
    inputs: Mapping[str, View | Array],
    outputs: Mapping[str, Array],
    calls: Sequence[_Call],
    _: None,
    options: Any,
) -> None:
    """Run `inference` on `inputs` with `options`, and write `outputs`: they cannot be bound.

    They have text or unknown lengths. `calls` take the results without an array in `outputs`.
    """
    fed = {name: _get_array(one) if isinstance(one, View) else one for name, one in inputs.items()}
    found = dict(zip(outputs, inference.run(list(outputs), fed, options), strict=True))
    for call in calls:
        call.store([found.pop(name) for name in call.names])
    for name, array in found.items():
        outputs[name][...] = array


def _get_array(view: View) -> Array:
    return view.array if view.donation is None else view.donation.array


def _run_in_turn(turn: Turn, run: Any, inner: Any, options: Any) -> None:
    with turn:
        run(inner, options)


def _run_rebound(places: list[tuple[Bind, Donation]], run: Any, inner: Any, options: Any) -> None:
    """Bind inputs that move between runs, or are copied when bound, and call `run(inner, options)`.

    `places` has a function to bind each. Not a method, or programs would be in cycles.
    """
    for bind, place in places:
        bind(place.array)
    run(inner, options)


def _run_giving(
    binding: Any, gifts: list[tuple[str, Array, Donation]], run: Any, inner: Any, options: Any
) -> None:
    """Run with new arrays for outputs that leave the plan, which is cheaper than to copy them.

    `gifts` has the names of these outputs, arrays like them, and their places.
    """
    for name, like, place in gifts:
        place.array, place.is_given = np.empty_like(like), True
        binding.bind_output(*_describe_array(name, place.array))
    run(inner, options)


def _make_binder(binding: Any, name: str, like: Array) -> Bind:
    if is_extension(like.dtype):  # ONNX Runtime does not accept these from numpy
        return lambda array: binding.bind_input(*_describe_array(name, array))
    # Looking up the array's address here takes longer than ONNX Runtime's whole call.
    return partial(binding.bind_cpu_input, name)


def _describe_array(name: str, array: Array) -> tuple[Any, ...]:
    element_type = (
        ELEMENT_TYPE_OF[array.dtype.name] if is_extension(array.dtype) else array.dtype.type
    )
    return name, "cpu", 0, element_type, array.shape, array.ctypes.data
