"""Index arithmetic in C, for known shapes and strides."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

INDEX_LIMIT = 1 << 31


def choose_index_type(*sizes: int) -> str:
    """Return the type of indices below all `sizes`; 32 bits are several times faster."""
    return "i32" if max(sizes, default=0) < INDEX_LIMIT else "i64"


def make_strides(shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(prod(shape[axis + 1 :]) for axis in range(len(shape)))


def broadcast_strides(shape: Sequence[int], to: Sequence[int]) -> tuple[int, ...]:
    """Return the strides, in elements, that read an array of `shape` as if it had shape `to`."""
    lead = len(to) - len(shape)
    strides = make_strides(shape)
    return tuple(
        0 if axis < lead or shape[axis - lead] == 1 else strides[axis - lead]
        for axis in range(len(to))
    )


def declare_coordinates(index: str, shape: Sequence[int], prefix: str, c: str) -> list[str]:
    strides = make_strides(shape)
    statements = []
    for axis, (length, stride) in enumerate(zip(shape, strides, strict=True)):
        quotient = index if stride == 1 else f"{index} / {stride}"
        is_outermost = all(n == 1 for n in shape[:axis])
        value = "0" if length == 1 else quotient if is_outermost else f"{quotient} % {length}"
        statements.append(f"const {c} {prefix}{axis} = {value};")
    return statements


def write_offset(strides: Sequence[int], prefix: str, base: int = 0) -> str:
    """Return the expression `base` + Σ strideᵢ · `prefix`i, leaving out zero `strides`."""
    terms = [
        f"{prefix}{axis}" if stride == 1 else f"{prefix}{axis} * ({stride})"
        for axis, stride in enumerate(strides)
        if stride
    ]
    if base or not terms:
        terms.append(str(base))
    return " + ".join(terms)


def merge_axes(shape: Sequence[int], *strides: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """Return `shape`, then each of `strides`, with neighbouring axes merged where possible."""
    lengths: list[int] = []
    kept: list[list[int]] = [[] for _ in strides]
    for axis, length in enumerate(shape):
        if length == 1:
            continue
        fits = bool(lengths) and all(
            own[-1] == given[axis] * length for own, given in zip(kept, strides, strict=True)
        )
        if fits:
            lengths[-1] *= length
            for own, given in zip(kept, strides, strict=True):
                own[-1] = given[axis]
        else:
            lengths.append(length)
            for own, given in zip(kept, strides, strict=True):
                own.append(given[axis])
    return (tuple(lengths), *(tuple(own) for own in kept))
