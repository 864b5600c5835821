"""Definitions of LSTM, GRU and RNN, one sequence and one unit at a time.

The weights of a cell concatenate its gates, `hidden` rows each; b holds the biases of the input's
product, then those of the state's. Source: ONNX LSTM, GRU, RNN.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from ...graph.values.tensor import Array
from .ieee import exp, sum_exactly
from .registry import at, definition, table

Vector: TypeAlias = list[float]
Scalar: TypeAlias = Callable[[float], float]
State: TypeAlias = tuple[Vector, ...]
"""The hidden state, and an LSTM's cell state."""


def _clip(x: float, low: float, high: float) -> float:
    return low if x < low else high if x > high else x


_FUNCTIONS: dict[str, Callable[[float, float, float], float]] = {
    "Affine": lambda x, alpha, beta: alpha * x + beta,
    "Elu": lambda x, alpha, beta: alpha * (exp(x) - 1) if x < 0 else x,
    "HardSigmoid": lambda x, alpha, beta: _clip(alpha * x + beta, 0.0, 1.0),
    "LeakyRelu": lambda x, alpha, beta: alpha * x if x < 0 else x,
    "Relu": lambda x, alpha, beta: 0.0 if x < 0 else x,
    "ScaledTanh": lambda x, alpha, beta: alpha * math.tanh(beta * x),
    "Sigmoid": lambda x, alpha, beta: 1 / (1 + exp(-x)),
    "Softplus": lambda x, alpha, beta: max(x, 0.0) + math.log1p(exp(-abs(x))),
    "Softsign": lambda x, alpha, beta: x / (1 + abs(x)),
    "Tanh": lambda x, alpha, beta: math.tanh(x),
    "ThresholdedRelu": lambda x, alpha, beta: 0.0 if x < alpha else x,
}

_ALPHAS = {
    "Affine": 1.0,
    "Elu": 1.0,
    "HardSigmoid": 0.2,
    "LeakyRelu": 0.01,
    "ScaledTanh": 1.0,
    "ThresholdedRelu": 1.0,
}
_BETAS = {"Affine": 0.0, "HardSigmoid": 0.5, "ScaledTanh": 1.0}
"""The numbers that functions have, where none are given."""


@dataclass(frozen=True, slots=True)
class _Cell:
    w: Array
    r: Array
    b: Array | None
    d: int
    functions: Sequence[Scalar]
    clip: float | None

    @property
    def hidden(self) -> int:
        return int(self.r.shape[-1])

    def of_input(self, gate: int, unit: int, x: Vector) -> float:
        row = gate * self.hidden + unit
        bias = 0.0 if self.b is None else at(self.b, self.d, row)
        # Added up exactly and rounded once: other devices may add in any order, and are judged by
        # this.
        return float(sum_exactly([*_iterate_terms(self.w, self.d, row, x), bias]))

    def of_state(self, gate: int, unit: int, h: Vector) -> float:
        row = gate * self.hidden + unit
        bias = 0.0 if self.b is None else at(self.b, self.d, self.r.shape[1] + row)
        return float(sum_exactly([*_iterate_terms(self.r, self.d, row, h), bias]))

    def apply(self, function: int, value: float) -> float:
        """Return function number `function` of `value`, which is first bounded by the clip."""
        clipped = value if self.clip is None else _clip(value, -self.clip, self.clip)
        return self.functions[function](clipped)


def _iterate_terms(weights: Array, d: int, row: int, vector: Vector) -> Iterator[float]:
    return (at(weights, d, row, column) * value for column, value in enumerate(vector))


@definition("RNN")
def rnn(x: Array, w: Array, r: Array, *rest: Array | None, **attributes: Any) -> tuple[Array, ...]:
    def step(cell: _Cell, x_t: Vector, state: State) -> State:
        (h,) = state
        return (
            [
                cell.apply(0, cell.of_input(0, unit, x_t) + cell.of_state(0, unit, h))
                for unit in range(cell.hidden)
            ],
        )

    b, lengths, initial_h = _pad_optional(rest, 3)
    return _run(step, ("Tanh",), (x, w, r, b, lengths), (initial_h,), attributes)


@definition("GRU")
def gru(
    x: Array, w: Array, r: Array, *rest: Array | None, linear_before_reset: bool, **attributes: Any
) -> tuple[Array, ...]:
    # The new h is (1 - z)·n + z·h, with gates z (update) and q (reset), f(W·x + Wb + R·h + Rb); n
    # is g(W·x + Wb + R·(q·h) + Rb), and with linear_before_reset g(W·x + Wb + q·(R·h + Rb)).
    def step(cell: _Cell, x_t: Vector, state: State) -> State:
        (h,) = state
        # In the order of ONNX's weights: z, r and then the candidate.
        update, reset = (
            [
                cell.apply(0, cell.of_input(gate, unit, x_t) + cell.of_state(gate, unit, h))
                for unit in range(cell.hidden)
            ]
            for gate in (0, 1)
        )
        # The resets of all units first: each candidate reads the whole state that they leave.
        kept = [q * value for q, value in zip(reset, h, strict=True)]
        new = []
        for unit, (z, q) in enumerate(zip(update, reset, strict=True)):
            if linear_before_reset:
                share = q * cell.of_state(2, unit, h)
            else:
                share = cell.of_state(2, unit, kept)
            candidate = cell.apply(1, cell.of_input(2, unit, x_t) + share)
            new.append((1 - z) * candidate + z * h[unit])
        return (new,)

    b, lengths, initial_h = _pad_optional(rest, 3)
    return _run(step, ("Sigmoid", "Tanh"), (x, w, r, b, lengths), (initial_h,), attributes)


