from __future__ import annotations

from typing import Any

import numpy as np
import plait as pl
import pytest
from arrays import SEEDS, AnyArray, random_array
from hypothesis import assume, given
from hypothesis import strategies as st
from single_node import onnx_reference, run_node

MODES = ("nearest", "linear", "cubic")
PADDINGS = ("zeros", "border", "reflection")


@st.composite
def attributes(draw: st.DrawFn) -> dict[str, Any]:
    return {
        "mode": draw(st.sampled_from(MODES)),
        "padding_mode": draw(st.sampled_from(PADDINGS)),
        "align_corners": draw(st.integers(0, 1)),
    }


def random_grid(shape: tuple[int, ...], seed: int, reach: int = 3) -> AnyArray:
    """Return places in and around [-1, 1], some of them at its very ends."""
    grid = random_array("float32", shape, seed, -reach, reach)
    rng = np.random.default_rng(seed)
    return np.where(rng.random(shape) < 0.1, rng.choice(np.array([-1, 1], "float32"), shape), grid)


def sample(x: AnyArray, grid: AnyArray, **given: Any) -> AnyArray:
    (y,) = run_node("GridSample", [x, grid], given)
    return y


@given(st.data(), attributes(), SEEDS)
def test_grid_sample_gives_what_onnx_says(
    data: st.DataObject, given: dict[str, Any], seed: int
) -> None:
    rank = data.draw(st.integers(1, 3))
    lengths = st.lists(st.integers(1, 4), min_size=rank, max_size=rank)
    spatial, outputs = data.draw(lengths), data.draw(lengths)
    # The reference divides by zero where the bounds to reflect at are one.
    assume(given["padding_mode"] != "reflection" or not given["align_corners"] or min(spatial) > 1)
    # And it moves places to the border, where each cell around a place should be moved.
    assume((given["padding_mode"], given["mode"]) != ("border", "cubic"))
    batch, channels = data.draw(st.integers(1, 2)), data.draw(st.integers(1, 3))
    x = random_array("float32", (batch, channels, *spatial), seed)
    grid = random_grid((batch, *outputs, rank), seed + 1)
    (wanted,) = onnx_reference("GridSample", [x, grid], given)
    np.testing.assert_allclose(sample(x, grid, **given), wanted, 1e-4, 1e-4)


@pytest.mark.parametrize("device", ["cpu", "formal", "ort"])
@pytest.mark.parametrize("mode", MODES)
def test_the_border_goes_on_outside(mode: str, device: str) -> None:
    """PyTorch and ONNX Runtime repeat the border for each cell; ONNX's reference does not."""
    if not pl.devices.probe(device).found:
        pytest.skip(f"{device} is not here")
    x, margin = random_array("float64", (1, 2, 4, 5), 1), 8
    rng = np.random.default_rng(2)
    places = rng.uniform(-3, 7, (1, 6, 7, 2))  # in cells, columns first
    wide = np.pad(x, [(0, 0), (0, 0), *[(margin, margin)] * 2], "edge")

    def run(image: AnyArray, cells: AnyArray, padding: str) -> AnyArray:
        grid = cells / (np.array(image.shape[:1:-1]) - 1) * 2 - 1
        b = pl.GraphBuilder("grid")
        given = b.input("x", "float64", image.shape), b.input("grid", "float64", grid.shape)
        y = b.op("GridSample", *given, mode=mode, padding_mode=padding, align_corners=True)
        b.output("y", y)
        found: AnyArray = pl.run(b.build(), {"x": image, "grid": grid}, devices=device)["y"]
        return found

    found, wanted = run(x, places, "border"), run(wide, places + margin, "zeros")
    np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("align_corners", [0, 1])
@pytest.mark.parametrize("mode", MODES)
def test_the_middles_of_cells_show_the_cells(mode: str, align_corners: int) -> None:
    x = random_array("float64", (1, 2, 3, 5), 1)
    rows, columns = (np.arange(n) * 2 / (n - 1) - 1 for n in (3, 5))
    if not align_corners:
        rows, columns = rows * 2 / 3, columns * 4 / 5
    grid = np.stack(np.meshgrid(columns, rows), -1)[None]
    np.testing.assert_allclose(sample(x, grid, mode=mode, align_corners=align_corners), x, 1e-12)


@pytest.mark.parametrize("mode", MODES)
def test_a_single_cell_reflects_into_itself(mode: str) -> None:
    x = np.full((1, 1, 1, 1), 7, np.float32)
    grid = random_grid((1, 2, 3, 2), 4)
    y = sample(x, grid, mode=mode, padding_mode="reflection", align_corners=1)
    np.testing.assert_allclose(y, np.full((1, 1, 2, 3), 7), 1e-6)


@pytest.mark.parametrize("mode", MODES)
def test_places_far_outside_are_zero_whatever_the_cells_are(mode: str) -> None:
    x = np.full((1, 1, 2, 2), np.inf, np.float32)
    places = [[-np.inf, 0], [np.inf, 0], [3e38, -3e38], [0, 1e9]]
    grid = np.array([[places]], "float32")
    np.testing.assert_array_equal(sample(x, grid, mode=mode), np.zeros((1, 1, 1, 4)))


def test_a_place_that_is_no_number_is_interpolated_to_none() -> None:
    x, grid = np.ones((1, 1, 2, 2), np.float32), np.full((1, 1, 1, 2), np.nan, np.float32)
    for padding in PADDINGS:
        assert np.isnan(sample(x, grid, padding_mode=padding)).all()


