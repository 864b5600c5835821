"""Each rule of cvm's symbols, with the kind of error that breaking it is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from cvm_models import (
    MISSING,
    changed,
    dense_graph,
    dense_params,
    dense_symbol,
    handmade,
    no_params,
)
from plait.dialects.cvm.files import load_cvm, load_symbol
from plait.graph.values.errors import PlaitError, RuntimeFailureError

LOGIC, RUNTIME = 1, 2


def refusal(symbol: bytes) -> PlaitError:
    with pytest.raises(PlaitError) as caught:
        load_symbol(symbol)
    return caught.value


def test_a_sound_symbol_is_the_graph_that_was_written() -> None:
    model = load_cvm(json.dumps(dense_symbol()).encode(), dense_params())
    written = dense_graph()
    assert [(node.op, node.attributes) for node in model.graph.nodes] == [
        (node.op, node.attributes) for node in written.nodes
    ]
    assert model.graph.tensors["scores"] == written.tensors["scores"]
    assert model.graph.inputs == ("data",)
    assert model.precisions == {"data": 8, "w": 8, "fc": 19, "act": 19, "scores": 8}


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("extra", 1),
        ("nodes.0.extra", 1),
        ("nodes.2.attrs.extra", "1"),
        ("attrs.extra", ["list_int", []]),
    ],
)
def test_an_unknown_key_anywhere_is_a_runtime_failure(path: str, value: Any) -> None:
    error = refusal(changed(dense_symbol(), (path, value)))
    assert error.code == RUNTIME
    assert "extra" in error.what


@pytest.mark.parametrize(
    "path",
    [
        *("nodes", "heads", "attrs", "nodes.0.op", "nodes.0.name", "nodes.2.inputs"),
        *("nodes.2.attrs.func_name", "attrs.shape", "attrs.storage_id", "attrs.op_attrs"),
        *("nodes.2.attrs", "attrs.precision"),
    ],
)
def test_what_is_missing_is_a_mistake_of_the_model(path: str) -> None:
    assert refusal(changed(dense_symbol(), (path, MISSING))).code == LOGIC


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("nodes", {}),
        ("nodes.0", []),
        ("nodes.0.name", 3),
        ("nodes.0.name", "\ud800"),
        ("nodes.0.precision", "8"),
        ("nodes.2.inputs", [["0", 0, 0]]),
        ("nodes.2.attrs.num_inputs", 2),
        ("heads", "scores"),
        ("attrs.storage_id.1", [0, 1, 2, 3, True]),
        ("attrs.shape.1", [[2.0, 4], [3, 4], [2, 3], [2, 3], [2, 3]]),
        ("version", 1),
        ("postprocess", None),
    ],
)
def test_a_value_of_another_type_is_a_runtime_failure(path: str, value: Any) -> None:
    assert refusal(changed(dense_symbol(), (path, value))).code == RUNTIME


@pytest.mark.parametrize(
    "text",
    [
        *(b"", b"{", b"\xff", b"[" * 100_000, b'{"nodes": NaN}', b'{"heads": [], "heads": []}'),
        b"1" * 5000,
    ],
)
def test_what_is_no_json_is_a_runtime_failure(text: bytes) -> None:
    assert refusal(text).code == RUNTIME


@pytest.mark.parametrize("op", ["tvm_op", "", "NULL"])
def test_an_unknown_kind_of_node_is_a_mistake_of_the_model(op: str) -> None:
    """Row C21: cvm verifies it."""
    assert refusal(changed(dense_symbol(), ("nodes.3.op", op))).code == LOGIC


@pytest.mark.parametrize("key", ["num_inputs", "num_outputs"])
@pytest.mark.parametrize("text", ["3", "-1", "two", ""])
def test_counts_that_a_node_declares_mean_nothing(key: str, text: str) -> None:
    """Row C15: they are read and thrown away; the listed inputs must be the operator's."""
    symbol = load_symbol(changed(dense_symbol(), (f"nodes.2.attrs.{key}", text)))
    assert symbol.graph == load_symbol(changed(dense_symbol())).graph
    more = [[0, 0, 0], [1, 0, 0], [1, 0, 0], [1, 0, 0]]
    for inputs in (more, more[:1]):
        changes = (("nodes.2.inputs", inputs), (f"nodes.2.attrs.{key}", str(len(inputs))))
        assert refusal(changed(dense_symbol(), *changes)).code == LOGIC


@pytest.mark.parametrize(
    "function", ["nonsense", "right_shift", "cvm_relu", "Relu", "cvm.relu", ""]
)
def test_an_unknown_operator_is_a_runtime_failure(function: str) -> None:
    error = refusal(changed(dense_symbol(), ("nodes.3.attrs.func_name", function)))
    assert error.code == RUNTIME
    assert "no operator" in error.what


