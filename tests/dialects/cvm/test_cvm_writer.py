"""Models written as cvm's are read back as the same graph."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import plait as pl
import pytest
from cvm_models import convolution_graph, dense_graph
from hypothesis import given, settings
from hypothesis import strategies as st
from plait.dialects.cvm.files import load_cvm
from plait.dialects.cvm.files.operators import find_function, get_function_name
from plait.dialects.cvm.files.params import read_params
from plait.dialects.cvm.files.writer import dump_cvm
from plait.dialects.cvm.gas import count_operations
from plait.graph.core.operator import list_operators


def meaning(graph: pl.Graph) -> Any:
    """Return all of a graph but the names of its nodes."""
    nodes = [(node.op, node.inputs, node.outputs, dict(node.attributes)) for node in graph.nodes]
    constants = {name: array.tolist() for name, array in graph.constants.items()}
    return graph.inputs, graph.outputs, nodes, dict(graph.tensors), constants, graph.precisions


@pytest.mark.parametrize("make", [dense_graph, convolution_graph])
def test_a_model_is_read_back_as_it_was_written(make: Any) -> None:
    symbol, params = dump_cvm(make(), postprocess="argmax")
    model = load_cvm(symbol, params)
    assert meaning(model.graph) == meaning(make())
    assert model.postprocess == "argmax"
    assert dump_cvm(model.graph, postprocess="argmax") == (symbol, params)


def test_parameters_of_up_to_8_bits_are_stored_in_a_byte() -> None:
    _, params = dump_cvm(convolution_graph())
    dtypes = {name: array.dtype.name for name, array in read_params(params).items()}
    assert dtypes == {"w": "int8", "bias": "int32", "depthwise": "int8", "v": "int8"}


def test_storage_is_used_again_once_nobody_reads_it() -> None:
    b = pl.GraphBuilder("cvm")
    x = b.input("data", "int32", (8,), precision=8)
    for _ in range(9):
        x = b.op("cvm.relu", x)
    b.output("y", x)
    model = load_cvm(*dump_cvm(b.build()))
    assert model.storage_bytes == 4 * 8 * 3


def test_outputs_that_share_a_tensor_are_one_entry() -> None:
    b = pl.GraphBuilder("cvm")
    x = b.input("data", "int32", (8,), precision=8)
    y = b.op("cvm.relu", x)
    for name, tensor in (("a", y), ("b", y), ("c", x)):
        b.output(name, tensor)
    symbol, params = dump_cvm(b.build())
    assert json.loads(symbol)["heads"] == [[1, 0, 0], [1, 0, 0], [0, 0, 0]]
    assert len(load_cvm(symbol, params).graph.outputs) == 3


def test_only_one_input_called_data_can_be_written() -> None:
    b = pl.GraphBuilder("cvm")
    b.output("y", b.op("cvm.relu", b.input("x", "int32", (8,), precision=8)))
    with pytest.raises(pl.GraphError, match="the inputs are x"):
        dump_cvm(b.build())


def with_constant(precision: int | None) -> pl.Graph:
    b = pl.GraphBuilder("cvm")
    x = b.input("data", "int32", (1,), precision=8)
    w = b.constant(np.array([300], np.int32), name="w", precision=precision)
    b.output("y", b.op("cvm.broadcast_max", x, w))
    return b.build()


def test_what_is_written_has_declared_precisions() -> None:
    with pytest.raises(pl.GraphError, match="no precision is declared for w"):
        dump_cvm(with_constant(None))


def test_constants_beyond_their_precision_cannot_be_written() -> None:
    with pytest.raises(pl.LogicError, match="a magnitude of 300 is beyond 8 bits"):
        dump_cvm(with_constant(8))


def test_there_is_no_other_postprocessing() -> None:
    with pytest.raises(pl.GraphError, match="cvm has no postprocessing 'softmax'") as raised:
        dump_cvm(with_constant(10), postprocess="softmax")
    assert raised.value.fix == "choose one of '', 'argmax', 'detection'"


def test_other_operators_cannot_be_written() -> None:
    b = pl.GraphBuilder("cvm")
    b.output("y", b.op("Neg", b.input("data", "int32", (8,), precision=8)))
    with pytest.raises(pl.GraphError, match="Neg is not an operator of cvm"):
        dump_cvm(b.build())


@pytest.mark.parametrize("op", [name for name in list_operators() if name.startswith("cvm.")])
def test_every_operator_has_a_name_in_cvm(op: str) -> None:
    assert find_function(f"{get_function_name(op, 'here')}_7", "here").name == op


UNARY: tuple[tuple[str, dict[str, Any]], ...] = (
    ("cvm.relu", {}),
    ("cvm.abs", {}),
    ("cvm.flatten", {}),
    ("cvm.transpose", {}),
    ("cvm.cvm_clip", {"precision": 6}),
    ("cvm.right_shift", {"precision": 7, "shift_bit": 3}),
    ("cvm.max", {"axis": (0,), "keepdims": True}),
    ("cvm.tile", {"reps": (2, 1)}),
)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 99), st.integers(0, 99)), min_size=1, max_size=12), st.data()
)
def test_any_graph_that_is_written_keeps_what_is_still_read(
    picks: list[tuple[int, int]], data: st.DataObject
) -> None:
    """The reader checks that no entry is overwritten before its last reader."""
    b = pl.GraphBuilder("cvm")
    tensors = [b.input("data", "int32", (3, 2), precision=8)]
    tensors.append(b.constant(np.arange(3, dtype=np.int32).reshape(1, 3), name="w", precision=3))
    for which, source in picks:
        op, attributes = UNARY[which % len(UNARY)]
        tensors.append(b.op(op, tensors[source % len(tensors)], **attributes))
    computed = tensors[2:]
    for index in sorted(data.draw(st.sets(st.sampled_from(range(len(computed))), min_size=1))):
        b.output(f"output{index}", computed[index])
    graph = b.build()
    assert meaning(load_cvm(*dump_cvm(graph)).graph) == meaning(graph)


@pytest.mark.parametrize("outputs", [("", "boxes"), ("counts", ""), ("", "")])
def test_outputs_without_a_name_have_entries_and_are_counted(outputs: tuple[str, str]) -> None:
    b = pl.GraphBuilder("detector")
    x = b.input("data", "int32", (2, 5, 6), precision=8)
    made = b.op("cvm.get_valid_counts", x, name="valid", outputs=outputs)
    b.output("y", b.op("cvm.relu", next((one for one in made if one != ""), x)))
    graph = b.build()
    again = load_cvm(*dump_cvm(graph)).graph
    assert again.tensors["y"] == graph.tensors["y"]
    elements = 60 + 2 + 60 + graph.tensors["y"].size
    assert (
        count_operations(graph)
        == count_operations(again)
        == 5 * elements + 2 + graph.tensors["y"].size
    )
