from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from plait.graph.core.infer import infer_node
from plait.graph.core.ir import Node
from plait.graph.core.operator import Call, find_operator
from plait.graph.values.errors import ShapeError
from plait.graph.values.tensor import Dim, Shape, TensorSpec

Dims = Sequence[Dim] | None
INTEGERS = {"AffineGrid": (1,), "RoiAlign": (2,)}
X = ("n", 4, 8, "w")


def infer(op: str, *shapes: Dims, size: Sequence[int] | None = None, **given: Any) -> Shape | None:
    """Return the output's shape; `size` is the value of the last input."""
    attributes = find_operator(op).complete(given, op)
    whole = INTEGERS.get(op, ())
    specs = [TensorSpec("int64" if i in whole else "float32", s) for i, s in enumerate(shapes)]
    values: list[Any] = [None] * len(specs)
    if size is not None:
        specs.append(TensorSpec("int64", (len(size),)))
        values.append(np.array(size))
    node = Node("node", op, tuple(f"x{i}" for i in range(len(specs))), ("y",), attributes)
    (y,) = infer_node(node, Call(tuple(specs), tuple(values), attributes))
    return y.shape


def test_a_grid_says_how_many_places_are_seen() -> None:
    assert infer("GridSample", X, ("m", 5, "v", 2)) == ("n", 4, 5, "v")
    assert infer("GridSample", ("n", 4, 8), ("n", 5, 1)) == ("n", 4, 5)
    assert infer("GridSample", X, None) is None


def test_a_size_says_how_long_an_affine_grid_is() -> None:
    assert infer("AffineGrid", ("n", 2, 3), size=(3, 1, 4, 5)) == (3, 4, 5, 2)
    assert infer("AffineGrid", None, size=(3, 1, 4, 5, 6)) == (3, 4, 5, 6, 3)


def test_a_size_that_is_computed_leaves_the_lengths_open() -> None:
    assert infer("AffineGrid", ("n", 2, 3), (4,)) == ("n", "y.shape[1]", "y.shape[2]", 2)
    assert infer("AffineGrid", ("n", 3, 4), None) == ("n", *(f"y.shape[{i}]" for i in (1, 2, 3)), 3)
    assert infer("AffineGrid", None, None) is None


def test_there_is_one_result_for_each_region() -> None:
    found = infer("RoiAlign", X, ("r", 4), ("s",), output_height=3, output_width=2)
    assert found == ("r", 4, 3, 2)
    assert infer("RoiAlign", X, ("r", 4), (7,)) == (7, 4, 1, 1)
    assert infer("RoiAlign", X, None, None) is None


def test_a_deformable_convolution_has_the_outputs_of_a_plain_one() -> None:
    assert infer("DeformConv", X, (6, 4, 3, 3), None) == ("n", 6, 6, "(w-2)")
    given: dict[str, Any] = {"pads": [1] * 4, "strides": [2, 2], "group": 2, "offset_group": 4}
    shapes: list[Dims] = [("n", 4, 8, 8), (6, 2, 3, 3), ("n", 72, 4, 4), (6,), ("n", 36, 4, 4)]
    assert infer("DeformConv", *shapes, **given) == ("n", 6, 4, 4)
    assert infer("DeformConv", None, None, None) is None


W, OFFSET = (6, 4, 3, 3), (2, 18, 6, 6)
IMAGE = (2, 4, 8, 8)
REFUSED: dict[str, tuple[str, list[Dims], dict[str, Any], str]] = {
    "grid rank": ("GridSample", [X, ("n", 5, 2)], {}, "does not name places"),
    "grid axes": ("GridSample", [X, ("n", 5, 5, 3)], {}, "does not name places"),
    "grid batch": ("GridSample", [(2, 1, 3, 3), (3, 5, 5, 2)], {}, "batch of 2"),
    "no cells": ("GridSample", [(2, 1, 0, 3), (2, 5, 5, 2)], {}, "no cells to read"),
    "no image": ("GridSample", [(2, 1), (2, 5)], {}, "at least 3 dimensions"),
    "theta": ("AffineGrid", [(1, 2, 2)], {"size": (1, 1, 4, 4)}, "no affine maps of 2"),
    "affine rank": ("AffineGrid", [(1, 1, 2)], {"size": (1, 1, 4)}, "over 1 spatial"),
    "affine batch": ("AffineGrid", [(2, 2, 3)], {"size": (1, 1, 4, 4)}, "batch of 2"),
    "affine size": ("AffineGrid", [(1, 2, 3)], {"size": (1, 1, -4, 4)}, "is not a shape"),
    "rois": ("RoiAlign", [X, (3, 5), (3,)], {}, r"rois must have the shape \[any, 4\]"),
    "owners": ("RoiAlign", [X, (3, 4), (2,)], {}, "3 regions and 2 batch_indices"),
    "roi image": ("RoiAlign", [(1, 2, 3), (3, 4), (3,)], {}, "the input must have the shape"),
    "roi cells": ("RoiAlign", [(1, 2, 3, 0), (3, 4), (3,)], {}, "no cells to read"),
    "volumes": ("DeformConv", [(1, 1, 4, 4, 4), None, None], {}, "over 3 spatial dimensions"),
    "channels": ("DeformConv", [IMAGE, (6, 3, 3, 3), None], {}, r"\[any, 3, any, any\]"),
    "groups": ("DeformConv", [IMAGE, W, OFFSET], {"offset_group": 3}, "into 3 groups"),
    "kernel": ("DeformConv", [IMAGE, W, OFFSET], {"kernel_shape": [3, 2]}, "the weights must"),
    "offset": ("DeformConv", [IMAGE, W, (2, 18, 6, 5)], {}, "the offset must"),
    "bias": ("DeformConv", [IMAGE, W, OFFSET, (5,)], {}, "the bias must"),
    "mask": ("DeformConv", [IMAGE, W, OFFSET, (6,), (2, 18, 6, 6)], {}, "the mask must"),
}


@pytest.mark.parametrize(("op", "shapes", "given", "message"), REFUSED.values(), ids=REFUSED)
def test_what_does_not_fit_is_refused(
    op: str, shapes: list[Dims], given: dict[str, Any], message: str
) -> None:
    with pytest.raises(ShapeError, match=message):
        infer(op, *shapes, **given)
