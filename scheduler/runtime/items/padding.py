"""Items of several lengths in one batch: filled up with zeros, results cut back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ....graph.core.ir import Graph
from ....graph.values.dims import UNKNOWN, evaluate_dim, find_length_axis
from ....graph.values.tensor import Array, Dim, Shape
from ...errors import FeedError, SessionError
from ...plans.plan import Bounds

LEAST = 8
"""The shortest length that items are filled up to; longer ones are powers of two."""


class PaddedFeeds(dict[str, Array]):
    """The arrays of an item after padding.

    `length` is the length before.
    """

    length = 0


@dataclass(frozen=True, slots=True)
class Padding:
    """An axis that items fill up."""

    symbol: str
    inputs: Mapping[str, int]
    """The axis of that length in each input that has it."""
    outputs: Mapping[str, tuple[int, Dim]]
    """In each output that has one, the axis with a length that follows from it, and that length."""
    most: int | None
    """The bound of the symbol."""

    def fill(self, arrays: Mapping[str, Array], target: int | None = None) -> PaddedFeeds:
        """Pad an item's `arrays` with zeros up to length `target`, by default a power of two.

        Raises FeedError if inputs have different lengths there, or the length exceeds its bound.
        """
        lengths = {name: arrays[name].shape[axis] for name, axis in self.inputs.items()}
        length = next(iter(lengths.values()))
        if any(one != length for one in lengths.values()):
            listed = ", ".join(f"{name!r}: {one}" for name, one in lengths.items())
            raise FeedError(
                f"an item has different lengths of {self.symbol!r}: {listed}",
                fix="feed inputs of one length, such as tokens with their mask",
            )
        target = target or max(LEAST, 1 << max(length - 1, 0).bit_length())
        if self.most is not None:
            target = max(length, min(target, self.most))
        found = PaddedFeeds(arrays)
        found.length = length
        for name, axis in self.inputs.items():
            widths = [(0, 0)] * arrays[name].ndim
            widths[axis] = (0, target - length)
            found[name] = np.pad(arrays[name], widths)
        return found

    def cut(self, name: str, array: Array, length: int) -> Array:
        """Return a view of `array`, the output `name`, that is cut to the item's `length`."""
        if name not in self.outputs:
            return array
        axis, dim = self.outputs[name]
        return array[(slice(None),) * axis + (slice(evaluate_dim(dim, {self.symbol: length})),)]


def make_row_padding(graph: Graph, axes: Sequence[int], bounds: Bounds) -> Padding:
    """Return the padding of rows of `graph` within `bounds`; `axes` has one per input or output."""
    found = dict(zip((*graph.inputs, *graph.outputs), axes, strict=True))
    inputs = {name: found[name] for name in graph.inputs if found[name]}
    shapes = {name: graph.tensors[name].shape or () for name in graph.outputs if found[name]}
    outputs = {name: (found[name], shape[found[name]]) for name, shape in shapes.items()}
    name, axis = next(iter(inputs.items()))
    length = (graph.tensors[name].shape or ())[axis]
    most = length if isinstance(length, int) else bounds.get(length, (0, None))[1]
    return Padding(str(length), inputs, outputs, most)


def make_padding(graph: Graph, symbol: str, bounds: Bounds) -> Padding:
    """Return the padding along `symbol` in the shapes of `graph`, up to its maximum in `bounds`.

    Raises SessionError if no input has that symbol beside its first axis.
    """
    shapes = {name: graph.tensors[name].shape or () for name in (*graph.inputs, *graph.outputs)}
    fed = {name: shapes[name] for name in graph.inputs}
    inputs = {name: shape.index(symbol, 1) for name, shape in fed.items() if symbol in shape[1:]}
    if not inputs or symbol == UNKNOWN:
        known = sorted(
            {d for shape in fed.values() for d in shape[1:] if isinstance(d, str)} - {UNKNOWN}
        )
        raise SessionError(
            f"pad is {symbol!r}, and the other axes of the inputs have other lengths",
            at=f"graph {graph.name!r}",
            fix=f"name one of {', '.join(known)}"
            if known
            else "give that length a name in the graph's inputs: ('rows', 'tokens')",
        )
    outputs = find_lengths({name: shapes[name] for name in graph.outputs}, symbol)
    return Padding(symbol, inputs, outputs, bounds.get(symbol, (0, None))[1])


def find_lengths(shapes: Mapping[str, Shape], symbol: str) -> dict[str, tuple[int, Dim]]:
    axes = {name: find_length_axis(shape, symbol) for name, shape in shapes.items()}
    return {name: (axis, shapes[name][axis]) for name, axis in axes.items() if axis}
