"""Products of matrices in others."""

from __future__ import annotations

from .rules import Draft, expands


@expands("Gemm", wide=False)
def gemm(draft: Draft, a: str, b: str, c: str = "") -> str | None:
    """Alpha · A·B + beta · C, in a Transpose, MatMul, Mul and Add."""
    attributes = draft.attributes
    factors = {name: float(attributes[name]) for name in ("alpha", "beta")}
    if draft.spec(a).dtype.kind != "f" and set(factors.values()) != {1.0}:
        return None
    left = draft("Transpose", a, perm=(1, 0)) if attributes["transA"] else a
    right = draft("Transpose", b, perm=(1, 0)) if attributes["transB"] else b
    product = draft("MatMul", left, right)
    if factors["alpha"] != 1:
        product = draft("Mul", product, factors["alpha"])
    if not c:
        return product
    return draft("Add", product, c if factors["beta"] == 1 else draft("Mul", c, factors["beta"]))


@expands("MatMulInteger")
def matmul_integer(draft: Draft, a: str, b: str, a_zero: str = "", b_zero: str = "") -> str | None:
    """(a - zero point) · (b - zero point), all as int32."""
    factors = []
    for factor, zero, axis in ((a, a_zero, -1), (b, b_zero, 0)):
        wide = draft.cast(factor, "int32")
        if zero:
            aligned = draft.cast(zero, "int32")
            if axis and draft.spec(zero).rank == 1 and draft.shape(zero) != (1,):
                aligned = draft("Unsqueeze", aligned, (axis,))  # one for each row
            wide = draft("Sub", wide, aligned)
        factors.append(wide)
    return draft("MatMul", *factors)