@pytest.mark.parametrize("mode", ["linear", "cubic"])
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "uint64"])
def test_integers_lose_the_fraction_of_what_is_interpolated(dtype: str, mode: str) -> None:
    x = random_array(dtype, (1, 2, 4, 4), 5, 0, 100)
    grid = random_grid((1, 5, 5, 2), 6, 1)
    exact = sample(x.astype(np.float64), grid.astype(np.float64), mode=mode)
    whole = np.trunc(exact.clip(np.iinfo(dtype).min, np.iinfo(dtype).max))
    certain = np.abs(exact - np.rint(exact)) > 1e-3
    found = sample(x, grid, mode=mode)
    assert found.dtype == dtype
    np.testing.assert_array_equal(found[certain], whole[certain])


def test_overshooting_integers_stay_in_their_range() -> None:
    x = np.array([[[[255, 255, 0, 0]]]], "uint8")
    grid = np.stack([np.linspace(-1, 1, 30), np.zeros(30)], -1).reshape(1, 1, 30, 2)
    exact = sample(x.astype(np.float64), grid, mode="cubic", padding_mode="border")
    found = sample(x, grid, mode="cubic", padding_mode="border")
    assert exact.max() > 256 > 255 > -1 > exact.min()
    assert (found[exact > 255.5] == 255).all()
    assert (found[exact < 0] == 0).all()


def test_the_nearest_integers_are_copied_to_the_last_bit() -> None:
    x = np.array([[[[2**63 - 1, 2**62 + 1]]]])
    grid = np.array([[[[-0.5, 0], [0.5, 0]]]], "float32")
    np.testing.assert_array_equal(sample(x, grid, mode="nearest"), x)


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
def test_parts_of_complex_numbers_are_interpolated_alike(dtype: str) -> None:
    x, grid = random_array(dtype, (2, 1, 3, 3), 7), random_grid((2, 2, 4, 2), 8)
    found = sample(x, grid, mode="cubic")
    parts = [sample(np.ascontiguousarray(part), grid, mode="cubic") for part in (x.real, x.imag)]
    np.testing.assert_allclose(found, parts[0] + 1j * parts[1], 1e-5, 1e-5)


def test_truths_are_true_where_a_cell_around_is() -> None:
    x = np.array([[[[False, False, True, False]]]])
    grid = np.array([[[[-0.9, 0], [0, 0], [0.2, 0], [0.8, 0]]]], "float32")
    np.testing.assert_array_equal(sample(x, grid), [[[[False, True, True, False]]]])


@pytest.mark.parametrize("mode", MODES)
def test_halves_are_computed_as_singles(mode: str) -> None:
    x, grid = random_array("float16", (1, 2, 4, 4), 9), random_grid((1, 3, 3, 2), 10)
    grid = grid.astype(np.float16)
    wide = sample(x.astype(np.float32), grid.astype(np.float32), mode=mode)
    np.testing.assert_array_equal(sample(x, grid, mode=mode), wide.astype(np.float16))


def test_many_points_are_read_block_by_block() -> None:
    x, grid = random_array("float32", (1, 5, 9, 8), 11), random_grid((1, 100, 120, 2), 12)
    whole = sample(x, grid)
    for row in (0, 57, 99):
        np.testing.assert_array_equal(whole[:, :, [row]], sample(x, grid[:, [row]]))


@pytest.mark.parametrize("shape", [(0, 2, 3, 3), (2, 0, 3, 3)])
def test_nothing_is_sampled_to_nothing(shape: tuple[int, ...]) -> None:
    x = np.zeros(shape, np.float32)
    assert sample(x, random_grid((shape[0], 2, 2, 2), 13)).shape == (*shape[:2], 2, 2)


@given(st.data(), SEEDS)
def test_affine_grid_gives_what_onnx_says(data: st.DataObject, seed: int) -> None:
    rank, align = data.draw(st.integers(2, 3)), data.draw(st.integers(0, 1))
    least = 2 if align else 1  # the reference divides by zero where there is one cell
    spatial = data.draw(st.lists(st.integers(least, 5), min_size=rank, max_size=rank))
    batch = data.draw(st.integers(1, 3))
    theta = random_array("float32", (batch, rank, rank + 1), seed, -2, 2)
    inputs = [theta, np.array([batch, 4, *spatial])]
    (found,) = run_node("AffineGrid", inputs, {"align_corners": align}, constant={1})
    (wanted,) = onnx_reference("AffineGrid", inputs, {"align_corners": align})
    np.testing.assert_allclose(found, wanted, 1e-5, 1e-5)


@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_the_identity_maps_the_grid_to_itself(dtype: str) -> None:
    theta = np.eye(2, 3, dtype=dtype)[None]
    (y,) = run_node("AffineGrid", [theta, np.array([1, 1, 2, 4])], constant={1})
    assert y.dtype == dtype
    columns, rows = np.meshgrid([-0.75, -0.25, 0.25, 0.75], [-0.5, 0.5])
    np.testing.assert_array_equal(y, np.stack([columns, rows], -1)[None])


def test_the_corners_of_an_aligned_grid_are_those_of_the_square() -> None:
    theta = np.eye(2, 3, dtype=np.float32)[None]
    size = np.array([1, 1, 3, 1])
    (y,) = run_node("AffineGrid", [theta, size], {"align_corners": 1}, constant={1})
    np.testing.assert_array_equal(y[0, :, 0], [[0, -1], [0, 0], [0, 1]])
