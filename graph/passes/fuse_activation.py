"""Fuse activation functions that exporters write out in arithmetic.

One pass over memory replaces three to five. Results differ by rounding alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

from ..core.ir import Node
from .matching import Match, Pattern, Rule, apply
from .pipeline import make_pass
from .rewriting import Rewriter

X = "x"  # the operand, in patterns

_SIX_CELLS = Pattern("Clip", (Pattern("Add", (X, 3.0)), 0.0, 6.0))
_HARD_SIGMOID = Pattern("HardSigmoid", (X,), {"alpha": 1 / 6, "beta": 0.5})
_ERF = Pattern("Add", (Pattern("Erf", (Pattern("Div", (X, math.sqrt(2))),)), 1.0))
_ERF_OF_PRODUCT = Pattern("Add", (Pattern("Erf", (Pattern("Mul", (X, math.sqrt(0.5))),)), 1.0))

_SQUARE = Pattern("Mul", (X, X))
_CUBIC, _ROOT = 0.044715, math.sqrt(2 / math.pi)
_CUBIC_SQUARES = (
    Pattern("Mul", (_SQUARE, _CUBIC)),
    Pattern("Mul", (Pattern("Mul", (X, _CUBIC)), X)),
)
_CUBES = (
    Pattern("Mul", (Pattern("Pow", (X, 3.0)), _CUBIC)),
    Pattern("Mul", (Pattern("Mul", (_SQUARE, X)), _CUBIC)),
    Pattern("Mul", (Pattern("Mul", (X, _CUBIC)), _SQUARE)),
    *(Pattern("Mul", (square, X)) for square in _CUBIC_SQUARES),
)
_FACTORS = tuple(Pattern("Add", (square, 1.0)) for square in _CUBIC_SQUARES)
_INNER = (
    *(Pattern("Mul", (Pattern("Add", (X, cube)), _ROOT)) for cube in _CUBES),
    *(Pattern("Mul", (Pattern("Mul", (X, _ROOT)), factor)) for factor in _FACTORS),
    *(Pattern("Mul", (Pattern("Mul", (X, factor)), _ROOT)) for factor in _FACTORS),
)
"""√(2/π) · (x + 0.044715 · x³), the cube as a power or as products, and with x drawn out."""

_TANHS = tuple(Pattern("Add", (Pattern("Tanh", (inner,)), 1.0)) for inner in _INNER)


def _list_halves(factor: Pattern) -> tuple[Pattern, ...]:
    return (
        Pattern("Mul", (Pattern("Mul", (X, factor)), 0.5)),
        Pattern("Mul", (X, Pattern("Mul", (factor, 0.5)))),
        Pattern("Mul", (Pattern("Mul", (X, 0.5)), factor)),
    )


PATTERNS: tuple[tuple[Pattern, str, dict[str, Any]], ...] = (
    (Pattern("Div", (Pattern("Mul", (X, _SIX_CELLS)), 6.0)), "HardSwish", {}),
    (Pattern("Mul", (Pattern("Mul", (X, _SIX_CELLS)), 1 / 6)), "HardSwish", {}),
    (Pattern("Mul", (X, Pattern("Div", (_SIX_CELLS, 6.0)))), "HardSwish", {}),
    (Pattern("Mul", (X, Pattern("Mul", (_SIX_CELLS, 1 / 6)))), "HardSwish", {}),
    (Pattern("Mul", (X, _HARD_SIGMOID)), "HardSwish", {}),
    (Pattern("Mul", (X, Pattern("Sigmoid", (X,)))), "Swish", {}),
    *((pattern, "Gelu", {}) for erf in (_ERF, _ERF_OF_PRODUCT) for pattern in _list_halves(erf)),
    *(
        (pattern, "Gelu", {"approximate": "tanh"})
        for tanh in _TANHS
        for pattern in _list_halves(tanh)
    ),
)


@make_pass("HardSigmoid", "Sigmoid", "Clip", "Erf", "Tanh")
def fuse_activation(rewriter: Rewriter) -> None:
    """Fuse the formulas of HardSwish, Swish and Gelu into these operators.

    They are x·clip(x + 3, 0, 6)/6, x·sigmoid(x), x·(1 + erf(x/√2))/2, and its approximation by
    tanh, with products in any order. Nothing else may read the intermediate tensors; constants must
    be scalars, and x a float.
    """
    apply(rewriter, _RULES)


def _build(
    op: str, attributes: dict[str, Any], rewriter: Rewriter, match: Match
) -> list[Node] | None:
    last, x = match.last, match.tensors[X]
    spec = rewriter.tensors[x]
    between = (rewriter.tensors[node.outputs[0]] for node in match.nodes)
    if spec.dtype.kind != "f" or any(other != spec for other in between):
        return None
    return [rewriter.make(op, (x,), last.outputs, name=last.name, **attributes)]


_RULES: Sequence[Rule] = tuple(
    Rule(op, pattern, partial(_build, op, attributes)) for pattern, op, attributes in PATTERNS
)
