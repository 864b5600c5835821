"""Random graphs with lengths that follow from values, and numpy's results for the same items.

`VaryingNetwork` draws the items first. Each node is computed by numpy for all of them before it is
added, so a node that numpy refuses, or with numbers too large to compare, is left out.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import plait as pl
from plait.graph.values.tensor import Array

FLOATS = ("float32", "float32", "float32", "float64", "float16")
DTYPES = (*FLOATS, "int64", "int32", "int8", "uint8", "bool")
SPECIAL = (np.inf, -np.inf, np.nan, -0.0, 0.0, 1e-40, -6e-8, 1.0)
SPECIAL_SHARE = 0.3
MAX_RANK = 4
MAX_SIZE = 400
MAX_VALUE = 1e4
"""Larger finite numbers are not drawn: an order of sums may make infinity of them, or not."""


@dataclass(frozen=True)
class Drawn:
    """A tensor of the network.

    Attributes
    ----------
    name : str
    values : tuple of Array
        One for each item.
    is_exact : bool
        True if all devices compute the same bits.
    has_lengths : bool
        True if its values follow from lengths: they are others at the largest ones.
    """

    name: Any
    values: tuple[Array, ...]
    is_exact: bool
    has_lengths: bool = False

    @property
    def dims(self) -> tuple[int | str, ...]:
        return tuple(self.name.shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        dtype: np.dtype[Any] = self.values[0].dtype
        return dtype

    @property
    def rank(self) -> int:
        return int(self.values[0].ndim)

    @property
    def is_float(self) -> bool:
        return self.dtype.kind == "f"


class VaryingNetwork:
    """A graph that is being drawn.

    Parameters
    ----------
    rng : random.Random

    Attributes
    ----------
    builder : GraphBuilder
    items : list of dict of str to Array
    wanted : list of dict of str to Array
        The outputs of each item, as numpy computes them.
    exact : dict of str to bool
        The outputs, and whether all devices compute the same values.
    """

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.builder = pl.GraphBuilder("varying")
        self.items: list[dict[str, Array]] = [{} for _ in range(rng.randint(1, 3))]
        self.wanted: list[dict[str, Array]] = [{} for _ in self.items]
        self.exact: dict[str, bool] = {}
        self.drawn: list[Drawn] = []
        self._public: dict[str, str] = {}
        least = rng.choice([0, 1, 1])
        self._fed = {symbol: [rng.randint(least, 7) for _ in self.items] for symbol in "nm"}
        for index in range(rng.randint(1, 3)):
            self._input(f"x{index}")

    def build(self, nodes: int, steps: Sequence[Step]) -> pl.Graph:
        """Add nodes by some of the steps, and outputs; return the graph."""
        for _ in range(4 * nodes):
            if len(self.builder.nodes) >= nodes:
                break
            self.rng.choice(steps)(self, self.one())
        for index in range(self.rng.randint(1, 4)):
            one, name = self.one(), f"y{index}"
            self.builder.output(name, one.name)
            self._public.setdefault(str(one.name), name)
            self.exact[name] = one.is_exact
            for wanted, value in zip(self.wanted, one.values, strict=True):
                wanted[name] = value
        return self.builder.build()

    def lengths(self, graph: pl.Graph) -> dict[str, list[int]]:
        """Return the lengths of each symbol that does not follow from others, by item."""
        found = {}
        for one in self.drawn:
            name = str(one.name)
            spec = graph.tensors.get(name) or graph.tensors.get(self._public.get(name, ""))
            for axis, dim in enumerate(spec.shape or () if spec else ()):
                if isinstance(dim, str) and not _ARITHMETIC.search(dim):
                    found[dim] = [value.shape[axis] for value in one.values]
        return found

    def one(self, fits: Callable[[Drawn], Any] = lambda one: True) -> Drawn:
        """Return a tensor that fits, a new one more likely than an old one."""
        fitting = [one for one in self.drawn if fits(one)]
        return self.rng.choice(fitting[-5:] if self.rng.random() < 0.6 else fitting)

    def array(self, shape: Sequence[int], dtype: str) -> Array:
        """Return random values, special ones among the floats."""
        rng = np.random.default_rng(self.rng.randrange(2**32))
        kind = np.dtype(dtype).kind
        if kind == "b":
            return rng.integers(0, 2, shape).astype(bool)
        if kind in "iu":
            return rng.integers(0 if kind == "u" else -3, 5, shape).astype(dtype)
        values = rng.integers(-4, 5, shape) / rng.choice([1, 2, 3])
        is_special = rng.random(shape) < SPECIAL_SHARE * self.rng.choice([0, 0, 1])
        return np.where(is_special, rng.choice(SPECIAL, shape), values).astype(dtype)

    def _input(self, name: str) -> None:
        rng = self.rng
        dtype = rng.choice(DTYPES)
        lengths: list[int | str] = ["n", "n", "m", 1, 2, 3, 4]
        dims = [rng.choice(lengths) for _ in range(rng.randint(0, MAX_RANK))]
        values = []
        for index, item in enumerate(self.items):
            shape = [d if isinstance(d, int) else self._fed[d][index] for d in dims]
            values.append(self.array(shape, dtype))
            item[name] = _with_odd_strides(values[-1], rng)
        made = self.builder.input(name, dtype, dims)
        self.drawn.append(Drawn(made, tuple(values), True))

    def add(
        self,
        op: str | Callable[..., Any],
        compute: Callable[..., Any],
        *inputs: Any,
        outputs: int = 1,
        exact: bool = True,
        **attributes: Any,
    ) -> Drawn | None:
        """Add a node unless numpy refuses it, or its results are too large; return its output.

        `compute` is called with the arrays of one item, and returns one array or several.
        """
        results = []
        for index in range(len(self.items)):
            given = [one.values[index] if isinstance(one, Drawn) else one for one in inputs]
            with np.errstate(all="ignore"):
                found = compute(*given)
            results.append(found if isinstance(found, tuple) else (found,))
        if not all(map(_is_moderate, (array for found in results for array in found))):
            return None
        names = [one.name if isinstance(one, Drawn) else one for one in inputs]
        made = (
            self.builder.op(op, *names, outputs=outputs, **attributes)
            if isinstance(op, str)
            else self.builder.call(op, *names, **attributes)
        )
        drawn = [one for one in inputs if isinstance(one, Drawn)]
        exact = exact and all(one.is_exact for one in drawn)
        has_lengths = op in ("Shape", "Size") or any(one.has_lengths for one in drawn)
        columns = zip(*(found[:outputs] for found in results), strict=True)
        for name, values in zip(made if outputs > 1 else (made,), columns, strict=True):
            self.drawn.append(Drawn(name, tuple(map(np.asarray, values)), exact, has_lengths))
        return self.drawn[-outputs]


def _is_moderate(array: Array) -> bool:
    array = np.asarray(array)
    if array.size > MAX_SIZE or array.ndim > MAX_RANK:
        return False
    if array.dtype.kind != "f" and array.dtype.itemsize < 8:
        return True
    finite = np.abs(array[np.isfinite(array)].astype("float64"))
    return not finite.size or bool(finite.max() < MAX_VALUE)


def _with_odd_strides(array: Array, rng: random.Random) -> Array:
    """Return the same values, perhaps backwards in memory, in Fortran's order, or with gaps."""
    way = rng.choice(["plain", "plain", "fortran", "backwards", "gaps"])
    if way == "fortran" and array.ndim:
        return np.asfortranarray(array)
    if way == "backwards" and array.ndim:
        return array[::-1].copy()[::-1]
    if way == "gaps" and array.ndim:
        wide = np.repeat(array, 2, -1)
        return wide[..., ::2]
    return array


_ARITHMETIC = re.compile(r"[-+*/(,?]")


Step = Callable[[VaryingNetwork, Drawn], object]
"""Adds a node that reads a tensor, or none if that does not fit."""
