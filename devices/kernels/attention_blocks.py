"""A block of attention: some queries, with all keys that they see."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from ...graph.operators.attention import CAPPED, MASKED, RAW, WEIGHTS, AttentionWindow
from ...graph.values.tensor import Array, TensorSpec
from .blocks import count_in_block
from .registry import ArrayModule, Step
from .special_values import is_finite
from .sums import reduce_extremum, sum_over

BLOCK = 1 << 17
"""Scores in a block."""

Part: TypeAlias = tuple[slice, ...]
"""Which samples, heads of keys, heads that share one, and queries."""

GRANULE = 64
"""Keys by which the part in use grows, so that steps are rarely bound anew."""

KEYS = 4
"""The axis of keys: scores are (batch, heads of keys, heads that share one, queries, keys)."""


def choose_block(lengths: Sequence[int], keys: int) -> tuple[int, ...]:
    """Return how much of each of `lengths`, the axes of scores but `keys`, is in one block."""
    sizes, each = [], keys
    for length in reversed(lengths):
        sizes.append(count_in_block(BLOCK, each, length))
        each *= sizes[-1]
    return tuple(reversed(sizes))


class Buffers(NamedTuple):
    """Flat arrays for a block's values, of which it uses parts."""

    scores: Array
    query: Array
    result: Array
    line: Array
    hidden: Array
    limits: Array


def declare_buffers(
    lengths: Sequence[int],
    keys: int,
    depth: int,
    width: int,
    dtype: np.dtype[Any],
    *,
    compares: bool,
) -> list[TensorSpec]:
    """Return the specs of the `Buffers` of a block of scores, with axes `lengths` and `keys`.

    Queries have `depth` elements, values `width`; all are of `dtype`. The last two buffers are only
    for a kernel that `compares`, and empty otherwise.
    """
    block = choose_block(lengths, keys)
    rows = prod(block)
    return [
        *(TensorSpec(dtype, (rows * length,)) for length in (keys, depth, width, 1)),
        TensorSpec(bool, (rows * keys * compares,)),
        TensorSpec("int64", (block[0] * block[-1] * compares,)),
    ]