@pytest.mark.parametrize("function", ["relu_3", "relu_0017", "relu_"])
def test_a_number_behind_the_operators_name_is_left_out(function: str) -> None:
    model = load_symbol(changed(dense_symbol(), ("nodes.3.attrs.func_name", function)))
    assert model.graph.nodes[1].op == "cvm.relu"


@pytest.mark.parametrize("function", ["max_pool2d", "conv2d", "relu_3_4", "relu3"])
def test_nothing_but_one_number_is_left_out(function: str) -> None:
    found = refusal(changed(dense_symbol(), ("nodes.3.attrs.func_name", function)))
    assert ("no operator" in found.what) == function.startswith("relu")


@pytest.mark.parametrize(
    ("text", "units"),
    [
        ('{"units": "3", "use_bias": "False"}', 3),
        ('{"use_bias":"0","units":" 3 "}', 3),
        ('{"units": "3", "use_bias": "FALSE", "__shape__": "(7)", "__x__": ""}', 3),
    ],
)
def test_attributes_are_text_read_by_their_kind(text: str, units: int) -> None:
    model = load_symbol(changed(dense_symbol(), ("attrs.op_attrs.1.2", text)))
    assert model.graph.nodes[0].attributes["units"] == units
    assert model.graph.nodes[0].attributes["use_bias"] is False


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("{", RUNTIME),
        ("[]", RUNTIME),
        ('{"units": 3}', RUNTIME),
        ('{"units": "three"}', RUNTIME),
        ('{"units": "3.0"}', RUNTIME),
        ('{"units": "None"}', RUNTIME),
        ('{"units": "3", "use_bias": "maybe"}', RUNTIME),
        ('{"units": "3", "colour": "red"}', RUNTIME),
        ('{"units": "0", "use_bias": "False"}', RUNTIME),
        ('{"units": "4294967299", "use_bias": "False"}', RUNTIME),
        ('{"units": "4", "use_bias": "False"}', LOGIC),
        ('{"use_bias": "False"}', RUNTIME),
        ("{}", RUNTIME),
        ('{"units": "3", "use_bias": "False", "__": ""}', RUNTIME),
        ('{"units": "3", "use_bias": "False", "__layout": ""}', RUNTIME),
    ],
)
def test_attributes_that_cannot_be_read_are_told_from_wrong_ones(text: str, code: int) -> None:
    """Row C21: what reading a text finds is free of charge, what an operator verifies is paid."""
    assert refusal(changed(dense_symbol(), ("attrs.op_attrs.1.2", text))).code == code


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        *(("(1, 0)", (1, 0)), ("[1,0]", (1, 0)), ("()", ()), ("[]", ()), ("(1, 0,)", (1, 0))),
        *(("(1L, 0L)", (1, 0)), ("[1L,0L,]", (1, 0)), ("(1 , 0L)", (1, 0))),
    ],
)
def test_sequences_are_read_in_both_brackets(text: str, wanted: tuple[int, ...]) -> None:
    shape = [3, 2]
    symbol = handmade(
        [("data", None, []), ("y", "transpose", [[0, 0]])],
        [([2, 3], 8), (shape, -1)],
        [[1, 0]],
        {1: {"axes": text}},
    )
    assert load_symbol(json.dumps(symbol).encode()).graph.nodes[0].attributes["axes"] == wanted


@pytest.mark.parametrize("text", ["1", "(1)", "[-2,]"])
def test_a_single_number_is_a_sequence_too(text: str) -> None:
    symbol = handmade(
        [("data", None, []), ("y", "sum", [[0, 0]])],
        [([2, 3], 8), ([2] if "1" in text else [3], -1)],
        [[1, 0]],
        {1: {"axis": text}},
    )
    assert load_symbol(json.dumps(symbol).encode()).graph.nodes[0].attributes["axis"] in (
        (1,),
        (-2,),
    )


@pytest.mark.parametrize("text", ["1L", "(1LL)", "(L)", "(9999999999999999999)", "(1 2)", "(1,,)"])
def test_what_is_no_sequence_is_a_runtime_failure(text: str) -> None:
    symbol = handmade(
        [("data", None, []), ("y", "sum", [[0, 0]])],
        [([2, 3], 8), ([2], -1)],
        [[1, 0]],
        {1: {"axis": text}},
    )
    assert refusal(json.dumps(symbol).encode()).code == RUNTIME


@pytest.mark.parametrize(
    ("number", "code"), [("0", RUNTIME), ("-1", RUNTIME), ("4097", LOGIC), ("9", LOGIC)]
)
def test_no_new_axis_is_found_while_reading_and_too_many_later(number: str, code: int) -> None:
    symbol = handmade(
        [("data", None, []), ("y", "expand_dims", [[0, 0]])],
        [([2, 3], 8), ([2, 1, 3], -1)],
        [[1, 0]],
        {1: {"axis": "1", "num_newaxis": number}},
    )
    assert refusal(json.dumps(symbol).encode()).code == code


