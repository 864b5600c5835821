"""Fuse Softmax that exporters write out in arithmetic."""

from __future__ import annotations

from collections.abc import Sequence

from ..core.ir import Node
from .affine import DTYPES
from .matching import Constant, Match, Pattern, Rule, apply
from .pipeline import make_pass
from .rewriting import Rewriter

_KEPT = {"keepdims": True}
_AXES = Constant("axes", lambda axes: axes.size == 1)
_LARGEST = Pattern("ReduceMax", ("x", _AXES), _KEPT)
_EXPONENTIAL = Pattern("Exp", (Pattern("Sub", ("x", _LARGEST)),))
_SUM = Pattern("ReduceSum", (_EXPONENTIAL, _AXES), _KEPT)


@make_pass("Exp")
def fuse_softmax(rewriter: Rewriter) -> None:
    """Fuse exp(x - max x) / sum(exp(x - max x)) into Softmax(x), along one axis.

    A formula without the maximum stays: where exp overflows, the results differ.
    """
    apply(rewriter, _RULES)


def _build(rewriter: Rewriter, match: Match) -> Sequence[Node] | None:
    last, x = match.last, match.tensors["x"]
    spec = rewriter.tensors[x]
    if spec.dtype not in DTYPES or rewriter.tensors[last.outputs[0]] != spec:
        return None
    axis = int(rewriter.constants[match.tensors["axes"]].item())
    return [rewriter.make("Softmax", (x,), last.outputs, name=last.name, axis=axis)]


_RULES = (
    Rule("softmax", Pattern("Div", (_EXPONENTIAL, _SUM)), _build),
    Rule("softmax", Pattern("Mul", (_EXPONENTIAL, Pattern("Reciprocal", (_SUM,)))), _build),
)
