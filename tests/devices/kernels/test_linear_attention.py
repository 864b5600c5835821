from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from arrays import SEEDS, AnyArray, random_array
from hypothesis import given, settings
from hypothesis import strategies as st
from single_node import onnx_reference, run_node

RULES = ("linear", "gated", "delta", "gated_delta")


@st.composite
def cases(draw: st.DrawFn) -> tuple[list[AnyArray | None], dict[str, Any]]:
    """Draw inputs and attributes; which inputs there are depends on the update rule."""
    rule, seed = draw(st.sampled_from(RULES)), draw(SEEDS)
    batch, steps, heads, group, depth, width = (draw(st.integers(1, 3)) for _ in range(6))
    state = (batch, heads, depth, width) if draw(st.booleans()) else None
    decays = heads * draw(st.sampled_from((1, depth)))
    shapes: list[tuple[int, ...] | None] = [
        (batch, steps, heads * group * depth),
        (batch, steps, heads * depth),
        (batch, steps, heads * width),
        state,
        (batch, steps, decays) if "gated" in rule else None,
        (batch, steps, draw(st.sampled_from((1, heads)))) if "delta" in rule else None,
    ]
    inputs = [
        None if shape is None else random_array("float32", shape, seed + i, -1, 1)
        for i, shape in enumerate(shapes)
    ]
    attributes = {"update_rule": rule, "q_num_heads": heads * group, "kv_num_heads": heads}
    return inputs, {**attributes, "scale": draw(st.sampled_from((0.0, 0.3)))}


@settings(max_examples=60)
@given(cases())
def test_linear_attention_gives_what_onnx_says(
    case: tuple[list[AnyArray | None], dict[str, Any]],
) -> None:
    inputs, attributes = case
    found = run_node("LinearAttention", inputs, attributes, 2)
    for got, wanted in zip(
        found, onnx_reference("LinearAttention", inputs, attributes, 2), strict=True
    ):
        assert got.shape == wanted.shape
        np.testing.assert_allclose(got, wanted, 1e-5, 1e-5)


def gated_delta(
    steps: int, dtype: str = "float32", state: str | None = None, batch: int = 2
) -> list[AnyArray | None]:
    shapes = [(batch, steps, 12), (batch, steps, 6), (batch, steps, 8), (batch, 2, 3, 4)]
    shapes += [(batch, steps, 6), (batch, steps, 2)]
    dtypes = [dtype] * 3 + [state or dtype] + [dtype] * 2
    return [random_array(dtypes[i], shape, i, -1, 1) for i, shape in enumerate(shapes)]


HEADS = {"q_num_heads": 4, "kv_num_heads": 2}


def test_a_sequence_in_two_parts_is_the_sequence() -> None:
    inputs = gated_delta(5)
    whole = run_node("LinearAttention", inputs, HEADS, 2)
    outputs, state = [], inputs[3]
    for part in (slice(0, 2), slice(2, 5)):
        steps = [None if x is None else x[:, part] for x in inputs]
        steps[3] = state
        output, state = run_node("LinearAttention", steps, HEADS, 2)
        outputs.append(output)
    np.testing.assert_allclose(np.concatenate(outputs, 1), whole[0], 1e-6, 1e-6)
    assert state is not None
    np.testing.assert_allclose(state, whole[1], 1e-6, 1e-6)


@pytest.mark.parametrize("state", ["float16", "float32"])
def test_halves_are_computed_as_singles(state: str) -> None:
    narrow = gated_delta(3, "float16", state)
    found = run_node("LinearAttention", narrow, HEADS, 2)
    wide = [None if x is None else x.astype(np.float32) for x in narrow]
    wanted = run_node("LinearAttention", wide, HEADS, 2)
    assert [y.dtype for y in found] == ["float16", state]
    for got, exact in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(got, exact.astype(got.dtype))


def test_no_steps_leave_the_state_as_it_is() -> None:
    inputs = gated_delta(0)
    output, state = run_node("LinearAttention", inputs, HEADS, 2)
    assert output.shape == (2, 0, 16)
    assert inputs[3] is not None
    np.testing.assert_array_equal(state, inputs[3])


def test_an_empty_batch_is_nothing() -> None:
    output, state = run_node("LinearAttention", gated_delta(3, batch=0), HEADS, 2)
    assert (output.shape, state.shape) == ((0, 3, 16), (0, 2, 3, 4))
