"""Gradients against differences: how outputs change when all inputs move a little way together."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

import numpy as np
import plait as pl
from bound import Bound
from plait.devices.cpu import CpuDevice
from plait.graph.core.ir import Graph
from plait.graph.gradients.build import gradients
from plait.graph.operators.control import CONTROL_FLOW
from plait.scheduler.shapes.specialise import specialise
from single_node import AnyArray

STEP = 1e-6
Run: TypeAlias = Callable[[Mapping[str, AnyArray]], Mapping[str, AnyArray]]


class Differences:
    """The cpu, open, to run graphs of static shapes on."""

    def __init__(self) -> None:
        self._device = CpuDevice()
        self._device.open()

    def close(self) -> None:
        self._device.close()

    @contextmanager
    def _running(self, graph: Graph) -> Iterator[Run]:
        """Run a graph as it is, or in a session where that has loops left to run."""
        if any(node.op in CONTROL_FLOW for node in graph.nodes):
            with pl.BlockingSession(pl.plan(graph)) as session:
                yield lambda feeds: dict(session.run(dict(feeds)))
        else:
            with Bound(self._device, graph) as bound:
                yield bound.run

    def check(self, graph: Graph, at: Mapping[str, AnyArray], xs: Sequence[str]) -> None:
        """Compare the slope along a random direction with the difference quotient.

        The graph's outputs are ys, and ``weight/y`` and ``gradient/x`` for these and the xs.
        """
        rng = np.random.default_rng(len(graph.nodes))
        direction = {x: rng.standard_normal(at[x].shape) for x in xs}
        shapes = {x: at[x].shape for x in graph.inputs}
        with self._running(specialise(graph, shapes)) as run, np.errstate(all="ignore"):
            found = run(at)
            ahead = run({**at, **{x: at[x] + STEP * v for x, v in direction.items()}})
            behind = run({**at, **{x: at[x] - STEP * v for x, v in direction.items()}})
        if not all(np.isfinite(found[y]).all() for y in graph.outputs):
            return  # the extremum of nothing
        quotient, size = 0.0, 1.0
        for y in (name for name in graph.outputs if f"weight/{name}" in at):
            weight = at[f"weight/{y}"]
            quotient += float(np.vdot(weight, ahead[y] - behind[y])) / (2 * STEP)
            size += float(np.abs(weight).ravel() @ np.abs(found[y]).ravel())
        slope = 0.0
        for x in xs:
            gradient = found[f"gradient/{x}"]
            assert gradient.shape == at[x].shape
            assert gradient.dtype == at[x].dtype
            slope += float(np.vdot(gradient, direction[x]))
            size += float(np.abs(gradient).ravel() @ np.abs(direction[x]).ravel())
        np.testing.assert_allclose(slope, quotient, rtol=0, atol=2e-8 * size)


def differentiated(
    op: str,
    inputs: Sequence[AnyArray | None],
    attributes: Mapping[str, Any],
    n_outputs: int,
    constant: Collection[int],
    xs: Collection[int],
    order: int = 1,
    *,
    symbols: bool = False,
) -> Graph:
    """Return a node with the gradients of its float outputs, by weights that are fed.

    Of order 2, the outputs are the gradients, weighed, and their gradients. With `symbols` the
    lengths of all inputs are.
    """
    b = pl.GraphBuilder("node")
    names: list[str | None] = []
    for index, value in enumerate(inputs):
        if value is None:
            names.append(None)
        elif index in constant and index not in xs:
            names.append(b.constant(value, f"x{index}"))
        else:
            axes = [f"x{index}_{axis}" for axis in range(value.ndim)]
            names.append(b.input(f"x{index}", value.dtype, axes if symbols else value.shape))
    while names and names[-1] is None:
        names.pop()
    made = b.op(op, *names, outputs=[f"y{i}" for i in range(n_outputs)], **attributes)
    ys = [y for y in made if b.spec(y).dtype.kind == "f"]
    fed = [f"x{index}" for index in sorted(xs)]
    for _ in range(order - 1):
        ys = list(dict.fromkeys(gradients(b, ys, fed, _weights(b, ys))))
        ys = [b.op("Identity", y) if y in fed or y.startswith("weight/") else y for y in ys]
    for x, gradient in zip(fed, gradients(b, ys, fed, _weights(b, ys)), strict=True):
        b.output(f"gradient/{x}", gradient)
    for y in ys:
        b.output(y, y)
    return b.build()


def _weights(b: pl.GraphBuilder, ys: Sequence[str]) -> list[str]:
    return [_like(b, f"weight/{y}", b.spec(y)) for y in ys]


def _like(b: pl.GraphBuilder, name: str, spec: pl.TensorSpec) -> str:
    if spec.shape is None:
        raise pl.GraphError(f"{name!r} has no rank")
    return b.input(name, spec.dtype, spec.shape)
