from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from plait.graph.core.infer import infer_node
from plait.graph.core.ir import Node
from plait.graph.core.operator import Call, find_operator
from plait.graph.values.errors import OperatorError, ShapeError
from plait.graph.values.tensor import Dim, TensorSpec

Dims = Sequence[Dim] | None
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
X = ("t", "n", 5)


def infer(op: str, *shapes: Dims, **attributes: Any) -> tuple[TensorSpec, ...]:
    operator = find_operator(op)
    complete = operator.complete(attributes, op)
    dtypes = ["int32" if index == 4 else "float32" for index in range(len(shapes))]
    specs = tuple(map(TensorSpec, dtypes, shapes))
    names = tuple(f"x{index}" for index in range(len(shapes)))
    outputs = tuple(name.rstrip("?") for name in operator.outputs.split())
    node = Node("node", op, names, outputs, complete)
    return infer_node(node, Call(specs, (None,) * len(specs), complete, len(outputs)))


def weights(op: str, directions: int = 1) -> list[Dims]:
    return [(directions, GATES[op] * 3, 5), (directions, GATES[op] * 3, 3)]


@pytest.mark.parametrize("op", GATES)
def test_steps_and_batch_may_be_symbols(op: str) -> None:
    y, *states = infer(op, X, *weights(op))
    assert y.shape == ("t", 1, "n", 3)
    assert {state.shape for state in states} == {(1, "n", 3)}


@pytest.mark.parametrize("op", GATES)
def test_batch_first_puts_the_batch_first(op: str) -> None:
    y, *states = infer(op, X, *weights(op, 2), direction="bidirectional", layout=1)
    assert y.shape == ("t", "n", 2, 3)
    assert {state.shape for state in states} == {("t", 2, 3)}


@pytest.mark.parametrize("op", GATES)
def test_hidden_size_stands_in_for_unknown_weights(op: str) -> None:
    assert infer(op, X, None, None, hidden_size=7)[0].shape == ("t", 1, "n", 7)
    assert infer(op, X, None, None)[0].shape is None


W, R = weights("LSTM")
REFUSED: dict[str, tuple[list[Dims], dict[str, Any], str]] = {
    "rank": ([(4, 5), W, R], {}, "x must have the shape"),
    "weights": ([X, (1, 12, 4), R], {}, "w must have the shape"),
    "recurrence": ([X, W, R], {"hidden_size": 2}, "w must have the shape"),
    "directions": ([X, W, R], {"direction": "bidirectional"}, "w must have the shape"),
    "bias": ([X, W, R, (1, 12)], {}, "b must have the shape"),
    "lengths": ([(4, 2, 5), W, R, (1, 24), (3,)], {}, "sequence_lens must have the shape"),
    "state": ([X, W, R, None, None, (1, "n", 4)], {}, "initial_h must have the shape"),
    "cell": ([X, W, R, None, None, None, (2, "n", 3)], {}, "initial_c must have the shape"),
    "peepholes": ([X, W, R, *[None] * 4, (1, 12)], {}, "p must have the shape"),
    "few": ([X, W, R], {"activations": ["Tanh"]}, "1 activations are given, 3 are needed"),
    "many": ([X, W, R], {"activations": ["Relu"] * 4}, "4 activations are given"),
    "numbers": ([X, W, R], {"activation_alpha": [0.1] * 4}, "4 numbers for 3 activations"),
}


@pytest.mark.parametrize(("shapes", "attributes", "message"), REFUSED.values(), ids=REFUSED)
def test_what_does_not_fit_is_refused(
    shapes: list[Dims], attributes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ShapeError, match=message):
        infer("LSTM", *shapes, **attributes)


def test_an_unknown_function_is_refused() -> None:
    with pytest.raises(OperatorError, match="activations"):
        infer("RNN", X, *weights("RNN"), activations=["Cosine"])
