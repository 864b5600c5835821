"""Fold scales and shifts after matrix products and normalizations into their constants.

The rounding moves to another place; results differ by that alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..core.ir import Node
from ..values.tensor import Array
from .affine import DTYPES, read_affine
from .matching import Constant, Match, Pattern, Rule, apply
from .pipeline import make_pass
from .rewriting import Rewriter


@make_pass("MatMul", "Gemm", "BatchNormalization")
def fold_product(rewriter: Rewriter) -> None:
    """Fold factors and addends into products: (x @ w) · a -> x @ (w · a), x @ w + b -> Gemm.

    BatchNormalization absorbs them, too. a and b are one number, or one per column, or per channel.
    All are constants of 32 or 64 bits. The tensor between the nodes has no other reader and is not
    an output.
    """
    apply(rewriter, _RULES)


def _scale(rewriter: Rewriter, match: Match) -> Sequence[Node] | None:
    last, product = match.last, match.named["product"]
    given = _align_to_columns(rewriter, product, last, rewriter.constants[match.tensors["a"]])
    if given is None:
        return None
    with np.errstate(all="ignore"):
        factor = given if last.op == "Mul" else 1 / given
    w = rewriter.constants[product.inputs[1]]
    if len(rewriter.readers(product.inputs[1])) > 1:
        return None  # the weights would be stored twice
    across = (
        factor.reshape(-1, 1) if product.attributes.get("transB") and factor.size > 1 else factor
    )
    scaled = [_round_like(w * across, w)]
    if "c" in match.tensors:
        scaled.append(_round_like(rewriter.constants[match.tensors["c"]] * factor, w))
    return _replace_constants(rewriter, product, last, ("weights", "bias"), scaled)


def _add_bias(rewriter: Rewriter, match: Match) -> Sequence[Node] | None:
    last, product = match.last, match.named["product"]
    x, w = product.inputs[0], rewriter.constants[product.inputs[1]]
    given = _align_to_columns(rewriter, product, last, rewriter.constants[match.tensors["b"]])
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
    total = _round_like(rewriter.constants[match.tensors["c"]] + given / beta, w)
    return _replace_constants(rewriter, product, last, ("weights", "bias"), [w, total])


def _scale_normalization(rewriter: Rewriter, match: Match) -> Sequence[Node] | None:
    last, product = match.last, match.named["product"]
    if product.attributes["training_mode"] or len(product.outputs) > 1:
        return None
    view = rewriter.view
    both = read_affine(view, last, rewriter.constants)
    if both is None or read_affine(view, product, rewriter.constants) is None:
        return None
    scale, bias = (rewriter.constants[name] for name in product.inputs[1:3])
    made = [
        _round_like(scale * both.scale, scale),
        _round_like(bias * both.scale + both.shift, bias),
    ]
    return _replace_constants(rewriter, product, last, ("scale", "bias"), made)


def _align_to_columns(rewriter: Rewriter, product: Node, last: Node, value: Array) -> Array | None:
    """Return `value` as a float64 scalar or one per column of `product`; None unless it fits."""
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


def _round_like(value: Array, like: Array) -> Array | None:
    with np.errstate(all="ignore"):
        made = np.asarray(value).astype(like.dtype)
    return made if np.isfinite(made).all() else None


def _replace_constants(
    rewriter: Rewriter,
    product: Node,
    last: Node,
    roles: Sequence[str],
    values: Sequence[Array | None],
) -> list[Node] | None:
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
    *(Rule("bias of a product", Pattern("Add", (each, _B)), _add_bias) for each in _PRODUCTS),
    *(
        Rule("scale of a normalization", Pattern(op, (_BATCH, _A)), _scale_normalization)
        for op in ("Mul", "Add", "Sub", "Div")
    ),
)