@definition("LSTM")
def lstm(
    x: Array, w: Array, r: Array, *rest: Array | None, input_forget: bool, **attributes: Any
) -> tuple[Array, ...]:
    # The new c is keep·c + take·g, the new h show·tanh(c), with gates take, show and keep. They and
    # g are functions of W·x + Wb + R·h + Rb, to which the gates add P·c; show sees the new c. With
    # input_forget, keep is 1 - take. Another function may replace tanh. The clip bounds the
    # arguments of gates and g, not c: so do runtimes, ONNX leaves it open.
    b, lengths, initial_h, initial_c, p = _pad_optional(rest, 5)

    def peephole(cell: _Cell, gate: int, unit: int, c: float) -> float:
        return 0.0 if p is None else float(at(p, cell.d, gate * cell.hidden + unit) * c)

    def step(cell: _Cell, x_t: Vector, state: State) -> State:
        (h, c), new_h, new_c = state, [], []
        for unit in range(cell.hidden):
            # In the order of ONNX's weights; those of the peepholes are i, o and f.
            i, o, f, g = (
                cell.of_input(gate, unit, x_t) + cell.of_state(gate, unit, h) for gate in range(4)
            )
            take = cell.apply(0, i + peephole(cell, 0, unit, c[unit]))
            keep = cell.apply(0, f + peephole(cell, 2, unit, c[unit]))
            keep = 1 - take if input_forget else keep
            content = keep * c[unit] + take * cell.apply(1, g)
            show = cell.apply(0, o + peephole(cell, 1, unit, content))
            new_c.append(content)
            new_h.append(show * cell.functions[2](content))
        return new_h, new_c

    usual = ("Sigmoid", "Tanh", "Tanh")
    return _run(step, usual, (x, w, r, b, lengths), (initial_h, initial_c), attributes)


def _pad_optional(given: Sequence[Array | None], count: int) -> list[Array | None]:
    return [*given, *(None for _ in range(count - len(given)))]


def _run(
    step: Callable[[_Cell, Vector, State], State],
    usual: Sequence[str],
    inputs: Sequence[Array | None],
    initial: Sequence[Array | None],
    attributes: dict[str, Any],
) -> tuple[Array, ...]:
    """Return the states h after each `step`, and the last states, each in an array.

    `inputs` are x, W, R, the bias and the lengths, `initial` the first states, 0 if None. `usual`
    are the default functions; the `attributes` may name others. After the end of a sequence, h is
    0.
    """
    x, w, r, b, lengths = inputs
    assert x is not None and w is not None and r is not None  # noqa: PT018
    batch_first, directions, hidden = attributes["layout"] == 1, r.shape[0], r.shape[2]
    n_steps, batch = x.shape[1::-1] if batch_first else x.shape[:2]
    functions = _list_functions(usual, directions, attributes)
    shown: dict[tuple[int, int, int], Vector] = {}
    last: dict[tuple[int, int], State] = {}
    for d in range(directions):
        own = functions[d * len(usual) : (d + 1) * len(usual)]
        cell = _Cell(w, r, b, d, own, attributes["clip"])
        # The second of two directions is the reverse one.
        backward = attributes["direction"] == "reverse" or d == 1
        for n in range(batch):
            state = tuple(_get_initial(array, d, n, hidden, batch_first) for array in initial)
            # Backwards too a sequence begins at its own end, not at that of the longest.
            times = range(n_steps if lengths is None else at(lengths, n))
            for t in reversed(times) if backward else times:
                place = (n, t) if batch_first else (t, n)
                vector = [at(x, *place, column) for column in range(x.shape[2])]
                state = step(cell, vector, state)
                shown[t, d, n] = state[0]
            last[d, n] = state
    nothing = [0.0] * hidden

    def y(t: int, d: int, n: int, unit: int) -> float:
        return shown.get((t, d, n), nothing)[unit]

    def final(which: int) -> Array:
        states = table((directions, batch, hidden), lambda d, n, unit: last[d, n][which][unit])
        return states.transpose(1, 0, 2) if batch_first else states

    steps = table((n_steps, directions, batch, hidden), y)
    steps = steps.transpose(2, 0, 1, 3) if batch_first else steps
    return (steps, *map(final, range(len(initial))))


def _get_initial(array: Array | None, d: int, n: int, hidden: int, batch_first: bool) -> Vector:
    """Return `hidden` numbers of `array`, the state of sample `n` in direction `d`; 0 for None.

    With `batch_first`, the first axis of the array is that of the samples.
    """
    if array is None:
        return [0.0] * hidden
    return [at(array, *((n, d) if batch_first else (d, n)), unit) for unit in range(hidden)]


def _with(function: Callable[[float, float, float], float], alpha: float, beta: float) -> Scalar:
    return lambda x: function(x, alpha, beta)


def _list_functions(
    usual: Sequence[str], directions: int, attributes: dict[str, Any]
) -> list[Scalar]:
    """Return the functions that `attributes` name, or the `usual` ones for all of `directions`.

    Each takes the next of the numbers given, if it has such numbers at all.
    """
    names = attributes["activations"] or tuple(usual) * directions
    alphas = iter(attributes["activation_alpha"] or ())
    betas = iter(attributes["activation_beta"] or ())
    functions: list[Scalar] = []
    for name in names:
        alpha = next(alphas, _ALPHAS[name]) if name in _ALPHAS else 0.0
        beta = next(betas, _BETAS[name]) if name in _BETAS else 0.0
        functions.append(_with(_FUNCTIONS[name], alpha, beta))
    return functions
