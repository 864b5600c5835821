from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from arrays import AnyArray, random_array
from runtime_node import runtime_node
from single_node import onnx_reference, run_node

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
FUNCTIONS = {"LSTM": 3, "GRU": 2, "RNN": 1}
OPS = tuple(GATES)
DIRECTIONS = ("forward", "reverse", "bidirectional")
LENGTH, BATCH, FEATURES, HIDDEN = 5, 3, 4, 2
LENGTHS = np.array([5, 2, 3], np.int32)
ALL_FUNCTIONS: Sequence[tuple[str, dict[str, list[float]]]] = (
    ("Affine", {"activation_alpha": [0.7], "activation_beta": [0.1]}),
    ("Elu", {"activation_alpha": [1.5]}),
    ("HardSigmoid", {"activation_alpha": [0.3], "activation_beta": [0.4]}),
    ("LeakyRelu", {"activation_alpha": [0.2]}),
    ("Relu", {}),
    ("ScaledTanh", {"activation_alpha": [0.8], "activation_beta": [0.5]}),
    ("Sigmoid", {}),
    ("Softplus", {}),
    ("Softsign", {}),
    ("Tanh", {}),
    ("ThresholdedRelu", {"activation_alpha": [0.3]}),
)


def arguments(
    op: str, direction: str = "forward", dtype: str = "float32", batch: int = BATCH
) -> list[AnyArray | None]:
    """Return all inputs of an operator, lengths of sequences and peepholes included."""
    d = 2 if direction == "bidirectional" else 1
    rows = GATES[op] * HIDDEN
    shapes: list[tuple[int, ...]] = [
        (LENGTH, batch, FEATURES),
        (d, rows, FEATURES),
        (d, rows, HIDDEN),
        (d, 2 * rows),
        *[(d, batch, HIDDEN)] * (2 if op == "LSTM" else 1),
        *[(d, 3 * HIDDEN)] * (op == "LSTM"),
    ]
    drawn = [random_array(dtype, shape, seed, -1, 1) for seed, shape in enumerate(shapes)]
    return [*drawn[:4], LENGTHS[:batch], *drawn[4:]]


def check(op: str, inputs: Sequence[AnyArray | None], **attributes: Any) -> None:
    attributes["hidden_size"] = HIDDEN
    n_outputs = 3 if op == "LSTM" else 2
    found = run_node(op, inputs, attributes, n_outputs)
    for got, wanted in zip(found, runtime_node(op, inputs, attributes, n_outputs), strict=True):
        assert got.shape == wanted.shape
        np.testing.assert_allclose(got, wanted, 1e-5, 1e-5)


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("op", OPS)
def test_all_inputs_at_once_give_what_the_runtime_gives(op: str, direction: str) -> None:
    check(op, arguments(op, direction), direction=direction)


@pytest.mark.parametrize("batch", [1, 2, 3, 4])
@pytest.mark.parametrize("op", OPS)
def test_any_number_of_samples_gives_what_the_runtime_gives(op: str, batch: int) -> None:
    inputs = arguments(op, batch=batch)
    inputs[4] = None
    check(op, inputs)


@pytest.mark.parametrize("batch", [2, 3])
@pytest.mark.parametrize("op", OPS)
def test_few_samples_have_the_bits_of_each_alone(op: str, batch: int) -> None:
    hidden = 64
    x, w = np.zeros((2, batch, 1), "float32"), np.zeros((1, GATES[op] * hidden, 1), "float32")
    r = random_array("float32", (1, GATES[op] * hidden, hidden), 1, -1, 1)
    h = random_array("float32", (1, batch, hidden), 2, -1, 1)
    (together,) = run_node(op, [x, w, r, None, None, h], {"hidden_size": hidden})
    for n in range(batch):
        (alone,) = run_node(
            op, [x[:, :1], w, r, None, None, h[:, n : n + 1]], {"hidden_size": hidden}
        )
        np.testing.assert_array_equal(together[:, :, n], alone[:, :, 0])


@pytest.mark.parametrize("absent", range(3, 8))
@pytest.mark.parametrize("op", OPS)
def test_each_optional_input_may_be_absent(op: str, absent: int) -> None:
    inputs = arguments(op, "bidirectional")
    if absent < len(inputs):
        inputs[absent] = None
    check(op, inputs, direction="bidirectional")


@pytest.mark.parametrize("op", OPS)
def test_the_weights_alone_are_enough(op: str) -> None:
    check(op, arguments(op)[:3])


@pytest.mark.parametrize("op", OPS)
def test_clip_bounds_the_gates(op: str) -> None:
    check(op, arguments(op), clip=0.3)


