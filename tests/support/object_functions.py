"""Functions over Python objects, where a worker can import them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import plait as pl
from plait.graph.values.tensor import Array

OBJECT = pl.TensorSpec("object", ())
OBJECTS = pl.TensorSpec("object", ("rows",))


@dataclass
class Box:
    """A result as detectors return it, with an array inside."""

    corner: tuple[int, int]
    pixels: Array


@pl.operator(OBJECT, inputs=[OBJECT])
def wrap(value: Any) -> Any:
    return {"value": value}


@pl.operator(OBJECT, inputs=[OBJECT])
def pair(value: Any) -> Any:
    return value, value


@pl.operator(OBJECT, inputs=[OBJECT])
def listed(value: Any) -> Any:
    return [value, None]


@pl.operator(OBJECT, inputs=[OBJECT, OBJECT])
def join(a: Any, b: Any) -> Any:
    return a, b


@pl.operator((OBJECT, pl.TensorSpec("int64", ())), inputs=[OBJECT])
def measure(value: Any) -> Any:
    return value, np.int64(len(repr(value)))


@pl.operator(OBJECTS, inputs=[OBJECT])
def split(count: Any) -> Any:
    return [Box((n, n + 1), np.full((n + 1, 2), n)) for n in range(count)]


@pl.operator(OBJECTS, inputs=[OBJECT])
def split_one_by_one(count: Any) -> Iterator[Any]:
    yield from ((n, [n]) for n in range(count))


@pl.operator(OBJECT, inputs=[OBJECTS])
def gather(boxes: Any) -> Any:
    assert isinstance(boxes, list)
    return boxes


@pl.operator(OBJECT, inputs=[OBJECT])
def return_lambda(_: Any) -> Any:
    return lambda: 0


class Unmade:
    """An object that pickles and cannot be made from its pickle."""

    def __reduce__(self) -> Any:
        return int, ("not a number",)


@pl.operator(OBJECT, inputs=[OBJECT])
def return_unmade(_: Any) -> Any:
    return Unmade()
