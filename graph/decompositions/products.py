"""Products of matrices in others."""

from __future__ import annotations

from .rules import DecompositionBuilder, decomposition


@decomposition("Gemm", wide=False)
def gemm(builder: DecompositionBuilder, a: str, b: str, c: str = "") -> str | None:
    """Alpha · A·B + beta · C, in a Transpose, MatMul, Mul and Add."""
    attributes = builder.attributes
    factors = {name: float(attributes[name]) for name in ("alpha", "beta")}
    if builder.spec(a).dtype.kind != "f" and set(factors.values()) != {1.0}:
        return None
    left = builder("Transpose", a, perm=(1, 0)) if attributes["transA"] else a
    right = builder("Transpose", b, perm=(1, 0)) if attributes["transB"] else b
    product = builder("MatMul", left, right)
    if factors["alpha"] != 1:
        product = builder("Mul", product, factors["alpha"])
    if not c:
        return product
    return builder(
        "Add", product, c if factors["beta"] == 1 else builder("Mul", c, factors["beta"])
    )


@decomposition("MatMulInteger")
def matmul_integer(
    builder: DecompositionBuilder, a: str, b: str, a_zero: str = "", b_zero: str = ""
) -> str | None:
    """(a - zero point) · (b - zero point), all as int32."""
    factors = []
    for factor, zero, axis in ((a, a_zero, -1), (b, b_zero, 0)):
        wide = builder.cast(factor, "int32")
        if zero:
            aligned = builder.cast(zero, "int32")
            if axis and builder.spec(zero).rank == 1 and builder.shape(zero) != (1,):
                aligned = builder("Unsqueeze", aligned, (axis,))  # one for each row
            wide = builder("Sub", wide, aligned)
        factors.append(wide)
    return builder("MatMul", *factors)
