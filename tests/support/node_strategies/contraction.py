"""Nodes that multiply and add up: matrix products, Einsum, determinants, linear attention."""

from __future__ import annotations

from typing import Any

import numpy as np
from single_node import AnyArray

from .drawing import (
    FINITE,
    FLOATS,
    NUMBERS,
    Draw,
    NodeCase,
    Strategy,
    broadcast_part,
    choose,
    few,
    flag,
    integer,
    ordinary,
    shape,
    size_of,
    special,
    tensor,
)

SUMS = (few, ordinary)


def sizes(array: AnyArray) -> AnyArray:
    return np.abs(array.astype(np.float64))


def matmul_shapes(draw: Draw) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Draw the shapes of factors: vectors, matrices and stacks that are broadcast."""
    batch = shape(draw, high=2, most=3)
    m, k, n = (integer(draw, 0, 5) for _ in range(3))
    a, b = (broadcast_part(draw, batch) for _ in range(2))
    left = (k,) if integer(draw, 0, 4) == 0 else (*a, m, k)
    right = (k,) if integer(draw, 0, 4) == 0 else (*b, k, n)
    return left, right


def matmul(draw: Draw) -> NodeCase:
    dtype, shapes = choose(draw, NUMBERS), matmul_shapes(draw)
    palettes = (*SUMS, special) if dtype in FLOATS else FINITE
    a, b = (tensor(draw, dtype, of, palettes) for of in shapes)
    with np.errstate(all="ignore"):
        return NodeCase([a, b], ulps=8, terms=sizes(a) @ sizes(b))


def gemm(draw: Draw) -> NodeCase:
    dtype = choose(draw, NUMBERS)
    palettes = SUMS if dtype in FLOATS else FINITE
    m, k, n = (integer(draw, 0, 5) for _ in range(3))
    trans_a, trans_b = flag(draw), flag(draw)
    factors = (1.0, 0.0, 2.0, 0.5, -1.25) if dtype in FLOATS else (1.0, 0.0, 2.0, -3.0)
    alpha, beta = choose(draw, factors), choose(draw, factors)
    a = tensor(draw, dtype, (k, m) if trans_a else (m, k), palettes)
    b = tensor(draw, dtype, (n, k) if trans_b else (k, n), palettes)
    c = tensor(draw, dtype, broadcast_part(draw, (m, n)), palettes) if flag(draw) else None
    terms = abs(alpha) * (sizes(a.T if trans_a else a) @ sizes(b.T if trans_b else b))
    if c is not None:
        terms = terms + abs(beta) * sizes(c)
    attributes = {"alpha": alpha, "beta": beta, "transA": trans_a, "transB": trans_b}
    return NodeCase([a, b, c], attributes, ulps=8, terms=terms)


EQUATIONS = (
    *("i->i", "i->", "ij->ji", "ii->i", "ii", "ij->j", "iji->j", "ba"),
    *("i,i->", "i,j->ij", "ij,jk->ik", "ij,jk", "bij,bjk->bik", "ij,ij->ij", "ij,kj->ki"),
    *("i,i,i->i", "ij,jk,kl->il", "b i j , b k j -> b i k", "ij,j->i", ",ij->ij"),
    *("...ij,...jk->...ik", "...i->...", "i...->...i", "...,...->...", "...i,i...->..."),
)


def einsum(draw: Draw) -> NodeCase:
    equation, dtype = choose(draw, EQUATIONS), choose(draw, NUMBERS)
    lengths = {letter: integer(draw, 0 if flag(draw) else 1, 3) for letter in "abijkl"}
    dots = shape(draw, high=2, most=3)
    terms = equation.replace(" ", "").split("->")[0].split(",")
    palettes = (few,)
    inputs = []
    for term in terms:
        before, has_dots, after = term.partition("...")
        middle = dots if has_dots else ()
        of = (*(lengths[c] for c in before), *middle, *(lengths[c] for c in after))
        inputs.append(tensor(draw, dtype, of, palettes))
    bound = float(np.prod([sizes(x).sum() for x in inputs]))
    return NodeCase(inputs, {"equation": equation}, ulps=8, terms=bound)


def determinant(draw: Draw) -> NodeCase:
    n, outer = integer(draw, 0, 4), shape(draw, high=2, most=2)
    x = tensor(draw, choose(draw, FLOATS), (*outer, n, n), SUMS)
    lengths = np.sqrt((x.astype(np.float64) ** 2).sum(-1))
    return NodeCase([x], ulps=32, terms=np.prod(lengths, -1))  # Hadamard's bound


def cofactors(draw: Draw) -> NodeCase:
    case = determinant(draw)
    (x,) = case.inputs
    assert x is not None
    norms = np.sqrt((x.astype(np.float64) ** 2).sum((-2, -1), keepdims=True))
    terms = np.broadcast_to(norms ** max(x.shape[-1] - 1, 0), x.shape)
    return NodeCase([x], ulps=64, terms=terms)


def linear_attention(draw: Draw) -> NodeCase:
    dtype, rule = choose(draw, FLOATS), choose(draw, ("linear", "gated", "delta", "gated_delta"))
    batch, steps = integer(draw, 0, 2), integer(draw, 0, 4)
    keys, depth, width = (integer(draw, 1, 3) for _ in range(3))
    queries = keys * integer(draw, 1, 2)

    def drawn(*of: int) -> AnyArray:
        return np.asarray(tensor(draw, dtype, of, SUMS) / 4).astype(dtype)

    gates: list[Any] = [None, None]
    if "gated" in rule:
        gates[0] = -np.abs(drawn(batch, steps, keys * choose(draw, (1, depth))))
    if "delta" in rule:
        gates[1] = drawn(batch, steps, choose(draw, (1, keys)))
    past = drawn(batch, keys, depth, width) if flag(draw) else None
    attributes: dict[str, Any] = {"q_num_heads": queries, "kv_num_heads": keys}
    attributes |= {"update_rule": rule, "chunk_size": choose(draw, (1, 2, 64))}
    attributes |= {"scale": choose(draw, (0.0, 0.5))}
    rows = [drawn(batch, steps, n) for n in (queries * depth, keys * depth, keys * width)]
    bound = (1 + 4 * size_of(*rows)) ** 2 * (1 + size_of(past, gates[1]))
    terms = bound * 2.0 ** min(steps, 4)
    return NodeCase([*rows, past, *gates], attributes, n_outputs=2, ulps=16, terms=terms)


STRATEGIES: dict[str, Strategy] = {
    "MatMul": matmul,
    "Gemm": gemm,
    "Einsum": einsum,
    "Det": determinant,
    "Cofactors": cofactors,
    "LinearAttention": linear_attention,
}
