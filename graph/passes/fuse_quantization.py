"""Fuse quantization that exporters write out in arithmetic."""

from __future__ import annotations

from itertools import product

import numpy as np

from ..core.ir import Node
from .matching import Match, Pattern, matches
from .pipeline import make_pass
from .rewriting import Rewriter

X = "x"  # the quantized tensor, in patterns

_F32 = np.dtype(np.float32)


def _share(name: str, op: str, *inputs: Pattern | float | str, **attributes: object) -> Pattern:
    return Pattern(op, inputs, attributes, name=name, shared=True)


_LOW = _share("low", "Min", _share("least", "ReduceMin", X, keepdims=False), 0.0)
_HIGH = _share("high", "Max", _share("most", "ReduceMax", X, keepdims=False), 0.0)
_SCALE = _share("scale", "Div", _share("range", "Sub", _HIGH, _LOW), 255.0)
_STEPS = _share("steps", "Div", _LOW, _SCALE)
_UP = (_share("up", "Sub", 0.0, _STEPS), _share("up", "Neg", _STEPS))


def _round_zero(up: Pattern, rounds_first: bool) -> Pattern:
    if rounds_first:
        return _share("cut", "Clip", _share("rounded", "Round", up), 0.0, 255.0)
    return _share("rounded", "Round", _share("cut", "Clip", up, 0.0, 255.0))


_DYNAMIC = tuple(
    Pattern("QuantizeLinear", (X, _SCALE, _share("zero", "Cast", _round_zero(*each), to="uint8")))
    for each in product(_UP, (False, True))
)


@make_pass("QuantizeLinear", "MatMulInteger", "ConvInteger")
def fuse_quantization(rewriter: Rewriter) -> None:
    """Fuse ReduceMin, ReduceMax, ..., QuantizeLinear into DynamicQuantizeLinear.

    Cast and Mul become DequantizeLinear if they scale the sums of MatMulInteger or ConvInteger, by
    one scale or one for each column. Nothing else may read the intermediate tensors but scale and
    zero point. An input of zeros gets the scale 1, not 0.
    """
    for node in rewriter.find("QuantizeLinear"):
        found = (match for one in _DYNAMIC for match in matches(rewriter, one, node))
        for match in found:
            if _fuse_dynamic(rewriter, node, match):
                break
    for node in rewriter.find("Mul"):
        for scale, integers in (node.inputs, node.inputs[::-1]):
            if _fuse_scale(rewriter, node, integers, scale):
                break


def _fuse_dynamic(rewriter: Rewriter, node: Node, match: Match) -> bool:
    x, old = match.tensors[X], {one.name: one for one in match.named.values()}
    kept = {match.named["scale"].outputs[0], match.named["zero"].outputs[0], *node.outputs}
    old[node.name] = node
    between = [name for one in old.values() for name in one.outputs if name not in kept]
    closed = all(
        not rewriter.is_output(name) and all(one.name in old for one in rewriter.readers(name))
        for name in between
    )
    if not closed or rewriter.tensors[x].dtype != _F32 or node.attributes["precision"]:
        return False
    outputs = (*node.outputs, *node.inputs[1:])
    made = rewriter.make("DynamicQuantizeLinear", (x,), outputs, name=node.name)
    if not rewriter.may_merge(list(old.values()), made):
        return False
    rewriter.replace(list(old.values()), [made])
    return True


def _fuse_scale(rewriter: Rewriter, node: Node, floats: str, scale: str) -> bool:
    cast = rewriter.producer(floats)
    if cast is None or cast.op != "Cast" or not rewriter.is_private(floats):
        return False
    sums = rewriter.producer(cast.inputs[0])
    if sums is None or sums.op not in ("MatMulInteger", "ConvInteger"):
        return False
    specs = [rewriter.tensors[name] for name in (floats, scale, *node.outputs)]
    if any(spec.dtype != _F32 for spec in specs) or specs[0] != specs[2]:
        return False
    shape, features = specs[1].shape, (specs[0].shape or (None,))[-1]
    by_columns = sums.op == "MatMulInteger" and shape == (features,)
    if shape not in ((), (1,)) and not by_columns:
        return False
    made = rewriter.make(
        "DequantizeLinear", (cast.inputs[0], scale), node.outputs, name=node.name, axis=-1
    )
    if not rewriter.may_merge([cast, node], made):
        return False
    rewriter.replace([cast, node], [made])
    return True
