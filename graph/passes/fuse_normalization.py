"""Fuse normalization, and Softmax, that exporters write out in arithmetic.

One or two passes over memory replace seven to ten. Results differ by rounding alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from ..core.ir import Node
from ..values.tensor import Array, TensorSpec
from .affine import DTYPES
from .matching import Constant, Match, Operand, Pattern, Rule, apply
from .pipeline import make_pass
from .rewriting import Rewriter

_KEPT = {"keepdims": True}
_AXES = Constant("axes")


@make_pass("ReduceMean", "LayerNormalization", "RMSNormalization")
def fuse_normalization(rewriter: Rewriter) -> None:
    """Fuse the formulas of LayerNormalization and RMSNormalization into these operators.

    They are (x - mean) / √(variance + ε) · scale + bias and x / √(mean x² + ε), as PyTorch,
    TensorFlow and Keras write them: squares by Pow or Mul, roots by Sqrt, with Div or the
    reciprocal. The axes must be the last ones, of known lengths; scale and bias constants.
    """
    apply(rewriter, _RULES)


def _list_quotients(x: Operand) -> tuple[Pattern, ...]:
    found: list[Pattern] = []
    for square in (Pattern("Mul", (x, x)), Pattern("Pow", (x, 2.0))):
        mean = Pattern("ReduceMean", (square, _AXES), _KEPT)
        root = Pattern("Sqrt", (Pattern("Add", (mean, Constant("epsilon", _is_single))),))
        found += [
            Pattern("Div", (x, root)),
            Pattern("Mul", (x, Pattern("Reciprocal", (root,)))),
            Pattern("Mul", (x, Pattern("Div", (1.0, root)))),
        ]
    return tuple(found)


def _is_single(value: Array) -> bool:
    return bool(value.size == 1 and value.dtype.kind == "f" and 0 <= value.item() < np.inf)


def _normalize(op: str, rewriter: Rewriter, match: Match) -> Sequence[Node] | None:
    last, x = match.last, match.tensors["x"]
    spec = rewriter.tensors[x]
    axis = _find_first_axis(spec, rewriter.constants[match.tensors["axes"]])
    if axis is None or spec.dtype not in DTYPES or rewriter.tensors[last.outputs[0]] != spec:
        return None
    lengths = tuple(dim for dim in (spec.shape or ())[axis:] if isinstance(dim, int))
    ones = rewriter.constant(np.ones(lengths, spec.dtype), f"{last.name}.scale")
    epsilon = rewriter.constants[match.tensors["epsilon"]].item()
    return [rewriter.make(op, (x, ones), last.outputs, name=last.name, axis=axis, epsilon=epsilon)]


def _find_first_axis(spec: TensorSpec, axes: Array) -> int | None:
    """Return the first of `axes` if they are the last axes of `spec`, of known lengths, or None."""
    if spec.shape is None or not axes.size:
        return None
    rank = len(spec.shape)
    listed = sorted(int(axis) % rank for axis in axes.reshape(-1))
    first = listed[0]
    if listed != list(range(first, rank)):
        return None
    return first if all(isinstance(dim, int) for dim in spec.shape[first:]) else None


def _merge_scale(rewriter: Rewriter, match: Match) -> Sequence[Node] | None:
    last, normalized = match.last, match.named["normalized"]
    old, given = (rewriter.constants[match.tensors[name]] for name in ("old", "scale"))
    if not _fits(rewriter, normalized, last, given):
        return None
    scale = rewriter.constant(np.multiply(old, given, dtype=old.dtype), f"{last.name}.scale")
    return [_with_inputs(rewriter, normalized, last, (normalized.inputs[0], scale))]


def _merge_bias(rewriter: Rewriter, match: Match) -> Sequence[Node] | None:
    last, normalized = match.last, match.named["normalized"]
    if not _fits(rewriter, normalized, last, rewriter.constants[match.tensors["bias"]]):
        return None
    return [_with_inputs(rewriter, normalized, last, (*normalized.inputs, match.tensors["bias"]))]


def _fits(rewriter: Rewriter, normalized: Node, last: Node, value: Array) -> bool:
    x, y = (rewriter.tensors[name] for name in (normalized.inputs[0], last.outputs[0]))
    if x.shape is None or x != y or len(normalized.outputs) > 1 or value.dtype != x.dtype:
        return False
    axes = x.shape[normalized.attributes["axis"] % len(x.shape) :]
    if value.ndim > len(axes):
        return False
    tail = axes[len(axes) - value.ndim :]
    return all(n in (1, dim) for n, dim in zip(value.shape, tail, strict=True))


def _with_inputs(rewriter: Rewriter, normalized: Node, last: Node, inputs: tuple[str, ...]) -> Node:
    attributes = dict(normalized.attributes)
    return rewriter.make(normalized.op, inputs, last.outputs, name=last.name, **attributes)


def _center() -> Pattern:
    return Pattern("Sub", ("x", Pattern("ReduceMean", ("x", _AXES), _KEPT)))


def _match_layer(*more: Operand) -> Pattern:
    return Pattern("LayerNormalization", ("x", Constant("old"), *more), name="normalized")


_OF_RMS = Pattern("RMSNormalization", ("x", Constant("old")), name="normalized")
_Build = Callable[[Rewriter, Match], Sequence[Node] | None]
_LAYER: _Build = partial(_normalize, "LayerNormalization")
_RMS: _Build = partial(_normalize, "RMSNormalization")

_RULES = (
    *(Rule("layer normalization", pattern, _LAYER) for pattern in _list_quotients(_center())),
    *(Rule("RMS normalization", pattern, _RMS) for pattern in _list_quotients("x")),
    Rule("scale of a layer", Pattern("Mul", (_match_layer(), Constant("scale"))), _merge_scale),
    Rule("scale of RMS", Pattern("Mul", (_OF_RMS, Constant("scale"))), _merge_scale),
    Rule("bias of a layer", Pattern("Add", (_match_layer(), Constant("bias"))), _merge_bias),
)

_AXIS = Constant("axes", lambda axes: axes.size == 1)
_LARGEST = Pattern("ReduceMax", ("x", _AXIS), _KEPT)
_EXPONENTIAL = Pattern("Exp", (Pattern("Sub", ("x", _LARGEST)),))
_SUM = Pattern("ReduceSum", (_EXPONENTIAL, _AXIS), _KEPT)


@make_pass("Exp")
def fuse_softmax(rewriter: Rewriter) -> None:
    """Fuse exp(x - max x) / sum(exp(x - max x)) into Softmax(x), along one axis.

    A formula without the maximum stays: where exp overflows, the results differ.
    """
    apply(rewriter, _SOFTMAX_RULES)


def _make_softmax(rewriter: Rewriter, match: Match) -> Sequence[Node] | None:
    last, x = match.last, match.tensors["x"]
    spec = rewriter.tensors[x]
    if spec.dtype not in DTYPES or rewriter.tensors[last.outputs[0]] != spec:
        return None
    axis = int(rewriter.constants[match.tensors["axes"]].item())
    return [rewriter.make("Softmax", (x,), last.outputs, name=last.name, axis=axis)]


_SOFTMAX_RULES = (
    Rule("softmax", Pattern("Div", (_EXPONENTIAL, _SUM)), _make_softmax),
    Rule("softmax", Pattern("Mul", (_EXPONENTIAL, Pattern("Reciprocal", (_SUM,)))), _make_softmax),
)
