"""Operators that have a gradient in some forms only say so, and what to do."""

from __future__ import annotations

import numpy as np
import plait as pl
import pytest
from finite_differences import Differences, differentiated
from single_node import AnyArray


def builder(shape: tuple[int | str, ...]) -> tuple[pl.GraphBuilder, str]:
    b = pl.GraphBuilder("node")
    return b, b.input("x", "float64", shape)


@pytest.mark.parametrize(("mode", "wanted"), [("max", "x"), ("avg", "rois")])
def test_samples_that_depend_on_regions_have_no_slope(mode: str, wanted: str) -> None:
    b, x = builder((1, 2, 4, 4))
    rois = b.input("rois", "float64", (3, 4))
    y = b.op("RoiAlign", x, rois, np.zeros(3, np.int64), mode=mode)
    with pytest.raises(pl.GraphError, match="set its sampling_ratio"):
        pl.gradients(b, y, wanted)


def test_a_ratio_must_be_known_to_be_kept() -> None:
    b, x = builder(("h", 4))
    y = b.op("Resize", x, None, None, np.array([3, 9]), keep_aspect_ratio_policy="not_larger")
    with pytest.raises(pl.GraphError, match="the ratio that it keeps is not known"):
        pl.gradients(b, y, x)


def test_a_transform_must_know_its_axis() -> None:
    b, x = builder((4, 4, 2))
    y = b.op("DFT", x, None, b.input("axis", "int64", ()))
    with pytest.raises(pl.GraphError, match="its axis is computed"):
        pl.gradients(b, y, x)


def test_columns_must_know_their_block() -> None:
    b, x = builder((1, 4, 9))
    y = b.op("Col2Im", x, np.array([4, 4]), b.input("block", "int64", (2,)))
    with pytest.raises(pl.GraphError, match="its block_shape is computed"):
        pl.gradients(b, y, x)


@pytest.mark.parametrize("policy", ["not_larger", "not_smaller"])
@pytest.mark.parametrize("sizes", [(7, 9), (3, 8), (0, 4)])
def test_a_region_is_stretched_whatever_the_ratio(policy: str, sizes: tuple[int, int]) -> None:
    rng = np.random.default_rng(0)
    region = np.array([0.1, 0.2, 0.8, 0.9], np.float32)
    attributes = {"axes": [1, 2], "mode": "linear", "keep_aspect_ratio_policy": policy}
    attributes["coordinate_transformation_mode"] = "tf_crop_and_resize"
    given: list[AnyArray | None] = [rng.standard_normal((2, 5, 6)), region, None, np.array(sizes)]
    graph = differentiated("Resize", given, attributes, 1, {1, 2, 3}, [0])
    fed = {"x0": rng.standard_normal((2, 5, 6))}
    fed |= {n: rng.standard_normal(graph.tensors[n].static_shape) for n in graph.inputs[1:]}
    device = Differences()
    device.check(graph, fed, ["x0"])
    device.close()


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_a_matrix_without_inverse_has_the_gradient_of_its_determinant(rank: int) -> None:
    b, x = builder((3, 3))
    b.output("gradient", pl.gradients(b, b.op("Det", x), x))
    diagonal = np.diag(np.arange(3) < rank).astype(np.float64)
    wanted = np.diag([0.0, 0.0, float(rank == 2)])
    found = pl.run(b.build(), {"x": diagonal})["gradient"]
    np.testing.assert_allclose(found, wanted, atol=1e-15)
