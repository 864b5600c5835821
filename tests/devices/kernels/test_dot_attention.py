from __future__ import annotations

import numpy as np
import pytest
from arrays import AnyArray, random_array
from formal_node import formal_node
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from node_strategies.attending import attention as drawn_attention
from node_strategies.comparing import check
from plait.devices.kernels import attention_blocks
from plait.devices.kernels.registry import find_kernel
from plait.graph.operators.attention import MASKED, WEIGHTS
from single_node import run_node, single_node_graph


@pytest.fixture(params=[1, 7, 40, 1 << 17])
def block(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have blocks of one score, or of some: then of parts of rows, heads and samples."""
    monkeypatch.setattr(attention_blocks, "BLOCK", request.param)


@pytest.mark.usefixtures("block")
@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_blocks_of_any_size_give_what_the_definition_says(data: st.DataObject) -> None:
    case = drawn_attention(data.draw)
    node = "Attention", case.inputs, case.attributes, case.n_outputs
    check(case, run_node(*node), formal_node(*node))


def halves(*shape: int, seed: int = 0, dtype: str = "float32") -> AnyArray:
    return random_array(dtype, shape, seed, -1, 1)


Q, K, V = halves(2, 4, 5, 3), halves(2, 2, 6, 3, seed=1), halves(2, 2, 6, 7, seed=2)


def by_hand(q: AnyArray, k: AnyArray, v: AnyArray, seen: AnyArray) -> AnyArray:
    """Return attention of heads that share keys, for queries that see one key at least."""
    group = q.shape[1] // k.shape[1]
    scores = q @ np.repeat(k, group, 1).swapaxes(2, 3) / np.sqrt(np.float32(q.shape[3]))
    powers = np.where(seen, np.exp(scores), 0)
    weights = powers / powers.sum(-1, keepdims=True)
    return np.asarray(weights @ np.repeat(v, group, 1))


@pytest.mark.usefixtures("block")
def test_windows_hide_keys_far_from_a_query() -> None:
    (y,) = run_node("Attention", [Q, K, V], {"left_window_size": 1, "right_window_size": 2})
    far = np.arange(6) - np.arange(5)[:, None]
    np.testing.assert_allclose(y, by_hand(Q, K, V, (far >= -1) & (far <= 2)), 1e-5, 1e-6)


@pytest.mark.usefixtures("block")
def test_a_cache_in_two_parts_is_the_sequence() -> None:
    (whole,) = run_node("Attention", [Q[:, :, :5], K[:, :, :5], V[:, :, :5]], {"is_causal": 1})
    past = [K[:, :, :2], V[:, :, :2]]
    inputs = [Q[:, :, 2:], K[:, :, 2:5], V[:, :, 2:5], None, *past]
    y, key, value = run_node("Attention", inputs, {"is_causal": 1}, 3)
    np.testing.assert_allclose(y, whole[:, :, 2:], 1e-5, 1e-6)
    np.testing.assert_array_equal(key, K[:, :, :5])
    np.testing.assert_array_equal(value, V[:, :, :5])


@pytest.mark.usefixtures("block")
def test_keys_that_are_not_used_count_nothing() -> None:
    used = np.array([6, 4])
    (y,) = run_node("Attention", [Q, K, V, None, None, None, used])
    for n, length in enumerate(used):
        part = [x[n : n + 1, :, :length] for x in (K, V)]
        (alone,) = run_node("Attention", [Q[n : n + 1], *part])
        np.testing.assert_allclose(y[n : n + 1], alone, 1e-5, 1e-6)


@pytest.mark.usefixtures("block")
@pytest.mark.parametrize("mode", [MASKED, WEIGHTS])
def test_a_query_that_sees_nothing_gives_zeros(mode: int) -> None:
    mask = np.ones((5, 6), bool)
    mask[3] = False
    y, _, _, scores = run_node("Attention", [Q, K, V, mask], {"qk_matmul_output_mode": mode}, 4)
    assert (y[:, :, 3] == 0).all()
    assert (scores[:, :, 3] == (0 if mode == WEIGHTS else -np.inf)).all()
    assert np.isfinite(y).all()


def test_scores_before_the_cap_are_the_products() -> None:
    y, _, _, scores = run_node("Attention", [Q, Q, Q], {"softcap": 0.5, "scale": 1.0}, 4)
    np.testing.assert_allclose(scores, Q @ Q.swapaxes(2, 3), 1e-5, 1e-6)
    assert y.shape == Q.shape


def test_large_scores_do_not_overflow() -> None:
    (y,) = run_node("Attention", [Q, K, V], {"scale": 1e4})
    assert np.isfinite(y).all()


def test_halves_are_rounded_once() -> None:
    narrow = [x.astype(np.float16) for x in (Q, K, V)]
    wide = [x.astype(np.float32) for x in narrow]
    (found,), (exact,) = run_node("Attention", narrow), run_node("Attention", wide)
    assert found.dtype == np.float16
    np.testing.assert_array_equal(found, exact.astype(np.float16))


@pytest.mark.parametrize("shape", [(0, 2, 3, 4), (2, 0, 3, 4), (2, 2, 0, 4), (2, 2, 3, 0)])
def test_nothing_gives_nothing(shape: tuple[int, ...]) -> None:
    x = np.zeros(shape, np.float32)
    assert run_node("Attention", [x, x, x])[0].shape == shape


def test_what_is_kept_of_scores_is_a_block() -> None:
    x = np.zeros((1, 4, 2048, 8), np.float32)
    graph = single_node_graph("Attention", [x, x, x])
    kernel = find_kernel("Attention", "cpu")
    assert kernel is not None
    assert kernel.scratch is not None
    scratch = kernel.scratch(graph.call(graph.nodes[0]), graph.output_specs(graph.nodes[0]))
    assert sum(spec.nbytes for spec in scratch) < 6 * attention_blocks.BLOCK
