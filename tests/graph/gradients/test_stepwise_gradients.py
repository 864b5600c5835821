"""Gradients of what goes step by step through a sequence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import plait as pl
import pytest
from plait.graph.gradients import recurrent
from single_node import AnyArray

STEPS, BATCH, FEATURES, HIDDEN = 6, 2, 3, 2
GATES = {"GRU": 3, "LSTM": 4, "RNN": 1}
SCALE = 0.5
SHAPES = {0: (STEPS, BATCH, FEATURES), 1: (BATCH, STEPS, FEATURES)}


def gradients(op: str, x: Sequence[int | str] = SHAPES[0], **attributes: Any) -> dict[str, Any]:
    """Return Σ y² and its gradients, for an x of a declared shape."""
    rng, rows = np.random.default_rng(0), GATES[op] * HIDDEN
    ways = 2 if attributes.get("direction") == "bidirectional" else 1
    shapes = {"w": (ways, rows, FEATURES), "r": (ways, rows, HIDDEN)}
    fed = {name: SCALE * rng.standard_normal(shape) for name, shape in shapes.items()}
    fed["x"] = rng.standard_normal(SHAPES[attributes.get("layout", 0)])
    b = pl.GraphBuilder(op)
    names = [b.input("x", "float64", x), *(b.input(n, "float64", shapes[n]) for n in shapes)]
    y, last = b.op(op, *names, outputs=2, hidden_size=HIDDEN, **attributes)
    parts = [b.op("ReduceSum", b.op("Mul", part, part), keepdims=False) for part in (y, last)]
    loss = b.op("Add", *parts)
    for name, gradient in zip(names, pl.gradients(b, loss, names), strict=True):
        b.output(f"gradient/{name}", gradient)
    b.output("loss", loss)
    return dict(pl.run(b.build(), fed))


def assert_alike(found: Mapping[str, AnyArray], wanted: Mapping[str, AnyArray]) -> None:
    for name, value in wanted.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-10, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("op", "direction", "layout"),
    [
        ("GRU", "forward", 1),
        ("RNN", "reverse", 0),
        ("LSTM", "bidirectional", 0),
        ("RNN", "bidirectional", 1),
    ],
)
def test_a_long_sequence_has_the_gradients_of_one_that_is_written_out(
    monkeypatch: pytest.MonkeyPatch, op: str, direction: str, layout: int
) -> None:
    given: dict[str, Any] = {"x": SHAPES[layout], "direction": direction, "layout": layout}
    wanted = gradients(op, **given)
    monkeypatch.setattr(recurrent, "MOST_STEPS", 3)
    assert_alike(gradients(op, **given), wanted)


@pytest.mark.parametrize("x", [("steps", "batch", FEATURES), (STEPS, "batch", FEATURES)])
def test_lengths_of_sequences_may_be_symbols(
    monkeypatch: pytest.MonkeyPatch, x: tuple[int | str, ...]
) -> None:
    wanted = gradients("RNN")
    monkeypatch.setattr(recurrent, "MOST_STEPS", 2)
    assert_alike(gradients("RNN", x), wanted)


def test_a_batch_of_short_sequences_may_be_a_symbol() -> None:
    b = pl.GraphBuilder("batch")
    x, w = b.input("x", "float64", (2, "batch", 3)), b.input("w", "float64", (1, 4, 3))
    y = b.op("RNN", x, w, b.constant(np.zeros((1, 4, 4))), hidden_size=4)
    b.output("gradient", pl.gradients(b, y, w))
    fed = {"x": 0.1 * np.ones((2, 5, 3)), "w": np.ones((1, 4, 3))}
    slope = 10 * 0.1 / np.cosh(0.3) ** 2
    np.testing.assert_allclose(pl.run(b.build(), fed)["gradient"], np.full((1, 4, 3), slope))


def test_an_input_that_another_one_is_made_from_gets_its_gradient_once() -> None:
    b = pl.GraphBuilder("shared")
    w = b.input("w", "float64", (1, 1, 1))
    zero = b.constant(np.zeros((1, 1, 1)))
    y = b.op("RNN", b.op("Mul", w, 2.0), w, zero, None, None, b.op("Mul", w, 3.0), hidden_size=1)
    b.output("gradient", pl.gradients(b, y, w))
    (slope,) = pl.run(b.build(), {"w": np.full((1, 1, 1), 0.3)})["gradient"].ravel()
    assert slope == pytest.approx(4 * 0.3 / np.cosh(2 * 0.3**2) ** 2)


def test_a_cell_with_one_tensor_for_both_states_gets_its_gradient_once() -> None:
    b = pl.GraphBuilder("shared")
    s, zero = b.input("s", "float64", (1, 1, 1)), b.constant(np.zeros((1, 4, 1)))
    x = b.constant(np.zeros((1, 1, 1)))
    outputs = b.op("LSTM", x, zero, zero, None, None, s, s, hidden_size=1, outputs=3)
    b.output("gradient", pl.gradients(b, outputs[2], s))
    assert pl.run(b.build(), {"s": np.ones((1, 1, 1))})["gradient"] == 0.5