@dataclass(frozen=True, slots=True)
class Attention:
    """The common inputs and outputs of all blocks.

    Attributes
    ----------
    query, y : Array
        (batch, heads of keys, heads that share one, queries, elements).
    key, value : Array
        (batch, heads of keys, 1, keys, elements), in the dtype to compute in.
    mask : Array, optional
        In the shape of scores, possibly with fewer keys: those after its last are hidden.
    used : Array, optional
        The number of visible keys of each sample.
    found : Array, optional
        Receives scores of the stage `wanted`.
    past : int
        The number of keys before the first query.
    """

    xp: ArrayModule
    query: Array
    key: Array
    value: Array
    y: Array
    mask: Array | None
    used: Array | None
    found: Array | None
    wanted: int
    past: int
    window: AttentionWindow
    scale: float
    softcap: float
    buffers: Buffers

    @property
    def hides(self) -> bool:
        """Return whether queries may have no visible keys."""
        given = (self.mask, self.used, *self.window)
        return any(each is not None for each in given)

    def keys_of(self, part: Part, most: int) -> slice:
        """Return the keys, of the first `most`, that `part` sees; all if scores are outputs."""
        keys = self.key.shape[3]
        # Scores that are put out are those of all keys, seen or not.
        if self.found is not None:
            return slice(0, keys)
        left, right = self.window if self.used is None else AttentionWindow(None, None)
        end = min(most, keys if self.mask is None else self.mask.shape[KEYS])
        if right is not None:
            end = min(end, part[3].stop + self.past + right)
        start = 0 if left is None else max(0, part[3].start + self.past - left)
        return slice(min(start, end), max(end, 0)) if start < end else slice(0, 0)

    def steps(self, part: Part) -> Iterator[Step]:
        # Other array modules would have to wait for a device to look at the numbers of keys.
        if self.used is None or self.found is not None or self.xp is not np:
            yield from self._steps(part, self.key.shape[3])
        else:
            yield partial(self._attend_to_used, part, {})

    def _attend_to_used(self, part: Part, bound: dict[int, list[Step]]) -> None:
        """Run the steps of `part` for the keys in use, such as the filled part of a cache.

        `bound` holds the steps for the last number of keys, rounded up to whole granules.
        """
        assert self.used is not None
        most = -(-int(self.used[part[0]].max(initial=0)) // GRANULE) * GRANULE
        if most not in bound:
            bound.clear()
            bound[most] = list(self._steps(part, most))
        for step in bound[most]:
            step()

    def _steps(self, part: Part, most: int) -> Iterator[Step]:
        xp, (batch, shared) = self.xp, part[:2]
        query, y, keys = self.query[part], self.y[part], self.keys_of(part, most)
        # Queries that see nothing give zeros, by ONNX's definition.
        if keys.start == keys.stop:
            yield partial(y.fill, 0)
            return
        key, value = (x[batch, shared, :, keys] for x in (self.key, self.value))
        work = _take_part(self.buffers.query, query.shape)
        scores = _take_part(self.buffers.scores, (*query.shape[:-1], keys.stop - keys.start))
        dtype = scores.dtype.type
        # The queries are scaled, of which there are fewer numbers than scores.
        yield partial(xp.multiply, query, dtype(self.scale), out=work, dtype=work.dtype)
        yield partial(xp.matmul, work, key.swapaxes(3, 4), out=scores)
        yield from self._keep(RAW, part, scores)
        if self.softcap:
            yield partial(xp.divide, scores, dtype(self.softcap), out=scores)
            yield partial(xp.tanh, scores, out=scores)
            yield partial(xp.multiply, scores, dtype(self.softcap), out=scores)
        yield from self._keep(CAPPED, part, scores)
        yield from self._hide(part, keys, scores)
        yield from self._keep(MASKED, part, scores)
        yield from self._weigh(part, scores, value, y)

    def _weigh(self, part: Part, scores: Array, value: Array, y: Array) -> Iterator[Step]:
        xp, dtype = self.xp, scores.dtype
        line = _take_part(self.buffers.line, (*scores.shape[:-1], 1))
        result = _take_part(self.buffers.result, (*scores.shape[:-1], value.shape[-1]))
        yield reduce_extremum(xp, "max", scores, (KEYS,), line)
        if self.hides:  # -∞ minus -∞ is NaN, and so is 0 / 0
            yield partial(xp.maximum, line, np.finfo(dtype).min, out=line)
        yield partial(xp.subtract, scores, line, out=scores)
        yield partial(xp.exp, scores, out=scores)
        yield sum_over(xp, scores, (KEYS,), line)
        if self.hides:  # otherwise it is 1 at least
            yield partial(xp.maximum, line, dtype.type(1), out=line)
        if self.found is not None and self.wanted == WEIGHTS:
            yield partial(xp.divide, scores, line, out=scores)
            yield from self._keep(WEIGHTS, part, scores)
            yield from self._sum_values(scores, value, result)
            yield partial(xp.copyto, y, result, casting="same_kind")
            return
        yield from self._sum_values(scores, value, result)
        # Divide after the product: values have fewer columns than keys.
        yield partial(xp.divide, result, line, out=y if y.dtype == dtype else result)
        if y.dtype != dtype:
            yield partial(xp.copyto, y, result, casting="same_kind")

    def _sum_values(self, weights: Array, value: Array, result: Array) -> Iterator[Step]:
        yield partial(self.xp.matmul, weights, value, out=result)
        # Other array modules would have to wait for a device to look at the sums.
        if self.hides and self.xp is np:
            yield partial(_leave_out_hidden, weights, value, result)

    def _keep(self, stage: int, part: Part, scores: Array) -> Iterator[Step]:
        if self.found is not None and self.wanted == stage:
            yield partial(self.xp.copyto, self.found[part], scores, casting="same_kind")

    def _hide(self, part: Part, keys: slice, scores: Array) -> Iterator[Step]:
        if self.mask is not None:
            yield from self._add_mask(self.mask[part], keys, scores)
        if self.used is None:
            yield from self._hide_outside(part, keys, scores)
        else:
            yield from self._hide_unused(self.used[part[0]], part, keys, scores)

    def _add_mask(self, mask: Array, keys: slice, scores: Array) -> Iterator[Step]:
        xp, seen = self.xp, mask.shape[KEYS] - keys.start
        # Keys after the end of a mask are hidden below, as if it continued with -inf.
        mask, inside = mask[..., keys], scores[..., :seen]
        if mask.dtype == np.bool_:
            hidden = _take_part(self.buffers.hidden, mask.shape)
            yield partial(xp.logical_not, mask, out=hidden)
            yield partial(xp.copyto, inside, -np.inf, where=hidden)
        else:
            yield partial(xp.add, inside, mask, out=inside, casting="same_kind")
        if seen < scores.shape[KEYS]:
            yield partial(scores[..., seen:].fill, -np.inf)

    def _hide_outside(self, part: Part, keys: slice, scores: Array) -> Iterator[Step]:
        left, right = self.window
        first, last = (place + self.past for place in (part[3].start, part[3].stop - 1))
        own = np.arange(first, last + 1).reshape(-1, 1)
        if right is not None:
            # Keys that all queries of the block see need no comparison.
            columns = slice(max(keys.start, first + right + 1), keys.stop)
            yield from self._hide_where("greater", columns, own + right, keys, scores)
        if left is not None:
            columns = slice(keys.start, min(keys.stop, last - left))
            yield from self._hide_where("less", columns, own - left, keys, scores)

    def _hide_unused(self, used: Array, part: Part, keys: slice, scores: Array) -> Iterator[Step]:
        """Yield the steps that hide `scores` of `keys` beyond the `used` ones.

        They also hide keys outside of the windows of `part`.
        """
        xp, (left, right) = self.xp, self.window
        used = used.reshape(-1, 1, 1, 1, 1)
        yield from self._hide_where("greater_equal", keys, used, keys, scores)
        own = np.arange(part[3].start, part[3].stop).reshape(-1, 1) - self.query.shape[3]
        limits = _take_part(self.buffers.limits, (used.shape[0], 1, 1, *own.shape))
        for compare, bound in (("greater", right), ("less", None if left is None else -left)):
            if bound is not None:
                yield partial(xp.add, used, xp.asarray(own + bound), out=limits)
                yield from self._hide_where(compare, keys, limits, keys, scores)

    def _hide_where(
        self, compare: str, columns: slice, limits: Array, keys: slice, scores: Array
    ) -> Iterator[Step]:
        """Yield steps that set `scores` of `keys` to -∞ where `columns` are beyond `limits`.

        `compare` is the ufunc that compares them, such as "greater".
        """
        if columns.start >= columns.stop:
            return
        xp, places = self.xp, self.xp.arange(columns.start, columns.stop)
        hidden = _take_part(self.buffers.hidden, np.broadcast_shapes(limits.shape, places.shape))
        inside = scores[..., columns.start - keys.start : columns.stop - keys.start]
        yield partial(getattr(xp, compare), places, xp.asarray(limits), out=hidden)
        yield partial(xp.copyto, inside, -np.inf, where=hidden)


def _leave_out_hidden(weights: Array, value: Array, result: Array) -> None:
    """Compute `weights` · `value` again, without weights of 0, if the `result` is not finite.

    A hidden value may be infinite, and 0 · inf is NaN.
    """
    if is_finite(result):
        return
    result.fill(0)
    for key in range(value.shape[3]):
        weight = weights[..., key : key + 1]
        result += np.where(weight != 0, weight * value[..., key : key + 1, :], 0)


def _take_part(flat: Array, shape: Sequence[int]) -> Array:
    return flat[: prod(shape)].reshape(tuple(shape))
