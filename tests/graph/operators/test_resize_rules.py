from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from plait.graph.building.builder import GraphBuilder
from plait.graph.core.infer import infer_node
from plait.graph.core.ir import Node
from plait.graph.core.operator import Call, find_operator
from plait.graph.operators.resampling import Target, resample_axes
from plait.graph.values.errors import ShapeError
from plait.graph.values.tensor import Dim, TensorSpec

COMPUTED = "computed"
CROP = {"coordinate_transformation_mode": "tf_crop_and_resize"}


def infer(
    x: Sequence[Dim] | None,
    roi: Any = None,
    scales: Any = None,
    sizes: Any = None,
    dtype: str = "float32",
    **attributes: Any,
) -> TensorSpec:
    """Infer a Resize; each input is a list of numbers, COMPUTED, or absent."""
    complete = find_operator("Resize").complete(attributes, "Resize")
    specs: list[TensorSpec | None] = [TensorSpec(dtype, x)]
    values: list[Any] = [None]
    for given, kind in ((roi, "float32"), (scales, "float32"), (sizes, "int64")):
        known = None if given is None or given is COMPUTED else np.array(given, kind)
        values.append(known)
        shape = ("k",) if known is None else known.shape
        specs.append(None if given is None else TensorSpec(kind, shape))
    names = tuple(
        name if spec else ""
        for name, spec in zip(("x", "roi", "scales", "sizes"), specs, strict=True)
    )
    call = Call(tuple(specs), tuple(values), complete)
    return infer_node(Node("node", "Resize", names, ("y",), complete), call)[0]


LENGTHS: list[tuple[Sequence[Dim], dict[str, Any], Sequence[Dim]]] = [
    ((1, 3, "h", "w"), {"scales": [1, 1, 2, 0.5]}, (1, 3, "h*2", "w//2")),
    (("n", "h"), {"scales": [1, 5 / 3]}, ("n", "h*5//3")),
    ((6, 5), {"scales": [10 / 6, 0.6]}, (10, 3)),
    ((7,), {"scales": [0.1]}, (0,)),
    (("n", 3, "h", "w"), {"sizes": [1, 3, 8, 9]}, (1, 3, 8, 9)),
    (("n", 3, "h", 5), {"sizes": [8, 9], "axes": (2, -1)}, ("n", 3, 8, 9)),
    ((4, 6), {"sizes": [8, 9], "keep_aspect_ratio_policy": "not_larger"}, (6, 9)),
    ((4, 6), {"sizes": [8, 9], "keep_aspect_ratio_policy": "not_smaller"}, (8, 12)),
    ((2, 7), {"sizes": [1, 7], "keep_aspect_ratio_policy": "not_larger"}, (1, 4)),
    (("h",), {"sizes": [8], "keep_aspect_ratio_policy": "not_larger"}, (8,)),
    (
        ("h", 6),
        {"sizes": [8, 9], "keep_aspect_ratio_policy": "not_larger"},
        ("min(8,(2*9*h+6)//(2*6))", "min((2*8*6+h)//(2*h),9)"),
    ),
]


@pytest.mark.parametrize(("x", "arguments", "wanted"), LENGTHS)
def test_lengths_are_scaled_or_given(
    x: Sequence[Dim], arguments: dict[str, Any], wanted: Sequence[Dim]
) -> None:
    assert infer(x, **arguments).shape == tuple(wanted)


def test_an_empty_input_counts_as_absent() -> None:
    assert infer((2, 3), roi=[], scales=[], sizes=[4, 5]).shape == (4, 5)


def test_an_unknown_rank_stays_unknown() -> None:
    assert infer(None, scales=[1, 2]).shape is None


@pytest.mark.parametrize(
    "arguments",
    [
        {"scales": COMPUTED},
        {"sizes": COMPUTED},
        {"roi": COMPUTED, "sizes": [4, 5], **CROP},
    ],
)
def test_lengths_are_unknown_while_what_tells_them_is_computed(arguments: dict[str, Any]) -> None:
    y = infer(("n", 3, "h", "w"), axes=(2, 3), **arguments)
    assert y.shape == ("n", 3, "y.shape[2]", "y.shape[3]")


