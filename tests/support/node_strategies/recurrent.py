"""Nodes that run a cell over sequences."""

from __future__ import annotations

from typing import Any

import numpy as np
from single_node import AnyArray

from .drawing import (
    FLOATS,
    Draw,
    NodeCase,
    Strategy,
    choose,
    few,
    flag,
    integer,
    ordinary,
    rng_of,
    tensor,
)

BOUNDED = ("Sigmoid", "Tanh", "HardSigmoid", "Softsign")
# Not ThresholdedRelu: it jumps at alpha, where rounding decides, and where ONNX's text keeps alpha
# itself while ONNX Runtime and the kernels make it 0.
OTHERS = ("Affine", "Elu", "LeakyRelu", "Relu", "ScaledTanh", "Softplus")
WITH_ALPHA = ("Affine", "Elu", "HardSigmoid", "LeakyRelu", "ScaledTanh")
WITH_BETA = ("Affine", "HardSigmoid", "ScaledTanh")
DIRECTIONS = ("forward", "reverse", "bidirectional")
NUMBERS = (0.25, 0.5, 1.0)


def recurrent(gates: int, functions: int, lstm: bool = False, **more: Any) -> Strategy:
    """Return the strategy of a cell with so many gates and functions."""

    def strategy(draw: Draw) -> NodeCase:
        dtype, direction = choose(draw, FLOATS), choose(draw, DIRECTIONS)
        ways = 2 if direction == "bidirectional" else 1
        steps, batch = integer(draw, 0, 3), integer(draw, 0, 3)
        features, hidden, layout = integer(draw, 1, 3), integer(draw, 1, 3), integer(draw, 0, 1)

        def drawn(*of: int) -> AnyArray:
            return (tensor(draw, dtype, of, (few, ordinary)) / 4).astype(dtype)

        def perhaps(*of: int) -> AnyArray | None:
            return drawn(*of) if flag(draw) else None

        state = (batch, ways, hidden) if layout else (ways, batch, hidden)
        lengths = rng_of(draw).integers(min(steps, 1), steps + 1, batch).astype(np.int32)
        inputs = [
            drawn(*((batch, steps) if layout else (steps, batch)), features),
            drawn(ways, gates * hidden, features),
            drawn(ways, gates * hidden, hidden),
            perhaps(ways, 2 * gates * hidden),
            lengths if flag(draw) else None,
            perhaps(*state),
        ]
        if lstm:
            inputs += [perhaps(*state), perhaps(ways, 3 * hidden)]
        attributes = {"direction": direction, "layout": layout, "hidden_size": hidden}
        attributes |= _functions(draw, functions * ways)
        attributes |= {name: choose(draw, of) for name, of in more.items()}
        if integer(draw, 0, 2) == 0:
            attributes["clip"] = choose(draw, (0.5, 2.0))
        return NodeCase(inputs, attributes, integer(draw, 1, 3 if lstm else 2), ulps=64, terms=8.0)

    return strategy


def _functions(draw: Draw, count: int) -> dict[str, Any]:
    """Draw functions and what shapes them, or leave them out."""
    if flag(draw):
        return {}
    names = [choose(draw, BOUNDED if flag(draw) else OTHERS) for _ in range(count)]
    given: dict[str, Any] = {"activations": names}
    for attribute, takers in (("activation_alpha", WITH_ALPHA), ("activation_beta", WITH_BETA)):
        wanted = sum(name in takers for name in names)
        if wanted and flag(draw):
            given[attribute] = [choose(draw, NUMBERS) for _ in range(integer(draw, 1, wanted))]
    return given


STRATEGIES: dict[str, Strategy] = {
    "LSTM": recurrent(4, 3, lstm=True, input_forget=(False, True)),
    "GRU": recurrent(3, 2, linear_before_reset=(False, True)),
    "RNN": recurrent(1, 1),
}
