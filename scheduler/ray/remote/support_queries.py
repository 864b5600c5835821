"""Questions to remote devices: whether they run a node, and with which scratch buffers.

A question is a node without its names, so that drivers can cache the answer. Large constants are
not sent; the device sees zeros in their place.
"""

from __future__ import annotations

import hashlib
from collections.abc import Hashable
from typing import Any, NamedTuple

import numpy as np

from ....devices.device import Chaining, Device
from ....graph.core.ir import Node
from ....graph.core.operator import Call
from ....graph.values.tensor import Array, TensorSpec
from ...costs.signature import to_text

SHOWN_BYTES = 4096
"""Larger constants are not sent with a question."""

Fields = tuple[str, tuple[int, ...]]
"""A dtype and a shape."""


class SupportReply(NamedTuple):
    ok: bool
    reason: str
    chains: bool
    """The device fuses it into chains."""
    scratch: tuple[Fields, ...]
    """Dtypes and shapes of its scratch buffers, if the question has specs of its outputs."""


class SupportQuery(NamedTuple):
    op: str
    attributes: dict[str, Any]
    inputs: tuple[TensorSpec | None, ...]
    values: tuple[Array | None, ...]
    """Also None if it is too large."""
    constant: tuple[bool, ...]
    """Which inputs are constants."""
    given: tuple[bool, ...]
    """Whether the node has each output."""
    n_outputs: int
    outputs: tuple[TensorSpec, ...] | None = None
    """Specs of the outputs, if known."""

    @property
    def key(self) -> Hashable:
        """The cache key: all that the answer depends on."""
        return (
            self.op,
            to_text(self.attributes),
            tuple(map(str, self.inputs)),
            tuple(_hash_value(value) for value in self.values),
            self.constant,
            self.given,
            self.n_outputs,
            None if self.outputs is None else tuple(map(str, self.outputs)),
        )

    def answer(self, device: Device) -> SupportReply:
        names = [f"i{index}" if spec else "" for index, spec in enumerate(self.inputs)]
        made = [f"o{index}" if given else "" for index, given in enumerate(self.given)]
        node = Node("asked", self.op, tuple(names), tuple(made), self.attributes)
        values = tuple(map(_substitute_zeros, self.inputs, self.values, self.constant))
        call = Call(self.inputs, values, node.attributes, self.n_outputs)
        support = device.supports(node, call)
        is_static = all(spec is None or spec.is_static for spec in self.inputs)
        is_asked = support.ok and is_static
        chains = is_asked and isinstance(device, Chaining) and device.chains(node, call)
        scratch = () if self.outputs is None else device.scratch(node, call, self.outputs)
        specs = tuple((spec.dtype.name, spec.static_shape) for spec in scratch)
        return SupportReply(*support, chains, specs)


def ask(node: Node, call: Call, outputs: tuple[TensorSpec, ...] | None) -> SupportQuery:
    values = tuple(value if _is_shown(value) else None for value in call.values)
    return SupportQuery(
        node.op,
        dict(node.attributes),
        call.inputs,
        values,
        tuple(value is not None for value in call.values),
        tuple(map(bool, node.outputs)),
        call.n_outputs,
        outputs,
    )


def _is_shown(value: Array | None) -> bool:
    return value is not None and value.nbytes <= SHOWN_BYTES


def _substitute_zeros(spec: TensorSpec | None, value: Array | None, constant: bool) -> Array | None:
    if value is None and constant and spec is not None:
        return np.broadcast_to(np.zeros((), spec.dtype), spec.static_shape)
    return value


def _hash_value(value: Array | None) -> str | None:
    if value is None:
        return None
    return hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()
