"""The gradient of a convolution's weights, some images or rows at a time."""

from __future__ import annotations

import numpy as np
import pytest
from formal_node import formal_node
from plait.devices.kernels import convolution_gradient
from single_node import AnyArray, run_node

OP = "ConvWeightsGradient"


def numbers(*shape: int, dtype: str = "float64") -> AnyArray:
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(dtype)


@pytest.mark.parametrize("block", [1, 40, 150, 600, 10_000])
@pytest.mark.parametrize("group", [1, 2])
def test_bands_of_rows_and_groups_of_images_add_up(
    monkeypatch: pytest.MonkeyPatch, block: int, group: int
) -> None:
    monkeypatch.setattr(convolution_gradient, "BLOCK", block)
    x, dy = numbers(5, 2, 6, 5), numbers(5, 4, 3, 5)
    attributes = {"kernel_shape": (2, 3), "strides": (2, 1), "pads": (0, 1, 0, 1), "group": group}
    (found,) = run_node(OP, [x, dy], attributes)
    (wanted,) = formal_node(OP, [x, dy], attributes)
    np.testing.assert_allclose(found, wanted, rtol=1e-12)


def test_it_is_what_einsum_makes_of_windows() -> None:
    x, dy = numbers(3, 4, 20, 21, dtype="float32"), numbers(3, 6, 18, 18, dtype="float32")
    (found,) = run_node(OP, [x, dy], {"kernel_shape": (3, 4)})
    windows = np.lib.stride_tricks.sliding_window_view(x, (18, 18), (2, 3))
    wanted = np.einsum("nfhw,ncijhw->fcij", dy, windows)
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("batch", [0, 1])
def test_no_images_give_zeros(batch: int) -> None:
    x, dy = numbers(batch, 2, 5), numbers(batch, 3, 4)
    (found,) = run_node(OP, [x, dy], {"kernel_shape": (2,)})
    assert found.shape == (3, 2, 2)
    assert (found == 0).all() == (batch == 0)
