from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from plait.graph.building.builder import GraphBuilder
from plait.graph.core.infer import get_cost
from plait.graph.values.errors import OperatorError, ShapeError
from plait.graph.values.tensor import Dim, TensorSpec

Shape = Sequence[Dim]


def infer(
    op: str,
    x: Shape | None,
    w: Shape | None,
    b: Shape | None = None,
    dtypes: Sequence[str] = ("float32",) * 3,
    **attributes: Any,
) -> TensorSpec:
    builder = GraphBuilder()
    names: list[str] = []
    for name, shape, dtype in zip("xwb", (x, w, b), dtypes, strict=True):
        if name != "b" or b is not None:
            builder.input(name, dtype, (1,) if shape is None else shape)
            if shape is None:
                builder._tensors[name] = TensorSpec(dtype, None)
            names.append(name)
    builder.output("y", builder.op(op, *names, **attributes))
    return builder.build().tensors["y"]


def test_conv_gives_a_channel_per_row_of_weights() -> None:
    y = infer("Conv", (2, 3, 8, 9), (5, 3, 3, 4), (5,))
    assert y == TensorSpec("float32", (2, 5, 6, 6))


def test_conv_keeps_symbols() -> None:
    y = infer("Conv", ("n", 3, "h", "w"), (8, 3, 3, 3), pads=(1, 1, 1, 1), strides=(2, 1))
    assert y.shape == ("n", 8, "(h+1)//2", "w")


def test_conv_of_an_unknown_rank_has_an_unknown_rank() -> None:
    assert infer("Conv", None, (8, 3, 3, 3)).shape is None
    assert infer("Conv", (1, 3, 8, 8), None).shape is None


def test_conv_takes_kernel_sizes_from_the_attribute_where_weights_are_symbolic() -> None:
    y = infer("Conv", (1, 3, 8), ("m", 3, "k"), kernel_shape=(3,))
    assert y.shape == (1, "m", 6)


def test_conv_transpose_multiplies_dims() -> None:
    y = infer("ConvTranspose", ("n", 6, "h", 5), (6, 4, 2, 2), (8,), group=2, strides=(2, 2))
    assert y.shape == ("n", 8, "h*2", 10)


def test_conv_transpose_of_an_unknown_rank_has_an_unknown_rank() -> None:
    assert infer("ConvTranspose", None, (3, 8, 3, 3)).shape is None


def test_conv_transpose_gives_the_output_shape_that_is_asked_for() -> None:
    y = infer("ConvTranspose", (1, 1, 3, "w"), (1, 2, 3, 3), output_shape=(10, 8))
    assert y.shape == (1, 2, 10, 8)


REFUSED: dict[str, tuple[str, tuple[Any, ...], Mapping[str, Any], str]] = {
    "channels": ("Conv", ((1, 4, 8, 8), (5, 3, 3, 3)), {}, "4 channels, the weights are for 3"),
    "group": ("Conv", ((1, 4, 8, 8), (6, 1, 3, 3)), {"group": 2}, "for 2 \\(1 in each of 2"),
    "features": ("Conv", ((1, 4, 8, 8), (5, 2, 3, 3)), {"group": 2}, "do not divide into 2"),
    "bias": (
        "Conv",
        ((1, 3, 8, 8), (5, 3, 3, 3), (4,)),
        {},
        "the bias must be a vector of length 5",
    ),
    "bias rank": (
        "Conv",
        ((1, 3, 8, 8), (5, 3, 3, 3), (1, 5)),
        {},
        "the bias must be a vector of length 5",
    ),
    "rank": ("Conv", ((1, 3, 8, 8), (5, 3, 3)), {}, "not of one rank"),
    "no spatial axis": ("Conv", ((1, 3), (5, 3)), {}, "not of one rank ≥ 3"),
    "kernel_shape": ("Conv", ((1, 3, 8), (5, 3, 3)), {"kernel_shape": (5,)}, "not that of the we"),
    "kernel rank": ("Conv", ((1, 3, 8), (5, 3, 3)), {"kernel_shape": (3, 3)}, "not that of the"),
    "window": ("Conv", ((1, 3, 2), (5, 3, 3)), {}, "does not fit"),
    "strides": ("Conv", ((1, 3, 8), (5, 3, 3)), {"strides": (1, 1)}, "strides .* 1 are needed"),
    "transposed channels": ("ConvTranspose", ((1, 4, 8), (3, 5, 3)), {}, "the weights are for 3"),
    "transposed group": ("ConvTranspose", ((1, 3, 8), (3, 5, 3)), {"group": 2}, "divide into 2"),
    "transposed bias": ("ConvTranspose", ((1, 3, 8), (3, 5, 3), (3,)), {}, "vector of length 5"),
    "cropped": ("ConvTranspose", ((1, 3, 1), (3, 5, 3)), {"pads": (2, 1)}, "leave nothing"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_shapes_that_do_not_fit_are_refused_at_their_node(case: str) -> None:
    op, shapes, attributes, what = REFUSED[case]
    with pytest.raises(ShapeError, match=what) as caught:
        infer(op, *shapes, **attributes)
    assert caught.value.at is not None
    assert op in caught.value.at
    assert caught.value.fix


@pytest.mark.parametrize(
    ("dtypes", "what"),
    [(("float32", "float64", "float32"), "different dtypes"), (("int32",) * 3, "must be a float")],
)
def test_dtypes_other_than_one_floating_dtype_are_refused(dtypes: Sequence[str], what: str) -> None:
    with pytest.raises(ShapeError, match=what) as caught:
        infer("Conv", (1, 3, 8), (5, 3, 3), dtypes=dtypes)
    assert caught.value.fix == "insert a Cast"


@pytest.mark.parametrize(
    "attributes", [{"pads": (-1, 0)}, {"strides": (0,)}, {"auto_pad": "same"}, {"group": 0}]
)
def test_attributes_out_of_range_are_refused(attributes: Mapping[str, Any]) -> None:
    with pytest.raises(OperatorError):
        infer("Conv", (1, 3, 8), (5, 3, 3), **attributes)


@pytest.mark.parametrize(("bias", "flops"), [(False, 2 * 60 * 27), (True, 2 * 60 * 27 + 60)])
def test_conv_costs_two_operations_per_weight_and_output_cell(bias: bool, flops: int) -> None:
    builder = GraphBuilder()
    x, w = builder.input("x", "float32", (1, 3, 5, 8)), builder.input("w", "float32", (4, 3, 3, 3))
    b = [builder.input("b", "float32", (4,))] * bias
    builder.output("y", builder.op("Conv", x, w, *b, pads=(0, 0, 0, 0), strides=(1, 1)))
    graph = builder.build()
    out = graph.tensors["y"].size
    cost = get_cost(graph, graph.nodes[0])
    assert cost.flops == flops // 60 * out
    assert cost.nbytes == 4 * (120 + 108 + 4 * bias + out)


def test_conv_transpose_costs_two_operations_per_weight_and_input_cell() -> None:
    builder = GraphBuilder()
    x, w = builder.input("x", "float32", (1, 4, 5)), builder.input("w", "float32", (4, 2, 3))
    builder.output("y", builder.op("ConvTranspose", x, w, group=2))
    graph = builder.build()
    assert get_cost(graph, graph.nodes[0]).flops == 2 * 20 * 6
