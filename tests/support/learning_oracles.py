"""Optimizers in numpy's float64, written after the pseudocode of torch.optim's documents."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeAlias

import numpy as np
import plait as pl
from bound import Bound
from numpy.typing import NDArray
from plait.devices.cpu import CpuDevice
from plait.graph.gradients.formula import Formula
from plait.graph.learning import Optimizer, Progress
from plait.scheduler.shapes.specialise import specialise

AnyArray: TypeAlias = NDArray[Any]


def sgd(
    x: AnyArray,
    gradients: list[AnyArray],
    *,
    lr: float,
    momentum: float,
    nesterov: bool,
    weight_decay: float,
) -> AnyArray:
    buffer: AnyArray | None = None
    for g in gradients:
        if weight_decay:
            g = g + weight_decay * x
        if momentum:
            buffer = g if buffer is None else momentum * buffer + g
            g = g + momentum * buffer if nesterov else buffer
        x = x - lr * g
    return x


def adam(
    x: AnyArray,
    gradients: list[AnyArray],
    *,
    lr: float,
    betas: tuple[float, float],
    eps: float,
    weight_decay: float = 0.0,
) -> AnyArray:
    first, second = np.zeros_like(x), np.zeros_like(x)
    for t, g in enumerate(gradients, 1):
        x = x - lr * weight_decay * x
        first = betas[0] * first + (1 - betas[0]) * g
        second = betas[1] * second + (1 - betas[1]) * g**2
        first_hat, second_hat = first / (1 - betas[0] ** t), second / (1 - betas[1] ** t)
        x = x - lr * first_hat / (np.sqrt(second_hat) + eps)
    return x


def rmsprop(
    x: AnyArray,
    gradients: list[AnyArray],
    *,
    lr: float,
    alpha: float,
    eps: float,
    momentum: float,
) -> AnyArray:
    average, buffer = np.zeros_like(x), np.zeros_like(x)
    for g in gradients:
        average = alpha * average + (1 - alpha) * g**2
        scaled = g / (np.sqrt(average) + eps)
        buffer = momentum * buffer + scaled
        x = x - lr * buffer
    return x


def update_graph(optimizer: Optimizer, shape: tuple[int, ...], dtype: str) -> pl.Graph:
    """Return the graph of one update, its state fed and fetched by the same names, primed."""
    b = pl.GraphBuilder("update")
    formula = Formula(b)
    step = formula.term(b.input("step", "int64", ()))
    x, g = (formula.term(b.input(name, dtype, shape)) for name in "xg")
    slots = {slot: formula.term(b.input(slot, dtype, shape)) for slot in optimizer.slots}
    progress = Progress(formula, optimizer.learning_rate, lambda: step)
    value, kept = optimizer.updates(progress, np.dtype(dtype))(x, g, slots)
    assert tuple(kept) == optimizer.slots
    for name, term in {"x": value, **kept}.items():
        b.output(f"{name}'", term.name)
    return b.build()


def on_cpu(graph: pl.Graph, fed: Mapping[str, AnyArray]) -> dict[str, AnyArray]:
    """Return what a graph of static shapes computes, run once without a session."""
    with _on_cpu(graph) as bound:
        return {name: array.copy() for name, array in bound.run(fed).items()}


def updated(optimizer: Optimizer, x: AnyArray, gradients: list[AnyArray]) -> AnyArray:
    """Return what x is after updates on the cpu."""
    graph = update_graph(optimizer, x.shape, x.dtype.name)
    state = {"x": x, **{slot: np.zeros_like(x) for slot in optimizer.slots}}
    with _on_cpu(graph) as bound:
        for step, g in enumerate(gradients):
            fed = {**state, "g": g, "step": np.array(step)}
            found = bound.run({name: fed[name] for name in graph.inputs})
            state = {name: found[f"{name}'"].copy() for name in state}
    return state["x"]


@contextmanager
def _on_cpu(graph: pl.Graph) -> Iterator[Bound]:
    device = CpuDevice()
    device.open()
    try:
        with Bound(device, specialise(graph)) as bound:
            yield bound
    finally:
        device.close()
