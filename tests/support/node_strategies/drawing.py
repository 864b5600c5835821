"""Strategies that those of all families draw from: dtypes, shapes and values.

A strategy is a function of hypothesis's `draw` that returns a valid node: what it cannot make valid
it leaves out by `assume`. Values come from a seed and a palette, so that drawing stays quick.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from hypothesis import strategies as st
from single_node import AnyArray

Draw: TypeAlias = Callable[[st.SearchStrategy[Any]], Any]
Shape: TypeAlias = tuple[int, ...]

FLOATS = ("float16", "float32", "float64")
SIGNED = ("int8", "int16", "int32", "int64")
UNSIGNED = ("uint8", "uint16", "uint32", "uint64")
INTEGERS = (*SIGNED, *UNSIGNED)
NUMBERS = (*FLOATS, *INTEGERS)
REALS = (*NUMBERS, "bool")
ANY = (*REALS, "complex64", "complex128")

SEEDS = st.integers(0, 2**16)
FLAG = st.booleans()


@dataclass(frozen=True, slots=True)
class NodeCase:
    """A node without its operator, and how far its results may be from the definition's.

    Attributes
    ----------
    inputs : sequence of array or None
    attributes : Mapping
    n_outputs : int
    constant : collection of int
        The inputs whose values shape rules may see.
    ulps : float
        How many units in the last place floats may differ by; 0 where they are exact.
    terms : array_like
        The size of what is added up for each element of the first output: what may cancel adds to
        the size that the unit belongs to.
    """

    inputs: Sequence[AnyArray | None]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    n_outputs: int = 1
    constant: Collection[int] = ()
    ulps: float = 0
    terms: Any = 0.0


Strategy: TypeAlias = Callable[[Draw], NodeCase]


def choose(draw: Draw, values: Sequence[Any]) -> Any:
    return draw(st.sampled_from(values))


def flag(draw: Draw) -> bool:
    return bool(draw(FLAG))


def integer(draw: Draw, low: int, high: int) -> int:
    return int(draw(st.integers(low, high)))


def shape(draw: Draw, low: int = 0, high: int = 4, least: int = 0, most: int = 4) -> Shape:
    """Draw a shape of `low` to `high` axes, `least` to `most` long; few axes where all are long."""
    return tuple(draw(st.lists(st.integers(least, most), min_size=low, max_size=high)))


def an_axis(draw: Draw, rank: int) -> int:
    """Draw an axis, counted from either end."""
    return integer(draw, -rank, rank - 1)


def some_axes(draw: Draw, rank: int, least: int = 0) -> list[int]:
    """Draw different axes in any order, each counted from either end."""
    chosen = draw(
        st.lists(st.integers(0, rank - 1), unique=True, min_size=least, max_size=rank)
        if rank
        else st.just([])
    )
    back = draw(FLAG)
    return [axis - rank if back else axis for axis in chosen]


def broadcast_part(draw: Draw, whole: Shape) -> Shape:
    """Draw a shape that is repeated to fill the whole."""
    kept = whole[integer(draw, 0, len(whole)) :]
    return tuple(1 if n and integer(draw, 0, 3) == 0 else n for n in kept)


def rng_of(draw: Draw) -> np.random.Generator:
    return np.random.default_rng(draw(SEEDS))


Palette: TypeAlias = Callable[[np.random.Generator, np.dtype[Any], Shape], AnyArray]


def few(rng: np.random.Generator, dtype: np.dtype[Any], of: Shape) -> AnyArray:
    """Small numbers, many of them equal; halves where there are fractions."""
    low = 0 if dtype.kind == "u" else -3
    values = rng.integers(low, 5, of)
    return (values / 2 if dtype.kind == "f" else values).astype(dtype)


def ordinary(rng: np.random.Generator, dtype: np.dtype[Any], of: Shape) -> AnyArray:
    """Numbers as they occur: about ±3, integers up to 100."""
    if dtype.kind == "f":
        return np.asarray(3 * rng.standard_normal(of)).astype(dtype)
    return np.asarray(rng.integers(0 if dtype.kind == "u" else -100, 101, of)).astype(dtype)


def wide(rng: np.random.Generator, dtype: np.dtype[Any], of: Shape) -> AnyArray:
    """Numbers of all magnitudes: 2⁻⁸ to 2⁸; integers of the whole range, with its ends."""
    if dtype.kind == "f":
        signs = rng.choice([-1.0, 1.0], of)
        return np.asarray(signs * 2 ** rng.uniform(-8, 8, of)).astype(dtype)
    ends = np.iinfo(dtype)
    values = rng.integers(ends.min, ends.max, of, dtype, endpoint=True)
    chosen = rng.choice(np.array([ends.min, ends.max, 0, 1], dtype), of)
    return np.asarray(np.where(rng.random(of) < 0.3, chosen, values)).astype(dtype)


def special(rng: np.random.Generator, dtype: np.dtype[Any], of: Shape) -> AnyArray:
    """Infinities, NaNs, zeros of both signs, and the least and the smallest of floats."""
    if dtype.kind != "f":
        return wide(rng, dtype, of)
    limits = np.finfo(dtype)
    positive = [0.0, 0.5, 1.0, 1.5, np.inf, limits.tiny, limits.smallest_subnormal, 7.0]
    return rng.choice(np.array([*positive, *(-v for v in positive), np.nan], dtype), of)


def extreme(rng: np.random.Generator, dtype: np.dtype[Any], of: Shape) -> AnyArray:
    """The ends of the range among numbers of all magnitudes."""
    if dtype.kind != "f":
        return wide(rng, dtype, of)
    limits = np.finfo(dtype)
    ends = np.array([limits.max, -limits.max, limits.max / 2, 1, np.inf, 0], dtype)
    return np.where(rng.random(of) < 0.5, rng.choice(ends, of), wide(rng, dtype, of))


def masked(rng: np.random.Generator, dtype: np.dtype[Any], of: Shape) -> AnyArray:
    """Numbers as they occur, some of them -∞."""
    values = ordinary(rng, dtype, of)
    if dtype.kind != "f":
        return values
    return np.where(rng.random(of) < 0.4, np.array(-np.inf, dtype), values)


SMALL = (few,)
FINITE = (few, ordinary, wide)
WITH_SPECIAL = (*FINITE, special)
ALL = (*WITH_SPECIAL, extreme)


def tensor(
    draw: Draw, dtype: Any, of: Sequence[int], palettes: Sequence[Palette] = FINITE
) -> AnyArray:
    """Draw an array."""
    made, shape = np.dtype(dtype), tuple(of)
    rng = rng_of(draw)
    if made.kind == "b":
        return np.asarray(rng.integers(0, 2, shape).astype(bool))
    palette = choose(draw, palettes)
    if made.kind == "c":
        part = np.dtype(np.float32 if made.itemsize == 8 else np.float64)
        return np.asarray(palette(rng, part, shape) + 1j * few(rng, part, shape)).astype(made)
    return np.asarray(palette(rng, made, shape))


def size_of(*arrays: AnyArray | None) -> float:
    """Return the largest absolute value that is finite, of all arrays; 0 where there is none."""
    values = [np.abs(a[np.isfinite(a)]).max(initial=0) for a in arrays if a is not None]
    return float(max(values, default=0))


def index_dtype(draw: Draw) -> Any:
    return choose(draw, ("int32", "int64"))


def i64(values: Any) -> AnyArray:
    return np.asarray(values, np.int64)
