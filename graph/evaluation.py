"""Evaluation of nodes where everything they read is known before anything runs.

Graphs know no kernels. The layer of devices offers the function that runs a node ahead, by an
entry point: it is there whatever was imported before.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from hashlib import blake2b
from typing import Any, TypeAlias

import numpy as np

from .dtypes import TEXT
from .errors import OperatorError
from .infer import asking
from .installed import EVALUATORS, load
from .ir import Node
from .operator import Call
from .tensor import Array, TensorSpec
from .traits import DECODES, LENGTHS

FOLDED_BYTES = 1 << 24
"""Results over this size are computed when the plan is opened, not kept in it."""

SWEPT_BYTES = 1 << 25
"""What one sweep over a graph may keep in all, or half of what its constants have if that is more:
a few nodes may come to any number of bytes."""

SMALL_BYTES = 1 << 12
"""Results up to this size always become constants: they may be shapes, which decide others."""

_Content: TypeAlias = tuple[np.dtype[Any], tuple[int, ...], bytes]

_shared: weakref.WeakValueDictionary[_Content, Array] = weakref.WeakValueDictionary()
"""Results by what they hold, as long as some graph has them."""

_by_identity: weakref.WeakValueDictionary[int, Array] = weakref.WeakValueDictionary()
"""The same ones."""

Evaluate: TypeAlias = Callable[[Node, Call, Sequence[TensorSpec]], dict[str, Array] | None]
"""Returns a node's outputs by name, given its call and their specs; None if it cannot run ahead."""


@cache
def _find_evaluator() -> Evaluate:
    found: Evaluate = load(EVALUATORS, "devices", OperatorError)
    return found


def is_known_ahead(
    node: Node, tensors: Mapping[str, TensorSpec], values: Mapping[str, Array]
) -> bool:
    """True when all that a node reads is known, and running it twice is running it once.

    Not where it decodes what is held in fewer bytes: weights stay as the model has them. Text is
    never kept.
    """
    if any(name and tensors[name].dtype == TEXT for name in node.outputs):
        return False
    if LENGTHS in node.operator.traits:
        return tensors[node.inputs[0]].is_static
    if any(name and name not in values for name in node.inputs) or _decodes(node, tensors):
        return False
    operator = node.operator
    if operator.draws is not None and operator.draws(node.inputs):
        return False
    return operator.function is None and not operator.effects


def _decodes(node: Node, tensors: Mapping[str, TensorSpec]) -> bool:
    """True for weights that a model holds in fewer bytes than they would have from then on."""
    if DECODES not in node.operator.traits:
        return False
    held, made = (tensors[name].dtype.itemsize for name in (node.inputs[0], node.outputs[0]))
    return held < made


class Room:
    """How much one sweep over a graph may still keep of what it computes ahead.

    Parameters
    ----------
    constants : iterable of Array
        Those of the graph.
    share : float, default 0.5
        How much of what they take, where that is more than `SWEPT_BYTES`.
    """

    def __init__(self, constants: Iterable[Array], share: float = 0.5) -> None:
        self._nbytes = max(SWEPT_BYTES, int(share * sum(value.nbytes for value in constants)))

    def takes(self, specs: Sequence[TensorSpec]) -> bool:
        """Make room for results; False if that is too much."""
        nbytes = sum(spec.nbytes for spec in specs)
        if nbytes > max(self._nbytes, SMALL_BYTES):
            return False
        self._nbytes -= nbytes
        return True


def evaluated(
    node: Node, call: Call, specs: Sequence[TensorSpec], room: Room | None = None
) -> dict[str, Array] | None:
    """Return what a node writes, of which `is_known_ahead` is true; None if that is too much.

    Without `room`, results may be any number, but none of them large. What is the same for several
    graphs, such as an initial state at every length, is the same array in them: devices make
    something of constants, and know by their memory what they have made it of.
    """
    if any(not spec.is_static or spec.nbytes > FOLDED_BYTES for spec in specs):
        return None
    if room is not None and not room.takes(specs):
        return None
    with asking(node, call):
        values = _find_evaluator()(node, call, specs)
    return values and {name: _share(value) for name, value in values.items()}


def was_evaluated(array: Array) -> bool:
    """Say whether a constant was computed ahead, for some lengths; else the model came with it."""
    return _by_identity.get(id(array)) is array


def _share(value: Array) -> Array:
    """Return the array with this content that there is already, if there is one."""
    content = value.dtype, value.shape, blake2b(value.tobytes(), digest_size=16).digest()
    shared = _shared.setdefault(content, value)
    _by_identity[id(shared)] = shared
    return shared
