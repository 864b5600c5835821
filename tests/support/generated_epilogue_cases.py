"""Cases of products that elementwise nodes go on with: see `generated_cases`.

Each chain of `chains` becomes one kernel, or two where the depth of a product is split.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import plait as pl
from generated_cases import Feeds, case, numbers
from generated_network_cases import whole
from plait.graph.core.ir import Graph
from plait.graph.values.tensor import Array


class Chains:
    """A graph of chains that have nothing to do with each other, and what they are fed."""

    def __init__(self, name: str) -> None:
        self.builder = pl.GraphBuilder(name)
        self.feeds: dict[str, Array] = {}

    def fed(self, value: Array) -> str:
        """Return the name of a new input of that value."""
        name = f"x{len(self.feeds)}"
        self.feeds[name] = value
        return self.builder.input(name, value.dtype, value.shape)

    def op(self, op: str, *inputs: Any, **attributes: Any) -> str:
        """Add a node of one output; arrays are fed."""
        names = [self.fed(each) if isinstance(each, np.ndarray) else each for each in inputs]
        made = self.builder.op(op, *names, **attributes)
        assert isinstance(made, str)
        return made

    def end(self, name: str) -> None:
        """Have a tensor as an output."""
        self.builder.output(f"{name}_out", name)

    def build(self) -> tuple[Graph, Feeds]:
        """Return the graph and its feeds."""
        return self.builder.build(), self.feeds


def f16(*shape: int, seed: int = 1) -> Array:
    """Return halves around zero."""
    return numbers(*shape, dtype="float16", seed=seed)


@case
def finished_matrices() -> tuple[Graph, Feeds]:
    """Products by tiles that are not full, of a split depth, in a stack, of vectors, of parts."""
    c = Chains("finished_matrices")
    tiles = c.op("MatMul", numbers(9, 21), numbers(21, 13, seed=2))
    c.end(c.op("Relu", c.op("Add", tiles, numbers(13, seed=3))))
    split = c.op("MatMul", numbers(8, 256), numbers(256, 7, seed=4))
    c.end(c.op("Sub", c.op("Tanh", split), numbers(8, 1, seed=5)))
    stack = c.op("MatMul", numbers(2, 3, 5), numbers(2, 5, 4, seed=6))
    c.end(c.op("Mul", c.op("Sigmoid", stack), stack))
    vector = c.op("MatMul", numbers(3, 30), numbers(30, seed=7))
    c.end(c.op("HardSwish", c.op("Add", vector, numbers(3, seed=8))))
    short = c.op("MatMul", numbers(2, 128, 4), numbers(2, 4, 1, seed=10))
    c.end(c.op("Sub", short, numbers(128, 1, seed=11)))
    scaled = c.op("Gemm", numbers(6, 5), numbers(4, 5), numbers(4), transB=1, alpha=0.5)
    c.end(c.op("Clip", c.op("LeakyRelu", scaled), np.float32(-1), np.float32(2)))
    long = c.op("MatMul", numbers(1, 2900), numbers(2900, 1, seed=9))
    c.end(c.op("Exp", c.op("Mul", long, np.float32(1e-3))))
    return c.build()


@case
def finished_halves() -> tuple[Graph, Feeds]:
    """Each result is rounded to halves before the next node takes it."""
    c = Chains("finished_halves")
    product = c.op("MatMul", f16(9, 21), f16(21, 13, seed=2))
    c.end(c.op("Gelu", c.op("Mul", c.op("Add", product, f16(13, seed=3)), np.float16(0.1))))
    cells = c.op("Conv", f16(1, 2, 6, 6), f16(3, 2, 3, 3), f16(3))
    c.end(c.op("Mul", cells, cells))
    return c.build()


@case
def finished_windows() -> tuple[Graph, Feeds]:
    """Convolutions by tiles and cell by cell, with a residual, gates and steps of quanta."""
    c = Chains("finished_windows")
    x = numbers(2, 4, 6, 5)
    residual = numbers(2, 9, 6, 5, seed=2)
    by_tiles = c.op("Conv", x, numbers(9, 4, 3, 3, seed=3), numbers(9), pads=(1, 1, 1, 1))
    c.end(c.op("Relu", c.op("Add", by_tiles, residual)))
    depthwise = c.op("Conv", x, numbers(4, 1, 3, 3, seed=4), group=4)
    c.end(c.op("HardSwish", c.op("Mul", depthwise, numbers(2, 4, 1, 1, seed=5))))
    phases = c.op("ConvTranspose", numbers(1, 3, 4, 3), numbers(3, 8, 3, 2), strides=(2, 2))
    step, zero = np.float32(0.25), np.uint8(7)
    c.end(c.op("QuantizeLinear", c.op("Add", phases, numbers(8, 1, 1)), step, zero))
    return c.build()


@case
def finished_integers() -> tuple[Graph, Feeds]:
    """Integer sums scaled, and quanta that become numbers again."""
    c = Chains("finished_integers")
    sums = c.op("MatMulInteger", whole(5, 30), whole(30, 6, seed=2))
    scaled = c.op("Mul", c.op("Cast", sums, to="float32"), np.float32(0.01))
    c.end(c.op("Add", scaled, numbers(6)))
    cells = c.op("ConvInteger", whole(1, 3, 5, 5), whole(8, 3, 3, 3, seed=3))
    c.end(c.op("Cast", c.op("Max", cells, np.int32(0)), to="int16"))
    one = np.float32(0.5), np.int8(1)
    quanta = c.op("QLinearConv", whole(1, 3, 5, 5), *one, whole(2, 3, 3, 3), *one, *one)
    c.end(c.op("Relu", c.op("DequantizeLinear", quanta, *one)))
    return c.build()


CHAINS: tuple[Callable[[], tuple[Graph, Feeds]], ...] = (
    finished_matrices,
    finished_halves,
    finished_windows,
    finished_integers,
)
"""Cases in which each output is of a chain that becomes one piece."""


@case
def finished_and_kept() -> tuple[Graph, Feeds]:
    """A product that others read too, one that is an output, and two that are added."""
    c = Chains("finished_and_kept")
    first = c.op("MatMul", numbers(4, 6), numbers(6, 5, seed=2))
    c.end(c.op("Neg", first))
    c.end(first)
    second = c.op("MatMul", numbers(4, 7, seed=3), numbers(7, 5, seed=4))
    third = c.op("MatMul", numbers(4, 3, seed=5), numbers(3, 5, seed=6))
    c.end(c.op("Add", third, second))
    c.end(c.op("Softmax", c.op("Abs", third)))
    return c.build()
