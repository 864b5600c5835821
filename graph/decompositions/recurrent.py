"""Recurrent cells over short sequences, unrolled. Sources: ONNX LSTM, GRU, RNN."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from ..operators.recurrent import (
    GRU_FUNCTIONS,
    LSTM_FUNCTIONS,
    RNN_FUNCTIONS,
    Activation,
    count_directions,
    list_activations,
)
from .rules import DecompositionBuilder, decomposition

MOST_STEPS = 32
"""Longest sequence that is unrolled."""

State: TypeAlias = Sequence[str]
Step: TypeAlias = "Callable[[_Cell, str, State], State]"
"""Returns the new state, given the input's share of the gates, and the state."""


@dataclass(frozen=True, slots=True)
class _Cell:
    builder: DecompositionBuilder
    turned: str
    """The weights of the state, transposed."""
    bias: str
    """Bias of the state's product, or ``""``."""
    peepholes: str
    """Weights of an LSTM's cell state, or ``""``."""
    functions: Sequence[Activation]
    gates: int
    hidden: int

    def of_state(self, h: str) -> str:
        """Return the contribution of the state `h` to the gates: R·h + Rb."""
        product = self.builder("MatMul", h, self.turned)
        return self.builder("Add", product, self.bias) if self.bias else product

    def split(self, gates: str) -> list[str]:
        return self.builder.several(
            self.gates, "Split", gates, (self.hidden,) * self.gates, axis=-1
        )

    def apply(self, function: int, x: str, *, clipped: bool = True) -> str:
        builder, clip = self.builder, self.builder.attributes["clip"]
        name, alpha, beta = self.functions[function]
        if clip is not None and clipped:
            x = builder("Max", builder("Min", x, float(clip)), -float(clip))
        if name == "Affine":
            return builder("Add", builder("Mul", x, alpha), beta)
        if name == "ScaledTanh":
            return builder("Mul", builder("Tanh", builder("Mul", x, beta)), alpha)
        if name == "HardSigmoid":
            return builder(name, x, alpha=alpha, beta=beta)
        if name in ("Elu", "LeakyRelu", "ThresholdedRelu"):
            return builder(name, x, alpha=alpha)
        return builder(name, x)


@decomposition("RNN")
def rnn(
    builder: DecompositionBuilder, x: str, w: str, r: str, *rest: str
) -> tuple[str, ...] | None:
    # h = f(W·x + Wb + R·h + Rb).

    def step(cell: _Cell, share: str, state: State) -> State:
        return (cell.apply(0, builder("Add", share, cell.of_state(state[0]))),)

    return _unroll(builder, step, RNN_FUNCTIONS, (x, w, r, *_pad(rest, 3)), 1)


@decomposition("GRU")
def gru(
    builder: DecompositionBuilder, x: str, w: str, r: str, *rest: str
) -> tuple[str, ...] | None:
    # h = n + z · (h - n), with gates z and q.
    linear = builder.attributes["linear_before_reset"]

    def step(cell: _Cell, share: str, state: State) -> State:
        (h,) = state
        mine, theirs = cell.split(share), cell.split(cell.of_state(h))
        z, q = (cell.apply(0, builder("Add", mine[gate], theirs[gate])) for gate in (0, 1))
        # The reset gate is applied to R·h + Rb after the product, or else to h before it.
        if linear:
            kept = builder("Mul", q, theirs[2])
        else:
            kept = cell.split(cell.of_state(builder("Mul", q, h)))[2]
        n = cell.apply(1, builder("Add", mine[2], kept))
        # ONNX's (1 - z)·n + z·h takes one product more.
        return (builder("Add", n, builder("Mul", z, builder("Sub", h, n))),)

    return _unroll(builder, step, GRU_FUNCTIONS, (x, w, r, *_pad(rest, 3)), 1)


@decomposition("LSTM")
def lstm(
    builder: DecompositionBuilder, x: str, w: str, r: str, *rest: str
) -> tuple[str, ...] | None:
    # c = keep · c + take · g, h = show · tanh(c).

    def step(cell: _Cell, share: str, state: State) -> State:
        h, c = state
        i, o, f, g = cell.split(builder("Add", share, cell.of_state(h)))
        # The order of peepholes is that of gates: input, output, forget.
        seen = [""] * 3
        if cell.peepholes:
            parts = (cell.hidden,) * 3
            seen = builder.several(3, "Split", cell.peepholes, parts, axis=-1)

        def gate(value: str, peephole: str, content: str) -> str:
            if peephole:
                value = builder("Add", value, builder("Mul", peephole, content))
            return cell.apply(0, value)

        take = gate(i, seen[0], c)
        keep = gate(f, seen[2], c)
        # Coupled gates keep what the input gate leaves out.
        if builder.attributes["input_forget"]:
            keep = builder("Add", builder("Neg", take), 1.0)
        taken = builder("Mul", take, cell.apply(1, g))
        content = builder("Add", builder("Mul", keep, c), taken)
        show = gate(o, seen[1], content)
        return builder("Mul", show, cell.apply(2, content, clipped=False)), content

    return _unroll(builder, step, LSTM_FUNCTIONS, (x, w, r, *_pad(rest, 5)), 2)


