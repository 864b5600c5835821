from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from plait.graph.core.infer import infer_node
from plait.graph.core.ir import Node
from plait.graph.core.operator import Call, find_operator
from plait.graph.values.errors import OperatorError, ShapeError
from plait.graph.values.tensor import Dim, TensorSpec

Dims = Sequence[Dim] | None
IMAGE = ("n", 4, "h", "w")


def infer(
    op: str, *shapes: Dims, dtypes: Sequence[str] = (), n_outputs: int = 1, **attributes: Any
) -> tuple[TensorSpec, ...]:
    complete = find_operator(op).complete(attributes, op)
    given = dtypes or ("float32",) * len(shapes)
    specs = tuple(map(TensorSpec, given, shapes))
    names, outputs = (tuple(f"{s}{i}" for i in range(n)) for s, n in (("x", len(specs)), ("y", 3)))
    node = Node("node", op, names, outputs[:n_outputs], complete)
    return infer_node(node, Call(specs, (None,) * len(specs), complete, n_outputs))


CASES: list[tuple[str, list[Dims], dict[str, Any]]] = [
    ("Softmax", [IMAGE], {"axis": -2}),
    ("LogSoftmax", [IMAGE], {}),
    ("Hardmax", [IMAGE], {"axis": 1}),
    ("BatchNormalization", [IMAGE, (4,), (4,), (4,), (4,)], {}),
    ("InstanceNormalization", [IMAGE, (4,), ("c",)], {}),
    ("GroupNormalization", [IMAGE, (4,), (4,)], {"num_groups": 2}),
    ("LayerNormalization", [IMAGE, ("w",)], {}),
    ("RMSNormalization", [IMAGE, ("w",)], {}),
    ("LpNormalization", [IMAGE], {}),
    ("MeanVarianceNormalization", [IMAGE], {}),
    ("LRN", [IMAGE], {"size": 3}),
]


@pytest.mark.parametrize(("op", "shapes", "attributes"), CASES, ids=[case[0] for case in CASES])
def test_normalization_keeps_the_shape(
    op: str, shapes: list[Dims], attributes: Mapping[str, Any]
) -> None:
    assert infer(op, *shapes, **attributes)[0].shape == IMAGE
    assert infer(op, None, *shapes[1:], **attributes)[0].shape is None
    assert infer(op, IMAGE, *(None for _ in shapes[1:]), **attributes)[0].shape == IMAGE


def test_layer_statistics_have_length_one_from_the_axis_on() -> None:
    _, mean, deviation = infer("LayerNormalization", IMAGE, (1,), n_outputs=3, axis=-2)
    assert mean == deviation == TensorSpec("float32", ("n", 4, 1, 1))


def test_rms_normalization_has_the_dtype_of_its_scale() -> None:
    (y,) = infer("RMSNormalization", (2, 3), (3,), dtypes=("float16", "float64"))
    assert y == TensorSpec("float64", (2, 3))


def test_training_yields_running_statistics() -> None:
    inputs = (IMAGE, (4,), (4,), (4,), (4,))
    specs = infer("BatchNormalization", *inputs, n_outputs=3, training_mode=1)
    assert specs[1:] == (TensorSpec("float32", (4,)),) * 2


def test_a_vector_is_a_batch_of_one_channel() -> None:
    assert infer("BatchNormalization", (5,), *[(1,)] * 4)[0].shape == (5,)


REFUSED: dict[str, tuple[str, list[Dims], dict[str, Any], str]] = {
    "axis": ("Softmax", [(2, 3)], {"axis": -3}, "axis -3 is outside"),
    "scalar": ("Softmax", [()], {}, "outside a tensor of rank 0"),
    "length": ("BatchNormalization", [IMAGE, (4,), (3,), (4,), (4,)], {}, "bias must be a vector"),
    "vector": ("InstanceNormalization", [IMAGE, (4, 1), (4,)], {}, "scale must be a vector"),
    "groups": ("GroupNormalization", [IMAGE, (4,), (4,)], {"num_groups": 3}, "3 equal groups"),
    "rank": ("InstanceNormalization", [(4,), (4,), (4,)], {}, "at least 2 dimensions"),
    "scale": ("LayerNormalization", [(2, 3), (2,)], {}, "do not broadcast"),
    "bias": ("LayerNormalization", [(1, 3), (3,), (2, 3)], {}, "cannot be repeated to"),
    "longer": ("RMSNormalization", [(3,), (1, 3)], {}, "cannot be repeated to"),
    "axes": ("MeanVarianceNormalization", [(2, 3)], {"axes": (0, -2)}, "name a dimension twice"),
}


@pytest.mark.parametrize(("op", "shapes", "attributes", "what"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_normalized_is_refused_with_a_way_out(
    op: str, shapes: list[Dims], attributes: dict[str, Any], what: str
) -> None:
    with pytest.raises(ShapeError, match=what) as caught:
        infer(op, *shapes, **attributes)
    assert caught.value.fix
    assert op in str(caught.value.at)


def test_running_statistics_outside_of_training_are_refused() -> None:
    with pytest.raises(ShapeError, match="outputs in training mode only"):
        infer("BatchNormalization", IMAGE, (4,), (4,), (4,), (4,), n_outputs=3)


def test_mixed_dtypes_are_refused() -> None:
    with pytest.raises(ShapeError, match="different dtypes"):
        infer("LayerNormalization", (2, 3), (3,), dtypes=("float32", "float16"))


@pytest.mark.parametrize(
    ("op", "attributes"),
    [
        ("LpNormalization", {"p": 3}),
        ("LayerNormalization", {"stash_type": 16}),
        ("GroupNormalization", {"num_groups": 0}),
        ("LRN", {}),
    ],
)
def test_attributes_out_of_range_are_refused(op: str, attributes: dict[str, Any]) -> None:
    with pytest.raises(OperatorError):
        infer(op, IMAGE, (4,), (4,), **attributes)