def test_lengths_that_two_nodes_compute_are_not_taken_for_the_same() -> None:
    builder = GraphBuilder()
    x = builder.input("x", "float32", (3,))
    first, second = (
        builder.op("Resize", x, None, None, builder.input(f"sizes{i}", "int64", (1,)))
        for i in range(2)
    )
    builder.output("first", first)
    builder.output("second", second)
    tensors = builder.build().tensors
    assert tensors["first"].shape != tensors["second"].shape


REFUSED: dict[str, tuple[Sequence[Dim], dict[str, Any], str]] = {
    "neither": ((2, 3), {}, "neither scales and sizes"),
    "both": ((2, 3), {"scales": [1, 1], "sizes": [2, 3]}, "both scales and sizes"),
    "too few": ((2, 3), {"scales": [2]}, "a list of 2 is needed"),
    "zero": ((2, 3), {"scales": [1, 0]}, "out of range"),
    "endless": ((2, 3), {"scales": [1, np.inf]}, "out of range"),
    "negative": ((2, 3), {"sizes": [1, -3]}, "out of range"),
    "axis": ((2, 3), {"scales": [1], "axes": (2,)}, "outside a tensor of rank 2"),
    "empty": ((0, 3), {"sizes": [2, 3]}, "axis 0 has no cells"),
    "no ratio": (
        (0, 3),
        {"sizes": [0, 3], "keep_aspect_ratio_policy": "not_larger"},
        "no aspect ratio",
    ),
    "no region": ((2, 3), {"sizes": [2, 3], **CROP}, "needs a region"),
    "half a region": ((2, 3), {"roi": [0, 0], "sizes": [2, 3], **CROP}, "a list of 4 is needed"),
    "a number": ((2, 3), {"sizes": 3}, "a list of 2 is needed"),
    "a matrix": ((2, 3), {"scales": [[1, 2], [1, 2]]}, "a list of 2 is needed"),
    "no axes": ((), {"sizes": [2]}, "no axis to resize"),
    "far too much": ((2, 3), {"scales": [1, 1e30]}, "is not a dimension"),
    "bool": ((2, 3), {"sizes": [2, 3], "dtype": "bool", "mode": "linear"}, "float or integer"),
}


@pytest.mark.parametrize(("x", "arguments", "what"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_resized_is_refused_with_a_way_out(
    x: Sequence[Dim], arguments: dict[str, Any], what: str
) -> None:
    with pytest.raises(ShapeError, match=what) as caught:
        infer(x, **arguments)
    assert caught.value.fix
    assert "Resize" in str(caught.value.at)


def attributes(**given: Any) -> Mapping[str, Any]:
    return find_operator("Resize").complete(given, "Resize")


def test_a_scale_that_yields_a_whole_length_stands_for_that_ratio() -> None:
    scale = float(np.float32(10 / 6))
    (axis,) = resample_axes((6,), attributes(), Target(scales=[scale]))
    assert (axis.resized, axis.width) == (10, Fraction(10))


def test_a_scale_that_yields_a_fraction_is_kept_as_it_is() -> None:
    (axis,) = resample_axes((3,), attributes(), Target(scales=[0.5]))
    assert (axis.resized, axis.width) == (1, Fraction(3, 2))


def test_a_region_belongs_to_the_axes_that_are_named() -> None:
    target = Target(sizes=[4, 4], region=[0.25, 0.5, 0.75, 1.0])
    first, second, third = resample_axes((8, 8, 8), attributes(axes=(2, 0)), target)
    assert (first.start, first.end) == (0.5, 1.0)
    assert (second.start, second.end) == (0.0, 1.0)
    assert (third.start, third.end) == (0.25, 0.75)
