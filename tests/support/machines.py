"""Random graphs and machines, for tests of what is decided by cost."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import plait as pl
from plait.devices.sim import SimDevice, SimModel
from plait.graph.core.ir import Graph

SIDES = (16, 64, 256)
OPS = ("MatMul", "Add", "Relu", "Exp", "Softmax")


def random_graph(
    random: Random, n_nodes: int, reach: int = 6, sides: Sequence[int] = SIDES
) -> Graph:
    """Return a graph of square matrices; nodes read what was made up to `reach` nodes before."""
    side = random.choice(sides)
    b = pl.GraphBuilder("random")
    made = [b.input(f"x{i}", "float32", (side, side)) for i in range(random.randint(1, 2))]
    for index in range(n_nodes):
        op = random.choice(OPS)
        reads = [random.choice(made[-reach:]) for _ in range(2 if op in ("MatMul", "Add") else 1)]
        made.append(b.op(op, *reads, name=f"n{index}"))
    b.output("y", made[-1])
    if n_nodes > 3:
        b.output("z", made[-3])
    return b.build()


def random_machine(random: Random, count: int, *, lacks: bool = True) -> list[SimDevice]:
    """Return simulated devices that differ up to a hundredfold; the first has all operators."""
    devices = []
    for index in range(count):
        missing = random.sample(OPS, random.randint(0, 2)) if lacks and index else []
        model = SimModel(
            flops_per_s=10 ** random.uniform(9, 12),
            bytes_per_s=10 ** random.uniform(9, 11),
            copy_bytes_per_s=10 ** random.uniform(8.5, 10.5),
            copy_latency_s=10 ** random.uniform(-6, -4),
            launch_s=10 ** random.uniform(-6.5, -5),
            submit_s=10 ** random.uniform(-6.5, -4.5),
            supports=frozenset(OPS) - set(missing),
        )
        devices.append(SimDevice(f"sim:{index}", model))
    return devices


def chain(n_nodes: int, side: int = 64, op: str = "Relu") -> Graph:
    """Return nodes in a row."""
    b = pl.GraphBuilder("chain")
    last = b.input("x", "float32", (side, side))
    for index in range(n_nodes):
        last = b.op(op, last, name=f"n{index}")
    b.output("y", last)
    return b.build()


def branches(count: int, length: int, side: int = 256) -> Graph:
    """Return parallel chains of MatMul between a common input and a sum."""
    b = pl.GraphBuilder("branches")
    x = b.input("x", "float32", (side, side))
    ends = []
    for branch in range(count):
        last = x
        for index in range(length):
            last = b.op("MatMul", last, last, name=f"b{branch}.{index}")
        ends.append(last)
    b.output("y", b.op("Sum", *ends, name="sum"))
    return b.build()
