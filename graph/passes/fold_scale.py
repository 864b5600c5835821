"""Fold scales and shifts of channels into the weights and bias of an adjacent convolution.

The rounding moves to another place; results differ by that alone.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from ..core.ir import Graph, Node
from ..values.tensor import Array
from .affine import DTYPES, Affine, read_affine
from .pipeline import gate
from .rewriting import MayMerge, allow_any


@gate("Conv", "ConvTranspose")
def fold_scale(graph: Graph, may_merge: MayMerge = allow_any) -> Graph:
    """Fold x·a + b in `graph`, before or after a Conv, into its weights and bias.

    ``x·a + b`` is Mul, Div, Add, Sub by constants of one number or one per channel, or
    BatchNormalization, also after ConvTranspose. The tensor between the two must have no other
    reader and not be an output; weights must be constant, float32 or float64. A shift before a Conv
    with padding stays, since padded zeros must not be shifted; the scale before it is still folded:
    x·a + b, padded, is (x + b/a) padded, times a. `may_merge` can refuse a change.
    """
    return _Folding(graph, may_merge).run()


class _Weights(NamedTuple):
    """The constants of a convolution, in float64 until the end of the pass."""

    w: Array
    bias: Array | None


class _Folding:
    """The state of the pass: nodes kept so far, and constants made."""

    def __init__(self, graph: Graph, may_merge: MayMerge) -> None:
        self._graph = graph
        self._may_merge = may_merge
        self._kept: dict[str, Node] = {}
        self._producers: dict[str, str] = {}
        self._folded: dict[str, _Weights] = {}
        self._made: dict[str, Array] = {}

    def run(self) -> Graph:
        # In order, so that each of several in a row meets a convolution with the ones before it.
        for node in self._graph.nodes:
            affine = read_affine(self._graph, node, self._graph.constants)
            if affine is None or not self._fold_behind(node, affine):
                self._keep(node)
                if node.op == "Conv":
                    # A map between two convolutions has been folded into the first.
                    self._fold_ahead(node)
        return self._result() if self._folded else self._graph

    def _keep(self, node: Node) -> None:
        self._kept[node.name] = node
        self._producers.update({name: node.name for name in node.outputs if name})

    def _fold_behind(self, node: Node, affine: Affine) -> bool:
        conv = self._kept.get(self._producers.get(affine.source, ""))
        if conv is None or conv.op not in ("Conv", "ConvTranspose"):
            return False
        if not self._is_private(affine.source):
            return False
        if not self._may_merge(self._graph, [conv, node], conv):
            return False
        weights = self._weights(conv)
        if weights is None:
            return False
        features = 0
        scale = affine.scale
        if conv.op == "ConvTranspose":
            # A transposed convolution numbers its features within each group.
            if conv.attributes["group"] != 1:
                return False
            features = 1
        per_feature = np.broadcast_to(scale, (weights.w.shape[features],))
        shape = [1] * weights.w.ndim
        shape[features] = -1
        # (W·x + b)·scale + shift: the bias is scaled with the rest.
        bias = affine.shift if weights.bias is None else weights.bias * scale + affine.shift
        bias = np.broadcast_to(bias, per_feature.shape)
        if not self._set(conv, _Weights(weights.w * per_feature.reshape(shape), bias)):
            return False
        # The convolution keeps its name, since pins use it, and writes the output of the scale.
        self._keep(replace(self._kept[conv.name], outputs=node.outputs))
        return True

    def _fold_ahead(self, conv: Node) -> None:
        """Fold x·a + b into `conv`, which reads it."""
        while (node := self._kept.get(self._producers.get(conv.inputs[0], ""))) is not None:
            affine = read_affine(self._graph, node, self._graph.constants)
            if affine is None or not self._is_private(conv.inputs[0]):
                return
            if not self._may_merge(self._graph, [node, conv], conv):
                return
            weights = self._weights(conv)
            if weights is None:
                return
            if _is_padded(conv) and np.any(affine.shift != 0):
                # Padded zeros must not be shifted.
                self._scale_past_shift(conv, node, affine)
                return
            w, bias = weights
            by_input = _expand_per_input(affine, w, conv.attributes["group"])
            # Σ w·(a·x + b) = Σ (w·a)·x + Σ w·b: without padding, the last is a number per feature.
            if np.any(affine.shift != 0):
                shift = np.broadcast_to(affine.shift, (w.shape[1] * conv.attributes["group"],))
                added = _sum_shift(w, shift, conv.attributes["group"])
                bias = added if bias is None else bias + added
            if not self._set(conv, _Weights(w * by_input, bias)):
                return
            del self._kept[node.name]
            conv = replace(self._kept[conv.name], inputs=(affine.source, *conv.inputs[1:]))
            self._keep(conv)

    def _scale_past_shift(self, conv: Node, adds: Node, shift: Affine) -> None:
        """Fold the scale before `shift`: x·a + b, then `conv` -> x + b/a, then another Conv."""
        scales = self._kept.get(self._producers.get(shift.source, ""))
        weights = self._weights(conv)
        # (x·a + b) = (x + b/a)·a, and padded zeros stay zeros.
        if scales is None or weights is None or not shift.only_shifts:
            return
        scale = read_affine(self._graph, scales, self._graph.constants)
        if scale is None or np.any(scale.shift != 0) or not self._is_private(shift.source):
            return
        if not self._may_merge(self._graph, [scales, conv], conv):
            return
        # b/a is not finite if a is 0.
        with np.errstate(all="ignore"):
            less = shift.shift / scale.scale
        if not np.isfinite(less).all():
            return
        by_input = _expand_per_input(scale, weights.w, conv.attributes["group"])
        if not self._set(conv, weights._replace(w=weights.w * by_input)):
            return
        rank = weights.w.ndim
        value = less.reshape(-1, *[1] * (rank - 2)) if less.ndim else less
        name = self._constant(f"{adds.name}.folded_shift", value, conv.inputs[1])
        del self._kept[scales.name]
        self._keep(replace(adds, op="Add", inputs=(scale.source, name)))

    def _constant(self, name: str, value: Array, like: str) -> str:
        while name in self._graph.tensors or name in self._made:
            name += "'"
        self._made[name] = np.ascontiguousarray(value, self._graph.constants[like].dtype)
        self._made[name] = self._made[name].reshape(value.shape)
        self._made[name].flags.writeable = False
        return name

    def _is_private(self, name: str) -> bool:
        graph = self._graph
        declared = name in graph.fetched or name in graph.precisions
        return not declared and len(graph.consumers[name]) == 1

    def _weights(self, conv: Node) -> _Weights | None:
        if conv.name in self._folded:
            return self._folded[conv.name]
        constants = self._graph.constants
        _, w, *bias = conv.inputs
        given = [name for name in (w, *bias) if name]
        if any(name not in constants or constants[name].dtype not in DTYPES for name in given):
            return None
        # Rounded once, at the end.
        w64, *bias64 = (constants[name].astype(np.float64) for name in given)
        return _Weights(w64, bias64[0] if bias64 else None)

    def _set(self, conv: Node, weights: _Weights) -> bool:
        dtype = self._graph.constants[conv.inputs[1]].dtype
        limit = np.finfo(dtype).max
        # An infinite weight would turn zeros into nan.
        bounds = ((one.min(initial=0), one.max(initial=0)) for one in weights if one is not None)
        if any(least < -limit or most > limit for least, most in bounds):
            return False
        self._folded[conv.name] = weights
        return True

    def _result(self) -> Graph:
        nodes: list[Node] = []
        for node in self._kept.values():
            if node.name in self._folded:
                node = replace(node, inputs=(node.inputs[0], *self._names(node)))
            nodes.append(node)
        return self._graph.with_nodes(nodes, self._made)

    def _names(self, conv: Node) -> list[str]:
        """Add the new weights and bias of `conv` as constants; return their names."""
        named = zip(("weights", "bias"), self._folded[conv.name], strict=True)
        return [
            self._constant(f"{conv.name}.folded_{role}", value, conv.inputs[1])
            for role, value in named
            if value is not None
        ]


def _is_padded(conv: Node) -> bool:
    attributes = conv.attributes
    if attributes["auto_pad"] == "VALID":
        return False
    return attributes["auto_pad"] != "NOTSET" or any(attributes["pads"] or ())


def _expand_per_input(affine: Affine, w: Array, group: int) -> Array:
    channels = np.broadcast_to(affine.scale, (w.shape[1] * group,)).reshape(group, 1, w.shape[1])
    by_feature = np.broadcast_to(channels, (group, w.shape[0] // group, w.shape[1]))
    return by_feature.reshape(w.shape[0], w.shape[1], *[1] * (w.ndim - 2))


def _sum_shift(w: Array, shift: Array, group: int) -> Array:
    """Return the sum that `shift`, per channel, adds to each feature of `w` without padding."""
    taps = w.reshape(group, -1, w.shape[1], int(np.prod(w.shape[2:]))).sum(-1)
    total: Array = (taps * shift.reshape(group, 1, -1)).sum(-1).reshape(-1)
    return total
