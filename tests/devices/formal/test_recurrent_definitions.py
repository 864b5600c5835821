"""LSTM, GRU and RNN by their definitions, with identities as functions: numbers done by hand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from formal_node import formal_node


def array(values: Any) -> Any:
    return np.array(values, "float64")


def identities(count: int, **attributes: Any) -> dict[str, Any]:
    """Return attributes that make all functions of a cell x -> 1·x + 0."""
    return {"activations": ["Affine"] * count, **attributes}


def sequences(*values: list[float]) -> Any:
    """Return x with one feature: [time, batch, 1], one list for each sequence."""
    return array(values).T[..., None]


def rnn(x: Any, *rest: Any, directions: int = 1, **attributes: Any) -> list[Any]:
    """Return Y and Y_h of an RNN of one unit, W = 2 and R = 3, without axes of length 1."""
    w, r = array([[[2]]] * directions), array([[[3]]] * directions)
    inputs = [x, w, r, *rest]
    results = formal_node("RNN", inputs, {**identities(directions), **attributes}, 2)
    return [y[..., 0].tolist() for y in results]


def test_rnn_adds_input_and_state() -> None:
    y, last = rnn(sequences([1, 10]), None, None, array([[[1]]]))

    assert y == [[[5]], [[35]]]
    assert last == [[35]]


def test_rnn_adds_both_biases() -> None:
    y, _ = rnn(sequences([1]), array([[7, 100]]))

    assert y == [[[109]]]


def test_a_reversed_rnn_ends_at_the_first_step() -> None:
    y, last = rnn(sequences([1, 10]), None, None, array([[[1]]]), direction="reverse")

    assert y == [[[71]], [[23]]]
    assert last == [[71]]


def test_both_directions_stop_at_the_end_of_a_sequence() -> None:
    x, lengths = sequences([1, 10, 100], [5, 6, 7], [8, 8, 8]), np.array([3, 1, 0], "int32")
    initial = array([[1, 1, 4]] * 2)[..., None]

    y, last = rnn(x, None, lengths, initial, directions=2, direction="bidirectional")

    forward, backward = array(y)[:, 0], array(y)[:, 1]
    assert forward.T.tolist() == [[5, 35, 305], [13, 0, 0], [0, 0, 0]]
    assert backward.T.tolist() == [[1889, 629, 203], [13, 0, 0], [0, 0, 0]]
    assert last == [[305, 13, 4], [1889, 13, 4]]


def test_batch_first_exchanges_axes() -> None:
    x = sequences([1, 10], [2, 20]).swapaxes(0, 1)

    y, last = rnn(x, None, None, array([[[1]], [[0]]]), layout=1)

    assert y == [[[5], [35]], [[4], [52]]]
    assert last == [[35], [52]]


def test_clip_bounds_what_a_function_gets() -> None:
    y, _ = rnn(sequences([1, 10, -100]), clip=6.0)

    assert y == [[[2]], [[6]], [[-6]]]


def test_numbers_go_to_the_functions_that_have_them() -> None:
    y, _ = rnn(
        sequences([-1]),
        directions=2,
        direction="bidirectional",
        activations=["Relu", "LeakyRelu"],
        activation_alpha=[0.25],
    )

    assert y == [[[0], [-0.5]]]


@pytest.mark.parametrize(
    ("function", "x", "wanted"),
    [
        ("Affine", 3, 3),
        ("Elu", -math.log(2), -0.5),
        ("Elu", 3, 3),
        ("HardSigmoid", 1, 0.7),
        ("HardSigmoid", 9, 1),
        ("LeakyRelu", -2, -0.02),
        ("Relu", -2, 0),
        ("ScaledTanh", 0.5 * math.log(3), 0.5),
        ("Sigmoid", math.log(3), 0.75),
        ("Sigmoid", -1000, 0),
        ("Softplus", math.log(3), 2 * math.log(2)),
        ("Softplus", 1000, 1000),
        ("Softsign", -3, -0.75),
        ("Tanh", 0.5 * math.log(3), 0.5),
        ("ThresholdedRelu", 1, 1),
        ("ThresholdedRelu", 0.5, 0),
    ],
)
def test_a_function_without_numbers_has_its_usual_ones(
    function: str, x: float, wanted: float
) -> None:
    y, _ = rnn(sequences([x / 2]), activations=[function])

    assert y == [[[pytest.approx(wanted, rel=1e-14, abs=1e-300)]]]


def lstm(p: Any = None, **attributes: Any) -> list[float]:
    """Return Y_h and Y_c after x = 1 from h = 0, c = 10, with W of i, o, f, g = 1, 2, 3, 4."""
    w, r = array([[[1], [2], [3], [4]]]), np.zeros((1, 4, 1))
    inputs = [sequences([1]), w, r, None, None, array([[[0]]]), array([[[10]]]), p]
    _, h, c = formal_node("LSTM", inputs, identities(3, **attributes), 3)
    return [h.item(), c.item()]


def test_lstm_keeps_and_takes_by_its_gates() -> None:
    assert lstm() == [68, 34]


def test_lstm_peepholes_see_the_old_content_and_the_output_gate_the_new() -> None:
    # i = 1 + 1·10, f = 3 + 3·10, c = 33·10 + 11·4, o = 2 + 2·374.
    assert lstm(array([[1, 2, 3]])) == [750 * 374, 374]


def test_a_coupled_lstm_keeps_what_it_does_not_take() -> None:
    assert lstm(input_forget=1, activation_alpha=[0.25]) == [0.5 * 8.5, 0.75 * 10 + 0.25 * 4]


def test_clip_spares_the_content_of_an_lstm() -> None:
    # Gates 1, 2, 2 and 2: c = 2·10 + 1·2 and h = 2·22.
    assert lstm(clip=2.0) == [44, 22]


def test_lstm_gates_of_several_units_lie_one_behind_the_other() -> None:
    w = array([[[1], [2], [3], [4], [5], [6], [7], [8]]])
    r = np.zeros((1, 8, 2))
    r[0, 6, 1] = 1  # the first unit's g sees the second unit's state
    inputs = [sequences([1]), w, r, None, None, array([[[0, 100]]]), array([[[1, 1]]])]

    _, h, c = formal_node("LSTM", inputs, identities(3), 3)

    assert c[0, 0].tolist() == [5 + 1 * 107, 6 + 2 * 8]
    assert h[0, 0].tolist() == [3 * 112, 4 * 22]


@pytest.mark.parametrize(
    ("linear_before_reset", "biased", "wanted"),
    [(0, False, -40), (0, True, -54), (1, False, -40), (1, True, -68)],
)
def test_gru_resets_the_state_before_or_behind_its_weights(
    linear_before_reset: int, biased: bool, wanted: float
) -> None:
    # z = 1 + 2, q = 2, and n = 3 + 5·(2·2) + 7 or 3 + 2·(5·2 + 7); h = -2·n + 3·2.
    w, r = array([[[1], [2], [3]]]), array([[[1], [0], [5]]])
    b = array([[0, 0, 0, 0, 0, 7]]) if biased else None
    inputs = [sequences([1]), w, r, b, None, array([[[2]]])]
    attributes = identities(2, linear_before_reset=linear_before_reset)

    _, h = formal_node("GRU", inputs, attributes, 2)

    assert h.item() == wanted


def test_gru_interpolates_with_its_usual_functions() -> None:
    # z = sigmoid(log 3) = 3/4, n = tanh(log(3)/2) = 1/2, h = n/4 + 3/4·8.
    w = array([[[math.log(3)], [0], [0.5 * math.log(3)]]])
    inputs = [sequences([1]), w, np.zeros((1, 3, 1)), None, None, array([[[8]]])]

    _, h = formal_node("GRU", inputs, {}, 2)

    assert h.item() == pytest.approx(6.125, rel=1e-15)
