from __future__ import annotations

import arrays
import numpy as np
import pytest
from arrays import EVERY, NUMBERS, random_array
from hypothesis import given, settings
from hypothesis import strategies as st
from plait.devices.errors import KernelError
from single_node import run_node

DTYPES = st.sampled_from(EVERY)
MODES = ("DCR", "CRD")
SIZES = st.tuples(*(st.integers(0, 3) for _ in range(4)))


def channel_of(mode: str, channel: int, row: int, column: int, size: int, channels: int) -> int:
    """Return where the depth keeps a cell of a block, as ONNX orders it in either mode."""
    cell = row * size + column
    return cell * channels + channel if mode == "DCR" else channel * size * size + cell


@pytest.mark.parametrize("mode", MODES)
@given(counts=SIZES, size=st.integers(1, 3), dtype=DTYPES, seed=arrays.SEEDS)
@settings(max_examples=40)
def test_depth_to_space_spreads_channels_over_blocks(
    mode: str, counts: tuple[int, int, int, int], size: int, dtype: str, seed: int
) -> None:
    batch, channels, height, width = counts
    x = random_array(dtype, (batch, channels * size * size, height, width), seed)

    (y,) = run_node("DepthToSpace", [x], {"blocksize": size, "mode": mode})

    assert y.shape == (batch, channels, height * size, width * size)
    for n, c, i, j in np.ndindex(y.shape):
        depth = channel_of(mode, c, i % size, j % size, size, channels)
        assert y[n, c, i, j] == x[n, depth, i // size, j // size]


@pytest.mark.parametrize("mode", MODES)
@given(counts=SIZES, size=st.integers(1, 3), dtype=DTYPES, seed=arrays.SEEDS)
@settings(max_examples=40)
def test_space_to_depth_piles_blocks_up_as_channels(
    mode: str, counts: tuple[int, int, int, int], size: int, dtype: str, seed: int
) -> None:
    batch, channels, height, width = counts
    x = random_array(dtype, (batch, channels, height * size, width * size), seed)

    (y,) = run_node("SpaceToDepth", [x], {"blocksize": size, "mode": mode})

    assert y.shape == (batch, channels * size * size, height, width)
    for n, c, i, j in np.ndindex(x.shape):
        depth = channel_of(mode, c, i % size, j % size, size, channels)
        assert y[n, depth, i // size, j // size] == x[n, c, i, j]


@given(
    shape=arrays.shapes(min_rank=2, max_rank=2),
    k=st.integers(-7, 7),
    dtype=st.sampled_from((*NUMBERS, "bool")),
    made=st.none() | st.sampled_from((*NUMBERS, "bool")),
)
@settings(max_examples=60)
def test_eye_like_is_one_on_a_diagonal(
    shape: tuple[int, int], k: int, dtype: str, made: str | None
) -> None:
    attributes = {"k": k} if made is None else {"k": k, "dtype": made}

    (y,) = run_node("EyeLike", [random_array(dtype, shape, 1)], attributes)

    wanted = [[j - i == k for j in range(shape[1])] for i in range(shape[0])]
    np.testing.assert_array_equal(y, np.array(wanted, made or dtype).reshape(shape), strict=True)


@pytest.mark.parametrize("time_axis", [0, 1])
@given(shape=arrays.shapes(min_rank=2), dtype=DTYPES, seed=arrays.SEEDS)
@settings(max_examples=40)
def test_reverse_sequence_reverses_the_start_of_each_sequence(
    time_axis: int, shape: tuple[int, ...], dtype: str, seed: int
) -> None:
    x, batch_axis = random_array(dtype, shape, seed), 1 - time_axis
    rng = np.random.default_rng(seed)
    lengths = rng.integers(0, shape[time_axis], shape[batch_axis], endpoint=True)

    (y,) = run_node(
        "ReverseSequence", [x, lengths], {"time_axis": time_axis, "batch_axis": batch_axis}
    )

    wanted = x.copy()
    by_batch = wanted if time_axis == 1 else wanted.swapaxes(0, 1)
    for sequence, length in zip(by_batch, lengths, strict=True):
        sequence[:length] = sequence[:length][::-1].copy()
    np.testing.assert_array_equal(y, wanted, strict=True)


@pytest.mark.parametrize("length", [-1, 4])
def test_reverse_sequence_refuses_a_length_outside_the_tensor(length: int) -> None:
    x = random_array("float32", (3, 2), 1)

    with pytest.raises(KernelError, match=str(length)):
        run_node("ReverseSequence", [x, np.array([1, length])])