@pytest.mark.parametrize("key", ["slope", "__slope__"])
def test_an_operator_without_attributes_must_not_be_given_any(key: str) -> None:
    text = json.dumps({key: "1"})
    assert refusal(changed(dense_symbol(), ("attrs.op_attrs.1.3", text))).code == LOGIC


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("attrs.shape.0", "list_int"),
        ("attrs.shape", ["list_shape"]),
        ("attrs.shape", ["list_shape", [], []]),
        ("attrs.device_index", ["list_int", [0]]),
        ("attrs.op_attrs.1", ["{}"] * 4),
        ("attrs.storage_id.1", [0, 1, 2, 3]),
        ("attrs.storage_id.1", [0, 1, 2, 3, -1]),
        ("attrs.shape.1", [[2, 4]]),
        ("attrs.precision.1", [8, 8, 19, 19]),
        ("attrs.precision.1", [8, 8, 19, 19, 0]),
        ("attrs.precision.1", [8, 8, 19, 19, 33]),
        ("attrs.precision.1", [8, -1, 19, 19, 8]),
        ("attrs.dltype", MISSING),
        ("attrs.dltype.1", ["int32"] * 4 + ["int8"]),
        ("node_row_ptr", [0, 1, 2, 3, 4]),
        ("node_row_ptr", [0, 1, 2, 3, 5, 5]),
        ("arg_nodes", [0]),
        ("arg_nodes", MISSING),
        ("nodes.2.inputs", [[2, 0, 0], [1, 0, 0]]),
        ("nodes.2.inputs", [[3, 0, 0], [1, 0, 0]]),
        ("nodes.2.inputs", [[0, 1, 0], [1, 0, 0]]),
        ("nodes.2.inputs", [[9, 0, 0], [1, 0, 0]]),
        ("nodes.2.inputs", [[-1, 0, 0], [1, 0, 0]]),
        ("nodes.2.inputs", [[0], [1, 0, 0]]),
        ("nodes.2.inputs", [[0, 0, 0]]),
        ("nodes.1.inputs", [[0, 0, 0]]),
        ("heads", []),
        ("heads", [[4, 1, 0]]),
        ("heads", [[5, 0, 0]]),
        ("attrs.shape.1.4", [3, 2]),
        ("attrs.shape.1.1", [4, 3]),
        ("attrs.precision.1", [9, 8, 19, 19, 8]),
        ("attrs.op_attrs.1.4", '{"precision": "8", "shift_bit": "33"}'),
    ],
)
def test_a_broken_rule_is_a_mistake_of_the_model(path: str, value: Any) -> None:
    assert refusal(changed(dense_symbol(), (path, value))).code == LOGIC


@pytest.mark.parametrize(
    "shape", [[], [1] * 7, [0, 4], [-1, 4], [2**24 + 1], [2**24, 2**6 + 1], [2**11] * 3]
)
def test_shapes_have_limits(shape: list[int]) -> None:
    error = refusal(changed(dense_symbol(), ("attrs.shape.1.0", shape)))
    assert error.code == LOGIC
    assert str(shape) in error.what or "rank" in error.what


def test_two_variables_of_one_name_are_a_runtime_failure() -> None:
    error = refusal(changed(dense_symbol(), ("nodes.1.name", "data")))
    assert error.code == RUNTIME
    assert "'data'" in error.what


@pytest.mark.parametrize("name", ["data", "w", "fc", ""])
def test_two_nodes_of_one_name_are_told_apart(name: str) -> None:
    model = load_symbol(changed(dense_symbol(), ("nodes.3.name", name)))
    assert [node.op for node in model.graph.nodes] == ["cvm.dense", "cvm.relu", "cvm.right_shift"]


def test_a_foreign_version_is_a_runtime_failure() -> None:
    assert refusal(changed(dense_symbol(), ("version", "cvm_2.0.0"))).code == RUNTIME


def test_without_a_version_it_is_the_first() -> None:
    assert load_symbol(changed(dense_symbol(), ("version", MISSING))).version == "cvm_1.0.0"
    without_tables = (("version", MISSING), ("node_row_ptr", MISSING))
    assert refusal(changed(dense_symbol(), *without_tables)).code == LOGIC


def test_the_second_version_makes_its_tables_anew() -> None:
    changes = [("version", "cvm_1.1.0"), ("node_row_ptr", [7]), ("arg_nodes", MISSING)]
    model = load_symbol(changed(dense_symbol(), *changes, ("attrs.dltype", MISSING)))
    assert model.graph == load_symbol(json.dumps(dense_symbol()).encode()).graph


