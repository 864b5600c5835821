"""Old forms of operators compute what ONNX Runtime says they compute."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from onnx_models import AnyArray, by_kernels, by_runtime, model, node, written
from plait import Graph, Node, TensorSpec
from plait.graph.formats.assembly import Assembly
from plait.graph.formats.onnx import load_onnx
from plait.graph.formats.onnx.upgrade import Context, upgrade
from plait.graph.values.errors import ParseError
from plait.graph.values.names import Names

IMAGE = np.random.default_rng(0).normal(size=(2, 3, 4, 5)).astype(np.float32)


class Case(NamedTuple):
    """One node in an old form."""

    op: str
    opset: int
    attributes: Mapping[str, Any] = {}
    x: AnyArray = IMAGE
    constants: Mapping[str, AnyArray] = {}
    outputs: str = "y"

    def __str__(self) -> str:
        told = ",".join(f"{name}={value}" for name, value in self.attributes.items())
        return f"{self.op}-{self.opset}({told}){len(self.constants)}"

    def proto(self, shape: Sequence[int | str | None] | None = None) -> Any:
        inputs = {"x": (self.x.dtype.name, self.x.shape if shape is None else shape)}
        inner = node(self.op, " ".join(["x", *self.constants]), self.outputs, **self.attributes)
        return model([inner], inputs, self.outputs.split(), self.constants, self.opset)


REDUCTIONS = ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "SumSquare")
VECTOR = {"scale": 1.5, "bias": 0.5, "mean": -0.25, "variance": 2.0}

CASES = [
    Case("Squeeze", 11, {"axes": [1, -1]}, IMAGE[:, :1, :, :1]),
    Case("Squeeze", 9, {}, IMAGE[:, :1, :, :1]),
    Case("Unsqueeze", 9, {"axes": [0, 3]}),
    Case("Unsqueeze", 12, {"axes": [-1]}),
    Case("ReduceSum", 9, {"axes": [1, 2]}),
    Case("ReduceSum", 12, {"axes": [-1], "keepdims": 0}),
    Case("ReduceSum", 11),
    *(Case(f"Reduce{kind}", 9, {"axes": [1]}, abs(IMAGE)) for kind in REDUCTIONS),
    *(
        Case(f"Reduce{kind}", 17, {"axes": [-1, 0], "keepdims": 0}, abs(IMAGE))
        for kind in REDUCTIONS
    ),
    *(Case(f"Reduce{kind}", 13, {}, abs(IMAGE)) for kind in REDUCTIONS),
    Case("Slice", 9, {"starts": [1, -3], "ends": [9, -1], "axes": [1, 3]}),
    Case("Slice", 9, {"starts": [0, 1], "ends": [1, 3]}),
    Case("Pad", 9, {"pads": [0, 1, 2, 0, 1, 0, 0, 3], "value": 2.5}),
    Case("Pad", 10, {"pads": [0, 0, 1, 0, 0, 0, 1, 2]}),
    Case("Pad", 10, {"pads": [0, 0, 1, 2, 0, 0, 3, 1], "mode": "reflect"}),
    Case("Pad", 10, {"pads": [0, 0, 1, 2, 0, 0, 3, 1], "mode": "edge"}),
    Case("Split", 11, {"axis": 1, "split": [1, 2]}, outputs="a b"),
    Case("Split", 11, {"axis": 2}, outputs="a b"),
    Case("Split", 13, {"axis": -2}, outputs="a b c d"),
    Case("Split", 13, {"axis": 1}, constants={"lengths": np.array([2, 1])}, outputs="a b"),
    Case("Clip", 9, {"min": -0.5, "max": 0.25}),
    Case("Clip", 9, {"min": -0.5}),
    Case("Clip", 10, {"max": 0.25}),
    Case("Clip", 9),
    Case("Dropout", 9, {"ratio": 0.25}),
    Case("Dropout", 10),
    *(
        Case(op, opset, {} if axis is None else {"axis": axis})
        for op in ("Softmax", "LogSoftmax", "Hardmax")
        for opset, axis in (
            (9, None),
            (9, 0),
            (11, 2),
            (11, 3),
            (12, -1),
            (12, -3),
            (13, None),
            (13, 1),
        )
    ),
    Case(
        "BatchNormalization",
        9,
        {"epsilon": 1e-3, "momentum": 0.5},
        constants={name: np.full(3, value, "float32") for name, value in VECTOR.items()},
    ),
    *(
        Case(op, opset, {"mode": mode}, constants={"scales": np.array([1, 1, *scales], "float32")})
        for op, opset, mode, scales in (
            ("Upsample", 9, "nearest", (2, 3)),
            ("Upsample", 9, "nearest", (1.5, 1.3)),
            ("Upsample", 9, "linear", (2, 2)),
            ("Resize", 10, "nearest", (2, 2)),
            ("Resize", 10, "nearest", (0.5, 0.7)),
            ("Resize", 10, "nearest", (1, 0.7)),
            ("Resize", 10, "nearest", (2, 0.7)),
            ("Resize", 10, "nearest", (0.6, 1.7)),
            ("Resize", 10, "linear", (2, 1.5)),
            ("Resize", 10, "linear", (0.5, 0.8)),
        )
    ),
    Case("Upsample", 7, {"scales": [1.0, 1.0, 2.0, 3.0]}),
    Case("Upsample", 8, {"scales": [1.0, 1.0, 2.0, 2.0], "mode": "linear"}),
    Case("Dropout", 7, {"ratio": 0.25}),
    Case(
        "BatchNormalization",
        7,
        {"spatial": 1},
        constants={name: np.full(3, value, "float32") for name, value in VECTOR.items()},
    ),
    Case(
        "Resize",
        11,
        {"mode": "linear"},
        constants={"roi": np.empty(0, "float32"), "scales": np.array([1, 1, 2, 2], "float32")},
    ),
    Case(
        "Resize",
        11,
        {"mode": "nearest"},
        constants={
            "roi": np.empty(0, "float32"),
            "scales": np.empty(0, "float32"),
            "sizes": np.array([2, 3, 8, 7]),
        },
    ),
    Case(
        "GroupNormalization",
        18,
        {"num_groups": 2, "epsilon": 1e-3},
        np.concatenate([IMAGE, 2 * IMAGE[:, :1]], axis=1),
        {"scale": np.array([1.5, -2], "float32"), "bias": np.array([0.5, 3], "float32")},
    ),
    Case("Cast", 9, {"to": 7}),
    Case("Flatten", 9),
    Case("Transpose", 9, {"perm": [3, 1, 0, 2]}),
    Case("AveragePool", 9, {"kernel_shape": [2, 2], "auto_pad": "NOTSET"}),
    Case("MaxPool", 9, {"kernel_shape": [2, 2], "storage_order": 0}),
]


def load(proto: Any, folder: Path) -> Graph:
    return load_onnx(written(proto, folder))


def compare(graph: Graph, proto: Any, x: AnyArray) -> None:
    found, expected = by_kernels(graph, {"x": x}), by_runtime(proto, {"x": x})
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)
        assert one.dtype == other.dtype


@pytest.mark.parametrize("case", CASES, ids=str)
def test_old_forms_compute_what_they_did(case: Case, tmp_path: Path) -> None:
    graph = load(case.proto(), tmp_path)

    compare(graph, case.proto(), case.x)
    assert graph.outputs == tuple(case.outputs.split())
    assert not any(value.flags.writeable for value in graph.constants.values())


@pytest.mark.parametrize("case", CASES, ids=str)
def test_old_forms_of_dynamic_shapes_compute_what_they_did(case: Case, tmp_path: Path) -> None:
    channels = case.x.shape[1] if case.op == "GroupNormalization" else "d1"
    proto = case.proto(["d0", channels, *(f"d{axis}" for axis in range(2, case.x.ndim))])

    compare(load(proto, tmp_path), proto, case.x)


@pytest.mark.parametrize("case", [case for case in CASES if "Hardmax" in case.op], ids=str)
def test_softmax_of_an_unknown_rank_computes_what_it_did(case: Case, tmp_path: Path) -> None:
    proto = case.proto()
    proto.graph.input[0].type.tensor_type.ClearField("shape")

    compare(load(proto, tmp_path), proto, case.x)


def test_softmax_over_the_last_axis_stays_one_node(tmp_path: Path) -> None:
    graph = load(Case("Softmax", 11, {"axis": 3}).proto(), tmp_path)

    assert [each.op for each in graph.nodes] == ["Softmax"]
    assert graph.nodes[0].attributes["axis"] == -1


def test_softmax_over_several_axes_keeps_the_shape_it_is_known_to_have(tmp_path: Path) -> None:
    graph = load(Case("Softmax", 11).proto(["n", 3, "h", "w"]), tmp_path)

    assert graph.tensors["y"] == TensorSpec("float32", ("n", 3, "h", "w"))
    assert [each.op for each in graph.nodes] == ["Flatten", "Softmax", "Shape", "Reshape"]


def test_softmax_of_nothing_keeps_its_shape(tmp_path: Path) -> None:
    graph = load(Case("Softmax", 11, {"axis": 1}, IMAGE[..., :0]).proto(), tmp_path)

    assert graph.tensors["y"] == TensorSpec("float32", (2, 3, 4, 0))


def test_made_names_do_not_clash_with_those_of_the_model(tmp_path: Path) -> None:
    nodes = [
        node("Relu", "x", "sum/axes", name="soft/Flatten"),
        node("ReduceSum", "sum/axes", "y/flat", name="sum", axes=[1]),
        node("Softmax", "y/flat", "y", name="soft", axis=1),
    ]
    proto = model(nodes, {"x": ("float32", IMAGE.shape)}, opset=11)
    graph = load(proto, tmp_path)

    assert len({each.name for each in graph.nodes}) == len(graph.nodes) == 5
    compare(graph, proto, IMAGE)


@pytest.mark.parametrize(
    ("attributes", "outputs"), [({"spatial": 0}, "y"), ({}, "y m"), ({}, "y - v")]
)
def test_batch_normalization_in_training_is_refused(
    attributes: dict[str, Any], outputs: str, tmp_path: Path
) -> None:
    constants = {name: np.ones(3, "float32") for name in VECTOR}
    inner = node(
        "BatchNormalization", " ".join(["x", *constants]), outputs, name="bn", **attributes
    )
    results = [name for name in outputs.split() if name != "-"]
    proto = model([inner], {"x": ("float32", IMAGE.shape)}, results, constants, opset=9)

    with pytest.raises(ParseError, match=r"not supported") as caught:
        load(proto, tmp_path)
    assert "'bn'" in str(caught.value.at)
    assert caught.value.fix == "export the model for inference"


def test_training_outputs_that_nobody_reads_do_not_matter(tmp_path: Path) -> None:
    constants = {name: np.ones(3, "float32") for name in VECTOR}
    outputs = "y m v saved_m saved_v"
    inner = node("BatchNormalization", " ".join(["x", *constants]), outputs)
    proto = model([inner], {"x": ("float32", IMAGE.shape)}, ["y"], constants, opset=9)

    assert load(proto, tmp_path).nodes[0].outputs == ("y",)


@pytest.mark.parametrize(
    ("shape", "axis", "reach"),
    [
        ((5,), None, (1, 1, 1, 5)),
        ((4, 5), None, (1, 1, 4, 5)),
        ((3, 4), 1, (1, 3, 4, 1)),
        ((2,), 0, (2, 1, 1, 1)),
        ((5,), 3, (1, 1, 1, 5)),
        ((4,), -2, (1, 1, 4, 1)),
        ((), None, (1, 1, 1, 1)),
        (IMAGE.shape, None, IMAGE.shape),
    ],
)
def test_before_opset_7_operands_were_aligned_at_an_axis(
    shape: tuple[int, ...], axis: int | None, reach: tuple[int, ...], tmp_path: Path
) -> None:
    operand = np.random.default_rng(1).normal(size=shape).astype("float32")
    attributes = {"broadcast": 1} if axis is None else {"broadcast": 1, "axis": axis}
    case = Case("Sub", 6, attributes, constants={"operand": operand})

    (y,) = by_kernels(load(case.proto(), tmp_path), {"x": IMAGE})
    np.testing.assert_array_equal(y, IMAGE - operand.reshape(reach))


def test_alignment_at_an_axis_needs_a_known_rank(tmp_path: Path) -> None:
    case = Case("Sub", 6, {"broadcast": 1, "axis": 1}, constants={"b": np.ones(3, "float32")})
    proto = case.proto()
    proto.graph.input[0].type.tensor_type.ClearField("shape")

    with pytest.raises(ParseError, match="how 'x' is broadcast depends on its rank") as caught:
        load(proto, tmp_path)
    assert "opset 7" in str(caught.value.fix)


@pytest.mark.parametrize("shape", [(3,), (1,), (3, 1, 1)])
def test_before_opset_7_slopes_were_per_channel(shape: tuple[int, ...], tmp_path: Path) -> None:
    slope = np.linspace(0.1, 0.5, shape[0], dtype="float32")
    case = Case("PRelu", 6, constants={"slope": slope.reshape(shape)})

    (y,) = by_kernels(load(case.proto(), tmp_path), {"x": IMAGE})
    np.testing.assert_array_equal(y, np.where(IMAGE < 0, IMAGE * slope.reshape(-1, 1, 1), IMAGE))


@pytest.mark.parametrize("op", ["Dropout", "BatchNormalization", "Gemm"])
def test_flags_of_opset_6_are_left_out(op: str, tmp_path: Path) -> None:
    x = IMAGE[0, 0] if op == "Gemm" else IMAGE
    constants: dict[str, dict[str, AnyArray]] = {
        "Gemm": {"w": np.ones((5, 2), "float32"), "c": np.arange(2, dtype="float32")},
        "Dropout": {},
        "BatchNormalization": {name: np.full(3, v, "float32") for name, v in VECTOR.items()},
    }
    flag = {"broadcast": 1} if op == "Gemm" else {"is_test": 1}

    newest = load(Case(op, 13, {}, x, constants[op]).proto(), tmp_path)
    oldest = load(Case(op, 6, flag, x, constants[op]).proto(), tmp_path)
    assert oldest.nodes == newest.nodes


def upgraded(made: Node, opset: int) -> Sequence[Node]:
    """Return what becomes of a node whose operator need not be registered."""
    return upgrade(made, Context(Assembly("tiny", "model.onnx"), opset, Names()))


@pytest.mark.parametrize(
    ("op", "opset", "given", "expected"),
    [
        ("GridSample", 16, {}, {"mode": "linear"}),
        ("GridSample", 19, {"mode": "bicubic"}, {"mode": "cubic"}),
        ("GridSample", 19, {"mode": "nearest"}, {"mode": "nearest"}),
        ("GridSample", 20, {"mode": "cubic"}, {"mode": "cubic"}),
        ("RoiAlign", 10, {}, {"coordinate_transformation_mode": "output_half_pixel"}),
        ("RoiAlign", 16, {"mode": "max"}, {"mode": "max"}),
    ],
)
def test_values_of_attributes_get_their_newest_names(
    op: str, opset: int, given: dict[str, Any], expected: dict[str, Any]
) -> None:
    assert upgraded(Node("n", op, ("x",), ("y",), given), opset) == [
        Node("n", op, ("x",), ("y",), expected)
    ]


def test_the_number_of_top_elements_became_an_input() -> None:
    context = Context(Assembly("tiny", "model.onnx"), 9, Names())
    node = Node("n", "TopK", ("x",), ("values", "indices"), {"k": 3, "axis": 1})
    (made,) = upgrade(node, context)

    assert made == replace(node, inputs=("x", "n/k"), attributes={"axis": 1})
    np.testing.assert_array_equal(context.value("n/k"), np.array([3]), strict=True)


def test_scatter_has_a_new_name() -> None:
    (made,) = upgraded(Node("n", "Scatter", ("x", "i", "u"), ("y",), {"axis": 1}), 9)

    assert made == Node("n", "ScatterElements", ("x", "i", "u"), ("y",), {"axis": 1})


@pytest.mark.parametrize(("inputs", "axis"), [(("x",), 1), (("x", "length"), 1), (("x",), -2)])
def test_the_axis_of_a_fourier_transform_became_an_input(
    inputs: tuple[str, ...], axis: int
) -> None:
    context = Context(Assembly("tiny", "model.onnx"), 17, Names())
    given = {} if axis == 1 else {"axis": axis}
    (made,) = upgrade(Node("n", "DFT", inputs, ("y",), given), context)

    assert made.inputs == ((*inputs, "")[0], (*inputs, "")[1], "n/axis")
    assert context.value("n/axis") == axis
    assert not made.attributes


@pytest.mark.parametrize("channels", [None, "c"])
def test_group_normalization_of_unknown_channels_is_refused(
    channels: str | None, tmp_path: Path
) -> None:
    inner = node("GroupNormalization", "x scale bias", "y", num_groups=2)
    shape: Sequence[int | str | None] | None = None if channels is None else ("n", channels, 4)
    constants = {"scale": np.ones(2, "float32"), "bias": np.zeros(2, "float32")}
    proto = model([inner], {"x": ("float32", shape)}, constants=constants, opset=18)
    with pytest.raises(ParseError, match="fixed number of channels") as caught:
        load(proto, tmp_path)
    assert "opset 21" in str(caught.value.fix)


def test_a_scale_that_is_computed_rounds_down(tmp_path: Path) -> None:
    nodes = [node("Relu", "scales", "s"), node("Upsample", "x s", "y")]
    inputs: dict[str, Any] = {"x": ("float32", IMAGE.shape), "scales": ("float32", (4,))}
    proto = model(nodes, inputs, opset=9)
    graph = load(proto, tmp_path)

    assert graph.nodes[1].attributes["nearest_mode"] == "floor"
    assert graph.nodes[1].attributes["coordinate_transformation_mode"] == "asymmetric"
    feeds = {"x": IMAGE, "scales": np.array([1, 1, 2, 1.5], "float32")}
    np.testing.assert_array_equal(by_kernels(graph, feeds)[0], by_runtime(proto, feeds)[0])


@pytest.mark.parametrize("name", ["float32", "int8", "bool", "float16"])
def test_a_type_number_becomes_the_name_of_a_dtype(name: str, tmp_path: Path) -> None:
    number = {"float32": 1, "int8": 3, "bool": 9, "float16": 10}[name]
    graph = load(Case("Cast", 13, {"to": number}).proto(), tmp_path)

    assert graph.nodes[0].attributes["to"] == name
    assert graph.tensors["y"].dtype == name


def test_a_cast_to_a_foreign_type_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ParseError, match="type INT4 are not supported") as caught:
        load(Case("Cast", 13, {"to": 22}).proto(), tmp_path)
    assert "attribute 'to', node 'Cast_0'" in str(caught.value.at)
