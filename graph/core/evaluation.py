"""Evaluation of nodes with inputs that are known before a run.

Graphs have no kernels. The layer of devices provides the function that evaluates a node, by an
entry point, independent of imports.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from hashlib import blake2b
from typing import Any, TypeAlias

import numpy as np

from ..values.dtypes import TEXT
from ..values.errors import OperatorError
from ..values.installed import EVALUATORS, load
from ..values.tensor import Array, Shape, TensorSpec
from .infer import asking
from .ir import Node
from .operator import Call
from .traits import DECODES, LENGTHS

FOLDED_BYTES = 1 << 24
"""Limit of results in a plan; larger ones are computed when it is opened."""

SWEPT_BYTES = 1 << 25
"""Limit of the results of one sweep over a graph, unless half of its constants is more: a few nodes
may have any size."""

SMALL_BYTES = 1 << 12
"""Results up to this size always become constants: they may be shapes, on which others depend."""

_Content: TypeAlias = tuple[np.dtype[Any], tuple[int, ...], bytes]

_shared: weakref.WeakValueDictionary[_Content, Array] = weakref.WeakValueDictionary()
"""Results by content, while any graph uses them."""

_by_identity: weakref.WeakValueDictionary[int, Array] = weakref.WeakValueDictionary()
"""These results by id."""

Evaluate: TypeAlias = Callable[[Node, Call, Sequence[TensorSpec]], dict[str, Array] | None]
"""Returns a node's outputs by name, given call and specs; None if it cannot be evaluated."""


@cache
def _find_evaluator() -> Evaluate:
    found: Evaluate = load(EVALUATORS, "devices", OperatorError)
    return found


def is_known_ahead(
    node: Node, tensors: Mapping[str, TensorSpec], values: Mapping[str, Array]
) -> bool:
    """Return whether `values` holds all inputs of `node`, and evaluating it twice is harmless.

    False if it decodes compressed inputs: weights stay as in the model. Text is never evaluated.
    `tensors` are the graph's specs.
    """
    if any(name and tensors[name].dtype == TEXT for name in node.outputs):
        return False
    if LENGTHS in node.operator.traits:
        return tensors[node.inputs[0]].is_static
    if any(name and name not in values for name in node.inputs) or _is_decompression(node, tensors):
        return False
    operator = node.operator
    if operator.draws is not None and operator.draws(node.inputs):
        return False
    return operator.function is None and not operator.effects


def _is_decompression(node: Node, tensors: Mapping[str, TensorSpec]) -> bool:
    if DECODES not in node.operator.traits:
        return False
    held, made = (tensors[name].dtype.itemsize for name in (node.inputs[0], node.outputs[0]))
    return held < made


class Room:
    """The memory left for results of one sweep over a graph.

    It is `share` of the bytes of `constants`, or `SWEPT_BYTES` if that is more.
    """

    def __init__(self, constants: Iterable[Array], share: float = 0.5) -> None:
        self._nbytes = max(SWEPT_BYTES, int(share * sum(value.nbytes for value in constants)))

    def takes(self, specs: Sequence[TensorSpec]) -> bool:
        """Reserve memory for tensors of `specs`; return False if there is too little."""
        nbytes = sum(spec.nbytes for spec in specs)
        if nbytes > max(self._nbytes, SMALL_BYTES):
            return False
        self._nbytes -= nbytes
        return True


def evaluate_node(
    node: Node, call: Call, specs: Sequence[TensorSpec], room: Room | None = None
) -> dict[str, Array] | None:
    """Evaluate `node` on the inputs in `call`, or return None if the outputs are too large.

    The node `is_known_ahead`, and its outputs have `specs`. Without `room`, only the size of each
    node's results is limited. Equal results, such as initial states of graphs for several lengths,
    share an array: devices cache conversions of constants by address.
    """
    if any(not spec.is_static or spec.nbytes > FOLDED_BYTES for spec in specs):
        return None
    if room is not None and not room.takes(specs):
        return None
    with asking(node, call):
        values = _find_evaluator()(node, call, specs)
    return values and {name: _share(value) for name, value in values.items()}


def evaluate_lengths(
    node: Node, specs: Sequence[TensorSpec], lengths: Mapping[str, Shape]
) -> dict[str, Array] | None:
    """Do as `evaluate_node` if `lengths` has all elements of the only output of `node`."""
    (name, *others), spec = node.outputs, specs[0]
    found = lengths.get(name, ("",))
    if others or spec.dtype != np.int64 or not all(type(one) is int for one in found):
        return None
    value = np.array(found, np.int64).reshape(spec.static_shape)
    value.flags.writeable = False
    return {name: _share(value)}


def was_evaluated(array: Array) -> bool:
    """Return whether `array` was evaluated for some lengths, rather than part of the model."""
    return _by_identity.get(id(array)) is array


def _share(value: Array) -> Array:
    content = value.dtype, value.shape, blake2b(value.tobytes(), digest_size=16).digest()
    shared = _shared.setdefault(content, value)
    _by_identity[id(shared)] = shared
    return shared