def test_what_the_file_says_of_precisions_is_inferred_again() -> None:
    model = load_symbol(changed(dense_symbol(), ("attrs.precision.1", [8, 8, 1, 32, -1])))
    assert model.precisions == {"data": 8, "w": 8, "fc": 19, "act": 19, "scores": 8}


@pytest.mark.parametrize("pair", [["list_int", [1]], ["list_str", 3]])
def test_the_table_dtype_is_known_but_not_read(pair: list[Any]) -> None:
    load_symbol(changed(dense_symbol(), ("attrs.dtype", pair)))
    assert refusal(changed(dense_symbol(), ("attrs.dtype", ["int", []]))).code == RUNTIME


STORAGE = "attrs.storage_id.1"


def test_operators_that_read_before_they_write_may_do_it_in_place() -> None:
    model = load_symbol(changed(dense_symbol(), (STORAGE, [0, 1, 2, 2, 2])))
    assert model.storage_bytes == 4 * (8 + 12 + 6)


@pytest.mark.parametrize(
    "ids",
    [
        pytest.param([0, 1, 0, 2, 3], id="dense over its input"),
        pytest.param([0, 1, 1, 2, 3], id="dense over its weights"),
        pytest.param([0, 1, 2, 1, 3], id="relu over a parameter"),
        pytest.param([0, 0, 1, 2, 3], id="two variables in one place"),
    ],
)
def test_nothing_else_may_be_overwritten(ids: list[int]) -> None:
    assert refusal(changed(dense_symbol(), (STORAGE, ids))).code == LOGIC


def diamond(ids: list[int], heads: list[list[int]] | None = None) -> bytes:
    """Return a symbol of a = negative(data), b = negative(a), c = a + b."""
    symbol = handmade(
        [
            ("data", None, []),
            ("a", "negative", [[0, 0]]),
            ("b", "negative", [[1, 0]]),
            ("c", "elemwise_add", [[1, 0], [2, 0]]),
        ],
        [([4], 8)] * 4,
        heads or [[3, 0]],
    )
    return changed(symbol, (STORAGE, ids))


def test_negative_may_write_over_its_input_and_even_over_the_data() -> None:
    assert load_symbol(diamond([0, 0, 1, 1])).graph.outputs == ("c",)


def test_what_is_read_later_must_not_be_overwritten() -> None:
    error = refusal(diamond([0, 1, 1, 2]))
    assert error.code == LOGIC
    assert "reads entry 1, whose storage holds entry 2" in error.what


def test_an_output_must_not_be_overwritten_either() -> None:
    assert refusal(diamond([0, 1, 2, 1], heads=[[1, 0], [3, 0]])).code == LOGIC


def test_storage_has_a_limit() -> None:
    symbol = handmade(
        [("data", None, []), *((f"n{i}", "relu", [[i, 0]]) for i in range(2))],
        [([2**24, 2**5], 8)] * 3,
        [[2, 0]],
    )
    assert refusal(json.dumps(symbol).encode()).code == LOGIC
    shared = changed(symbol, (STORAGE, [0, 1, 1]))
    assert load_symbol(shared).storage_bytes == 2**32


def test_a_head_may_be_listed_twice_or_be_a_variable() -> None:
    model = load_symbol(diamond([0, 1, 2, 3], heads=[[3, 0], [0, 0], [3, 0]]))
    assert len(set(model.graph.outputs)) == 3
    assert model.graph.outputs[0] == "c"
    assert [model.precisions[name] for name in model.graph.outputs] == [9, 8, 9]


def test_both_outputs_of_a_node_can_be_read() -> None:
    symbol = handmade(
        [
            ("data", None, []),
            ("valid", "get_valid_counts", [[0, 0]]),
            ("kept", "non_max_suppression", [[1, 1], [1, 0]]),
        ],
        [([1, 5, 6], 16), ([1], -1), ([1, 5, 6], -1), ([1, 5, 6], -1)],
        [[2, 0]],
    )
    model = load_cvm(json.dumps(symbol).encode(), no_params())
    assert model.graph.nodes[1].inputs == ("valid.1", "valid")
    assert model.precisions["valid"] == 6
    together = changed(symbol, (STORAGE, [0, 1, 1, 2]))
    assert refusal(together).code == LOGIC


def test_symbols_are_read_from_files_too(tmp_path: Any) -> None:
    path = tmp_path / "symbol.json"
    path.write_bytes(json.dumps(dense_symbol()).encode())
    assert load_symbol(path).graph == load_symbol(str(path)).graph


@pytest.mark.parametrize("source", [Path("nothing.json"), "a\0b", None, 7, ["{}"]])
def test_what_is_no_file_is_a_runtime_failure(source: Any) -> None:
    with pytest.raises(RuntimeFailureError):
        load_symbol(source)
