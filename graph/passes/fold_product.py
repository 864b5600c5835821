"""Scales and shifts behind products of matrices and normalizations, folded into their constants.

What is folded is rounded once, in another place than before: results differ by rounding alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..ir import Graph, Node
from ..tensor import Array
from .affine import DTYPES, affine_of
from .matching import Constant, Match, Pattern, Rule, apply
from .merging import MayMerge, always
from .pipeline import gated
from .rewriting import Rewriter


@gated("MatMul", "Gemm", "BatchNormalization")
def fold_product(graph: Graph, may_merge: MayMerge = always) -> Graph:
    """(x @ w) · a -> x @ (w · a); x @ w + b -> Gemm; BatchNormalization · a + b -> the same one.

    a and b are one number, or one per column, or per channel; w and they are constants of 32 or 64
    bits, and what lies between is read by nothing else and is no output.
    """
    rewriter = Rewriter(graph, may_merge)
    apply(rewriter, _RULES)
    return rewriter.result()


def _scale(rewriter: Rewriter, match: Match) -> Sequence[Node] | None:
    """Scale the columns of w, and what is added to the product."""
    last, product = match.last, match.named["product"]
    given = _per_column(rewriter, product, last, rewriter.constants[match.tensors["a"]])
    if given is None:
        return None
    with np.errstate(all="ignore"):
        factor = given if last.op == "Mul" else 1 / given
    w = rewriter.constants[product.inputs[1]]
    if len(rewriter.readers(product.inputs[1])) > 1:
        return None  # there would be two of them
    across = (
        factor.reshape(-1, 1) if product.attributes.get("transB") and factor.size > 1 else factor
    )
    scaled = [_rounded(w * across, w)]
    if "c" in match.tensors:
        scaled.append(_rounded(rewriter.constants[match.tensors["c"]] * factor, w))
    return _with_constants(rewriter, product, last, ("weights", "bias"), scaled)


def _bias(rewriter: Rewriter, match: Match) -> Sequence[Node] | None:
    """Add to the product of two matrices, or add more to it."""
    last, product = match.last, match.named["product"]
    x, w = product.inputs[0], rewriter.constants[product.inputs[1]]
    given = _per_column(rewriter, product, last, rewriter.constants[match.tensors["b"]])
    if given is None or rewriter.tensors[x].rank != 2:
        return None
    if product.op == "MatMul":
        columns = np.broadcast_to(given, w.shape[1:])
        bias = rewriter.constant(columns.astype(w.dtype), f"{last.name}.bias")
        inputs = (x, product.inputs[1], bias)
        return [rewriter.make("Gemm", inputs, last.outputs, name=last.name)]
    beta = product.attributes["beta"]
    if "c" not in match.tensors or beta == 0:
        return None
    total = _rounded(rewriter.constants[match.tensors["c"]] + given / beta, w)
    return _with_constants(rewriter, product, last, ("weights", "bias"), [w, total])


def _normalized(rewriter: Rewriter, match: Match) -> Sequence[Node] | None:
    """Scale and shift what a BatchNormalization scales by and adds."""
    last, product = match.last, match.named["product"]
    if product.attributes["training_mode"] or len(product.outputs) > 1:
        return None
    view = rewriter.view
    both = affine_of(view, last, rewriter.constants)
    if both is None or affine_of(view, product, rewriter.constants) is None:
        return None
    scale, bias = (rewriter.constants[name] for name in product.inputs[1:3])
    made = [_rounded(scale * both.scale, scale), _rounded(bias * both.scale + both.shift, bias)]
    return _with_constants(rewriter, product, last, ("scale", "bias"), made)


def _per_column(rewriter: Rewriter, product: Node, last: Node, value: Array) -> Array | None:
    """Return a constant as one number or a vector of the columns, None where it is neither."""
    w, y = rewriter.constants[product.inputs[1]], rewriter.tensors[last.outputs[0]]
    before = rewriter.tensors[product.outputs[0]]
    if w.ndim != 2 or w.dtype not in DTYPES or before != y or not np.isfinite(value).all():
        return None
    columns = w.shape[0 if product.attributes.get("transB") else 1]
    if value.size == 1:
        return value.reshape(()).astype(np.float64)
    if value.size == columns == value.shape[-1]:
        return value.reshape(-1).astype(np.float64)
    return None


def _rounded(value: Array, like: Array) -> Array | None:
    """Return numbers in a constant's dtype, None where one is not finite in it."""
    with np.errstate(all="ignore"):
        made = np.asarray(value).astype(like.dtype)
    return made if np.isfinite(made).all() else None


def _with_constants(
    rewriter: Rewriter,
    product: Node,
    last: Node,
    roles: Sequence[str],
    values: Sequence[Array | None],
) -> list[Node] | None:
    """Return the product with other constants in place of those from the second input on."""
    names: list[str] = []
    for role, value in zip(roles, values, strict=False):
        if value is None:
            return None
        names.append(rewriter.constant(value, f"{last.name}.folded_{role}"))
    inputs = (product.inputs[0], *names, *product.inputs[1 + len(names) :])
    attributes: dict[str, Any] = dict(product.attributes)
    return [rewriter.make(product.op, inputs, last.outputs, name=last.name, **attributes)]


_W, _A, _B, _C = (Constant(name) for name in "wabc")
_PRODUCTS = (
    Pattern("MatMul", ("x", _W), name="product"),
    Pattern("Gemm", ("x", _W), name="product"),
    Pattern("Gemm", ("x", _W, _C), name="product"),
)
_BATCH = Pattern(
    "BatchNormalization", ("x", *(Constant(f"p{index}") for index in range(4))), name="product"
)

_RULES = (
    *(Rule("scale of a product", Pattern("Mul", (each, _A)), _scale) for each in _PRODUCTS),
    *(Rule("divisor of a product", Pattern("Div", (each, _A)), _scale) for each in _PRODUCTS),
    *(Rule("bias of a product", Pattern("Add", (each, _B)), _bias) for each in _PRODUCTS),
    *(
        Rule("scale of a normalization", Pattern(op, (_BATCH, _A)), _normalized)
        for op in ("Mul", "Add", "Sub", "Div")
    ),
)
