"""Recurrent networks: one cell over all steps of a sequence, in one or both directions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ..core.attribute import Attribute, Attributes, Kind
from ..core.operator import Call, InferRule, Specs, define
from ..core.traits import IN_SUMS, WRITTEN_OUT_ON_GPUS
from ..values.dims import mul
from ..values.errors import ShapeError
from ..values.tensor import Dim, TensorSpec
from .inputs import FLOATS, INTEGERS, check_dtype, find_common_dtype, may_equal
from .rules import TRANSCENDENTAL

LENGTHS = 4
"""The input with the number of steps of each sequence."""

_PEEPHOLES = 7
_PEEPHOLE_GATES = 3

_ALPHAS = {
    "Affine": 1.0,
    "Elu": 1.0,
    "HardSigmoid": 0.2,
    "LeakyRelu": 0.01,
    "ScaledTanh": 1.0,
    "ThresholdedRelu": 1.0,
}
"""The functions with an alpha, and its value where none is given."""

_BETAS = {"Affine": 0.0, "HardSigmoid": 0.5, "ScaledTanh": 1.0}

_FUNCTIONS = (
    *("Affine", "Elu", "HardSigmoid", "LeakyRelu", "Relu", "ScaledTanh"),
    *("Sigmoid", "Softplus", "Softsign", "Tanh", "ThresholdedRelu"),
)

_ATTRIBUTES = {
    "activation_alpha": Attribute(Kind.FLOATS, None),
    "activation_beta": Attribute(Kind.FLOATS, None),
    "activations": Attribute(Kind.STRINGS, None, choices=_FUNCTIONS),
    "clip": Attribute(Kind.FLOAT, None, minimum=0),
    "direction": Attribute(Kind.STRING, "forward", choices=("forward", "reverse", "bidirectional")),
    "hidden_size": Attribute(Kind.INT, None, minimum=1),
    "layout": Attribute(Kind.INT, 0, choices=(0, 1)),
}


class Activation(NamedTuple):
    """A function inside a cell, with the numbers that shape it (0 where it has none)."""

    name: str
    alpha: float
    beta: float


def count_directions(attributes: Attributes) -> int:
    return 2 if attributes["direction"] == "bidirectional" else 1


def list_activations(attributes: Attributes, usual: Sequence[str]) -> list[Activation]:
    """Return the functions in `attributes`, by default `usual`, those of all directions in a row.

    A function takes the next alpha and the next beta that are given if it has such a number. Raises
    ShapeError if there are too few or too many functions or numbers.
    """
    names = attributes["activations"] or tuple(usual) * count_directions(attributes)
    wanted = len(usual) * count_directions(attributes)
    # RNN's default holds the functions of two directions.
    if len(names) < wanted or (len(names) > wanted and set(names) != set(usual)):
        raise ShapeError(
            f"{len(names)} activations are given, {wanted} are needed",
            fix=f"pass {len(usual)} for each direction",
        )
    names = names[:wanted]
    alphas = _pick_numbers(attributes, "activation_alpha", names, _ALPHAS)
    betas = _pick_numbers(attributes, "activation_beta", names, _BETAS)
    return list(map(Activation, names, alphas, betas))


def to_attributes(functions: Sequence[Activation]) -> dict[str, Any]:
    return {
        "activations": [one.name for one in functions],
        "activation_alpha": [one.alpha for one in functions if one.name in _ALPHAS],
        "activation_beta": [one.beta for one in functions if one.name in _BETAS],
    }


def _pick_numbers(
    attributes: Attributes, which: str, names: Sequence[str], usual: Mapping[str, float]
) -> list[float]:
    given = list(attributes[which] or ())
    if len(given) > len(names):
        raise ShapeError(
            f"{which} has {len(given)} numbers for {len(names)} activations",
            fix="pass at most one for each activation",
        )
    # ONNX lists numbers for those activations alone that take one, in their order.
    return [given.pop(0) if name in usual and given else usual.get(name, 0.0) for name in names]


def _infer(gates: int, usual: Sequence[str]) -> InferRule:
    def infer(call: Call) -> Sequence[TensorSpec]:
        floats = [s for i, s in enumerate(call.inputs) if s is not None and i != LENGTHS]
        dtype = find_common_dtype(floats, FLOATS)
        if call.has(LENGTHS):
            check_dtype(call.spec(LENGTHS), INTEGERS, "sequence_lens")
        list_activations(call.attributes, usual)
        _check(call, 0, (None, None, None), "x")
        _check(call, 2, (None, None, None), "r")
        # The length of the state comes from its own weights: w may have any number of features.
        x, hidden = call.spec(0).shape, _get_hidden_size(call)
        if x is None or hidden is None:
            return (TensorSpec(dtype, None),) * 3
        directions, batch_first = count_directions(call.attributes), call.attributes["layout"]
        steps, batch = (x[1], x[0]) if batch_first else (x[0], x[1])
        state = (batch, directions, hidden) if batch_first else (directions, batch, hidden)
        # The gates are concatenated in the rows of both weights, in ONNX's order.
        rows = mul(gates, hidden)
        _check(call, 1, (directions, rows, x[2]), "w")
        _check(call, 2, (directions, rows, hidden), "r")
        # Biases of the input's and of the state's product, concatenated.
        _check(call, 3, (directions, mul(2, rows)), "b")
        _check(call, LENGTHS, (batch,), "sequence_lens")
        _check(call, 5, state, "initial_h")
        _check(call, 6, state, "initial_c")
        _check(call, _PEEPHOLES, (directions, mul(_PEEPHOLE_GATES, hidden)), "p")
        y = (batch, steps, *state[1:]) if batch_first else (steps, *state)
        return (TensorSpec(dtype, y), *(TensorSpec(dtype, state),) * 2)

    return infer


def _get_hidden_size(call: Call) -> Dim | None:
    """Return the length of the state in `call`: the attribute, or else the last length of r."""
    given: int | None = call.attributes["hidden_size"]
    r = call.spec(2).shape
    return given if given is not None else None if r is None else r[-1]


def _check(call: Call, index: int, shape: Sequence[Dim | None], label: str) -> None:
    """Raise ShapeError unless input `index` is absent or can have `shape`; None fits any length."""
    if not call.has(index):
        return
    spec = call.spec(index)
    if spec.shape is None:
        return
    fits = len(spec.shape) == len(shape) and all(
        wanted is None or may_equal(length, wanted)
        for length, wanted in zip(spec.shape, shape, strict=True)
    )
    if not fits:
        wanted = ", ".join("any" if dim is None else str(dim) for dim in shape)
        raise ShapeError(
            f"{label} must have the shape [{wanted}], got {spec}",
            fix="make hidden_size, direction and layout fit the tensors",
        )


def _estimate_cost(call: Call, outputs: Specs) -> int:
    """Estimate `call` with `outputs`: two products and a function for each gate, in each step."""
    length, batch, features = call.spec(0).static_shape
    directions, rows, hidden = call.spec(2).static_shape
    values = length * batch * directions * rows
    return values * (2 * (features + hidden) + TRANSCENDENTAL)


def _define(name: str, gates: int, usual: Sequence[str], lstm: bool = False, **more: Any) -> None:
    define(
        name,
        inputs="x w r b? sequence_lens? initial_h?" + (" initial_c? p?" if lstm else ""),
        outputs="y? y_h?" + (" y_c?" if lstm else ""),
        attributes=_ATTRIBUTES | more,
        cost=_estimate_cost,
        float16=IN_SUMS,
        lacks=WRITTEN_OUT_ON_GPUS,
    )(_infer(gates, usual))


LSTM_FUNCTIONS = ("Sigmoid", "Tanh", "Tanh")
GRU_FUNCTIONS = ("Sigmoid", "Tanh")
RNN_FUNCTIONS = ("Tanh",)

_define("LSTM", 4, LSTM_FUNCTIONS, lstm=True, input_forget=Attribute(Kind.BOOL, False))
_define("GRU", 3, GRU_FUNCTIONS, linear_before_reset=Attribute(Kind.BOOL, False))
_define(
    "RNN",
    1,
    RNN_FUNCTIONS,
    activations=Attribute(Kind.STRINGS, ("Tanh", "Tanh"), choices=_FUNCTIONS),
)
