"""The gradient of MaxPool."""

from __future__ import annotations

import numpy as np
from single_node import run_node

OP = "MaxPoolGradient"


def test_a_maximum_of_several_windows_gets_the_sum() -> None:
    dy, indices = np.array([[[1.0, 2, 4]]]), np.array([[[1, 1, 3]]])
    shape = np.array([1, 1, 4])
    (found,) = run_node(OP, [dy, indices, shape], {"kernel_shape": (2,)}, constant={2})
    assert found.tolist() == [[[0, 3, 0, 4]]]


def test_halves_are_added_in_single_precision() -> None:
    dy = np.array([[[2048, 1, 1]]], "float16")  # 2048 + 1 is 2048 in halves
    indices, shape = np.array([[[2, 2, 2]]]), np.array([1, 1, 5])
    (found,) = run_node(OP, [dy, indices, shape], {"kernel_shape": (3,)}, constant={2})
    assert found.tolist() == [[[0, 0, 2050, 0, 0]]]