def _unroll(
    builder: DecompositionBuilder,
    step: Step,
    usual: Sequence[str],
    inputs: Sequence[str],
    n_states: int,
) -> tuple[str, ...] | None:
    """Unroll a node with `inputs` into nodes of `builder`, calling `step` each time.

    Returns y and the last `n_states` states, or None for long or unequal sequences. `usual` are the
    activations by default.
    """
    x, w, r, b, lengths, *others = inputs
    shape, state_first = builder.dims(x), builder.attributes["layout"] == 0
    known = builder.shape(r)
    # Unrolled, there is a node for each step, even after some sequences end.
    if shape is None or known is None or lengths:
        return None
    n_steps, batch = shape[:2] if state_first else shape[1::-1]
    if not isinstance(n_steps, int) or n_steps > MOST_STEPS:
        return None
    directions, rows, hidden = count_directions(builder.attributes), known[1], known[2]
    initial, peepholes = others[:n_states], "".join(others[n_states:])
    if not state_first:
        x = builder("Transpose", x, perm=(1, 0, 2))
        initial = [one and builder("Transpose", one, perm=(1, 0, 2)) for one in initial]
    functions = list_activations(builder.attributes, usual)
    rows_of_state = batch if isinstance(batch, int) else 1  # which is repeated
    zero = np.zeros((rows_of_state, hidden), builder.spec(x).dtype)
    parts = [_split_directions(builder, one, directions) for one in (w, r, b, peepholes, *initial)]
    shown: list[list[str]] = [[] for _ in range(n_steps)]
    last: list[list[str]] = [[] for _ in range(n_states)]
    for d in range(directions):
        weights, turned = (builder("Transpose", part[d], perm=(1, 0)) for part in parts[:2])
        wb, rb = builder.several(2, "Split", parts[2][d], (rows, rows), axis=0) if b else ("", "")
        own = functions[d * len(usual) : (d + 1) * len(usual)]
        cell = _Cell(builder, turned, rb, parts[3][d], own, rows // hidden, hidden)
        # For all steps at once: only the state's share depends on the step before.
        product = builder("MatMul", x, weights)
        shares = _slice(builder, builder("Add", product, wb) if wb else product, n_steps)
        # One row, repeated, if the number of sequences is unknown.
        state: State = [part[d] or builder.constant(zero) for part in parts[4:]]
        backward = builder.attributes["direction"] == "reverse" or d == 1
        for time in reversed(range(n_steps)) if backward else range(n_steps):
            state = step(cell, shares[time], state)
            shown[time].append(builder("Unsqueeze", state[0], (0, 1)))
        for which, one in enumerate(state):
            last[which].append(builder("Unsqueeze", one, (0,)))
    y = _join(builder, [_join(builder, each, 1) for each in shown], 0)
    finals = [_join(builder, each, 0) for each in last]
    if not state_first:
        y = builder("Transpose", y, perm=(2, 0, 1, 3))
        finals = [builder("Transpose", one, perm=(1, 0, 2)) for one in finals]
    return (y, *finals)[: builder.n_outputs]


def _pad(given: Sequence[str], count: int) -> list[str]:
    return [*given, *[""] * (count - len(given))]


def _split_directions(builder: DecompositionBuilder, tensor: str, count: int) -> list[str]:
    return _slice(builder, tensor, count) if tensor else [""] * count


def _slice(builder: DecompositionBuilder, tensor: str, count: int) -> list[str]:
    parts = (
        [tensor] if count == 1 else builder.several(count, "Split", tensor, (1,) * count, axis=0)
    )
    return [builder("Squeeze", part, (0,)) for part in parts]


def _join(builder: DecompositionBuilder, parts: Sequence[str], axis: int) -> str:
    return parts[0] if len(parts) == 1 else builder("Concat", *parts, axis=axis)