@pytest.mark.parametrize("with_bias", [True, False])
def test_a_linear_reset_acts_on_the_product(with_bias: bool) -> None:
    inputs = arguments("GRU", "bidirectional")
    if not with_bias:
        inputs[3] = None
    check("GRU", inputs, direction="bidirectional", linear_before_reset=1)


@pytest.mark.parametrize("peepholes", [True, False])
def test_a_coupled_lstm_forgets_what_it_does_not_take_in(peepholes: bool) -> None:
    inputs = arguments("LSTM")
    check("LSTM", inputs if peepholes else inputs[:7], input_forget=1)


@pytest.mark.parametrize(("function", "numbers"), ALL_FUNCTIONS)
@pytest.mark.parametrize("op", OPS)
def test_each_function_is_that_of_the_runtime(
    op: str, function: str, numbers: Mapping[str, list[float]]
) -> None:
    n = FUNCTIONS[op]
    attributes = {name: values * n for name, values in numbers.items()}
    check(op, arguments(op), activations=[function] * n, **attributes)


def test_numbers_go_to_the_functions_that_take_them() -> None:
    check(
        "LSTM",
        arguments("LSTM", "bidirectional"),
        direction="bidirectional",
        activations=["Sigmoid", "LeakyRelu", "Tanh", "HardSigmoid", "Tanh", "Elu"],
        activation_alpha=[0.3, 0.4, 0.7],
        activation_beta=[0.6],
    )


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("op", OPS)
def test_batch_first_is_the_same_with_axes_exchanged(op: str, direction: str) -> None:
    inputs = arguments(op, direction)
    n_outputs = 3 if op == "LSTM" else 2
    wanted = run_node(op, inputs, {"direction": direction}, n_outputs)
    swapped = [
        x if x is None or index not in (0, 5, 6) else np.ascontiguousarray(x.swapaxes(0, 1))
        for index, x in enumerate(inputs)
    ]
    y, *states = run_node(op, swapped, {"direction": direction, "layout": 1}, n_outputs)

    np.testing.assert_allclose(y, wanted[0].transpose(2, 0, 1, 3), 1e-6, 1e-6)
    for got, state in zip(states, wanted[1:], strict=True):
        np.testing.assert_allclose(got, state.swapaxes(0, 1), 1e-6, 1e-6)


@pytest.mark.parametrize("op", OPS)
def test_half_precision_is_computed_in_single(op: str) -> None:
    inputs = arguments(op, dtype="float16")
    wide = [x if x is None or x.dtype.kind == "i" else x.astype(np.float32) for x in inputs]
    for got, wanted in zip(run_node(op, inputs), run_node(op, wide), strict=True):
        np.testing.assert_array_equal(got, wanted.astype(np.float16))


@pytest.mark.parametrize("op", OPS)
def test_double_precision_is_kept(op: str) -> None:
    inputs = arguments(op, dtype="float64")
    inputs[4] = None  # the reference reads no lengths
    (got,) = run_node(op, inputs, {"hidden_size": HIDDEN})
    (wanted,) = onnx_reference(op, inputs, {"hidden_size": HIDDEN})

    np.testing.assert_allclose(got, wanted, 1e-12, 1e-12)


@pytest.mark.parametrize("op", OPS)
def test_steps_after_the_end_of_a_sequence_are_zero_whatever_they_hold(op: str) -> None:
    inputs = arguments(op, "bidirectional")
    wanted = run_node(op, inputs, {"direction": "bidirectional"}, 2)
    x = inputs[0]
    assert x is not None
    for sequence, end in enumerate(LENGTHS):
        x[end:, sequence] = np.nan
    y, y_h = run_node(op, inputs, {"direction": "bidirectional"}, 2)

    assert not y[2:, :, 1].any()
    np.testing.assert_array_equal(y, wanted[0])
    np.testing.assert_array_equal(y_h, wanted[1])


@pytest.mark.parametrize("op", OPS)
def test_no_steps_leave_the_first_state(op: str) -> None:
    inputs = arguments(op)
    inputs[0] = np.zeros((0, BATCH, FEATURES), np.float32)
    inputs[4] = None
    y, y_h = run_node(op, inputs, n_outputs=2)

    assert y.shape == (0, 1, BATCH, HIDDEN)
    np.testing.assert_array_equal(y_h, inputs[5])


def test_a_gate_of_one_unit_is_computed_alike_in_single_and_double() -> None:
    rng = np.random.default_rng(3)
    shapes = [(2, 3, 1), (1, 4, 1), (1, 4, 1), None, None, None, None, (1, 3)]
    inputs = [None if of is None else rng.standard_normal(of) for of in shapes]

    (wide,) = run_node("LSTM", inputs)

    (y,) = run_node("LSTM", [None if x is None else x.astype(np.float32) for x in inputs])
    np.testing.assert_allclose(y, wide, rtol=1e-5, atol=1e-7)
