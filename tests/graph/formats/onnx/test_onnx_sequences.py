"""Sequences of tensors in ONNX models: read as tensors where they are known ahead."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import plait as pl
import pytest
from onnx import TensorProto, helper
from onnx.helper import make_node as node
from plait.graph.formats.onnx import sequences

NAMES = "xyz"


def make_model(nodes: list[Any], opset: int = 18, **numbers: Any) -> Any:
    """Return a model of three matrices; numbers are initializers."""
    initializers = [
        helper.make_tensor(name, TensorProto.INT64, np.shape(value), np.ravel(value))
        for name, value in numbers.items()
    ]
    given = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 4]) for name in NAMES]
    made = [helper.make_tensor_value_info("o", TensorProto.FLOAT, None)]
    graph = helper.make_graph(nodes, "g", given, made, initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


JOIN = node("ConcatFromSequence", ["s"], ["o"], axis=1)
TWO_OF_THEM = [
    node("SequenceAt", ["s", "i"], ["a"]),
    node("SequenceAt", ["s", "j"], ["b"]),
    node("Sub", ["a", "b"], ["o"]),
]
CASES: dict[str, tuple[list[Any], dict[str, Any], list[str]]] = {
    "inserted": (
        [
            node("SequenceEmpty", [], ["s0"], dtype=1),
            node("SequenceInsert", ["s0", "x"], ["s1"]),
            node("SequenceInsert", ["s1", "y"], ["s2"]),
            node("SequenceInsert", ["s2", "z", "i"], ["s"]),
            JOIN,
        ],
        {"i": -1},
        ["Concat"],
    ),
    "stacked": (
        [
            node("SequenceConstruct", ["x", "y"], ["s0"]),
            node("SequenceInsert", ["s0", "z", "i"], ["s"]),
            node("ConcatFromSequence", ["s"], ["o"], axis=-1, new_axis=1),
        ],
        {"i": 0},
        ["Unsqueeze", "Unsqueeze", "Unsqueeze", "Concat"],
    ),
    "erased": (
        [
            node("SequenceConstruct", ["x", "y", "z"], ["s0"]),
            node("SequenceErase", ["s0", "i"], ["s"]),
            node("SequenceLength", ["s"], ["n"]),
            node("Cast", ["n"], ["count"], to=1),
            node("ConcatFromSequence", ["s"], ["c"], axis=0),
            node("Mul", ["c", "count"], ["o"]),
        ],
        {"i": -2},
        ["Cast", "Concat", "Mul"],
    ),
    "last erased": (
        [
            node("SequenceConstruct", ["x", "y", "z"], ["s0"]),
            node("SequenceErase", ["s0"], ["s"]),
            JOIN,
        ],
        {},
        ["Concat"],
    ),
    "taken": (
        [node("SequenceConstruct", ["x", "y", "z"], ["s"]), *TWO_OF_THEM],
        {"i": -1, "j": 0},
        ["Identity", "Identity", "Sub"],
    ),
    "rows": (
        [node("SplitToSequence", ["x"], ["s"], axis=0, keepdims=0), *TWO_OF_THEM],
        {"i": -1, "j": 0},
        ["Gather", "Gather", "Sub"],
    ),
    "pairs": (
        [node("SplitToSequence", ["x", "length"], ["s"], axis=1), *TWO_OF_THEM],
        {"length": 2, "i": 1, "j": 0},
        ["Slice", "Slice", "Sub"],
    ),
    "parts": (
        [node("SplitToSequence", ["x", "lengths"], ["s"], axis=1), *TWO_OF_THEM],
        {"lengths": [1, 3], "i": -1, "j": 0},
        ["Split", "Identity", "Identity", "Sub"],
    ),
}


@pytest.mark.parametrize("opset", [11, 13, 18])
@pytest.mark.parametrize("name", CASES)
def test_sequences_that_are_known_become_tensors(name: str, opset: int) -> None:
    nodes, numbers, ops = CASES[name]
    proto = make_model(nodes, opset, **numbers)
    random = np.random.default_rng(0)
    feeds = {one: random.random((2, 4), np.float32) for one in NAMES}
    (expected,) = onnxruntime.InferenceSession(proto.SerializeToString()).run(None, feeds)
    graph = pl.load(proto)
    assert [one.op for one in graph.nodes] == ops
    got = pl.run(graph, {one: feeds[one] for one in graph.inputs})
    np.testing.assert_array_equal(got["o"], expected)


def test_an_identity_of_a_sequence_is_the_same_one() -> None:
    nodes = [
        node("SequenceConstruct", ["x", "y"], ["s0"]),
        node("Identity", ["s0"], ["s"]),
        JOIN,
    ]
    assert [one.op for one in pl.load(make_model(nodes)).nodes] == ["Concat"]


def test_branches_know_the_sequences_around_them() -> None:
    made = [helper.make_tensor_value_info("t", TensorProto.FLOAT, None)]
    joined = helper.make_graph([node("ConcatFromSequence", ["s"], ["t"], axis=1)], "j", [], made)
    taken = helper.make_graph([node("SequenceAt", ["s", "i"], ["t"])], "t", [], made)
    nodes = [
        node("SequenceConstruct", ["x", "y"], ["s"]),
        node("ReduceMax", ["z"], ["m"], keepdims=0),
        node("Cast", ["m"], ["c"], to=TensorProto.BOOL),
        node("If", ["c"], ["o"], then_branch=joined, else_branch=taken),
    ]
    graph = pl.load(make_model(nodes, i=1))
    x, y = np.zeros((2, 4), np.float32), np.ones((2, 4), np.float32)
    assert pl.run(graph, {"x": x, "y": y, "z": x})["o"].tolist() == y.tolist()
    assert pl.run(graph, {"x": x, "y": y, "z": y})["o"].shape == (2, 8)


@pytest.mark.parametrize(
    ("nodes", "numbers"),
    [
        ([node("SequenceEmpty", [], ["s"]), JOIN], {}),
        ([node("SequenceConstruct", ["x"], ["s"]), node("SequenceAt", ["s", "n"], ["o"])], {}),
        ([node("SequenceConstruct", ["x"], ["s"]), *TWO_OF_THEM], {"i": 0, "j": 1}),
        ([node("SequenceConstruct", ["x"], ["s"]), *TWO_OF_THEM], {"i": 0, "j": [[0, 0]]}),
        ([node("SequenceConstruct", ["x"], ["o"])], {}),
        ([node("SequenceInsert", ["none", "x"], ["s"]), JOIN], {}),
        ([node("SequenceInsert", [], []), node("SplitToSequence", [], [])], {}),
    ],
)
def test_sequences_that_are_not_known_are_refused(nodes: Any, numbers: Any) -> None:
    with pytest.raises(pl.UnknownOperatorError, match=r"SequenceConstruct|Sequence\w+"):
        pl.load(make_model(nodes, **numbers))


def test_long_chains_are_not_copied_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sequences, "MOST_MEMBERS", 50)
    nodes = [node("SequenceEmpty", [], ["s0"])]
    nodes += [node("SequenceInsert", [f"s{i}", "x"], [f"s{i + 1}"]) for i in range(8)]
    short = make_model([*nodes, node("ConcatFromSequence", ["s8"], ["o"], axis=0)])
    assert [one.op for one in pl.load(short).nodes] == ["Concat"]
    nodes += [node("SequenceInsert", [f"s{i}", "x"], [f"s{i + 1}"]) for i in range(8, 12)]
    with pytest.raises(pl.UnknownOperatorError, match="SequenceInsert"):
        pl.load(make_model([*nodes, node("ConcatFromSequence", ["s12"], ["o"], axis=0)]))


def test_positions_are_read_from_constant_nodes() -> None:
    at = helper.make_tensor("", TensorProto.INT64, [], [1])
    nodes = [
        node("Constant", [], ["i"], value=at),
        node("Constant", [], ["j"], value_int=0),
        node("SequenceConstruct", ["x", "y"], ["s"]),
        *TWO_OF_THEM,
    ]
    graph = pl.load(make_model(nodes))
    x, y = np.ones((2, 4), np.float32), np.full((2, 4), 3, np.float32)
    assert pl.run(graph, {"x": x, "y": y, "z": x})["o"].tolist() == (y - x).tolist()
