"""LightNet's files as a whole: comments, weights, what is fed and what is fetched."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import plait as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lightnet_models import create, model, op
from plait.dialects.lightnet.load import load_lightnet
from plait.dialects.lightnet.statement import RULES
from plait.dialects.lightnet.weights import dump_weights, read_weights
from plait.graph.values.tensor import Array

VECTOR = b"""2
wts1 0 10 3f99999a 3a83126f bcf5c28f 48435000 00000000 \
3f99999a 3a83126f bcf5c28f 48435000 00000000
wts2 2 10 01 02 03 04 05 06 07 08 09 00

"""
"""LightNet's own test data (seeds L55)."""


def relu(source: str = "x", output: str = "y") -> dict[str, Any]:
    return op("relu", {"src": source}, {"dst": output})


def made(name: str, *dims: float, **params: Any) -> dict[str, Any]:
    given: dict[str, Any] = {"ran": [0, 0], "data": [0], "from_file": False, **params}
    return op("create", {}, {"dst": name}, dtype="TL_FLOAT", dims=list(dims), **given)


def test_the_weights_of_lightnets_own_test_are_read() -> None:
    found = read_weights(VECTOR)
    numbers = [1.2, 0.001, -0.03, 200000, 0] * 2
    np.testing.assert_array_equal(found["wts1"], np.array(numbers, np.float32))
    assert found["wts2"].tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9, 0]
    assert found["wts2"].dtype == np.int8


def test_weights_are_written_as_lightnet_writes_them() -> None:
    assert dump_weights(read_weights(VECTOR)).split() == VECTOR.split()


def test_zeros_in_front_and_several_blanks_may_be_left_out() -> None:
    found = read_weights(b"2\na 0 3  0\t3F800000 1 \nnone 0 0\n")
    assert found["a"].view(np.uint32).tolist() == [0, 0x3F800000, 1]
    assert found["none"].shape == (0,)
    assert read_weights(dump_weights(found))["none"].dtype == np.float32


@given(st.lists(st.integers(0, 2**32 - 1), max_size=5), st.lists(st.integers(0, 255), max_size=5))
@settings(max_examples=50, deadline=None)
def test_any_bits_survive(words: list[int], octets: list[int]) -> None:
    arrays: dict[str, Array] = {
        "w": np.array(words, np.uint32).view(np.float32),
        "b": np.array(octets, np.uint8).view(np.int8),
    }
    again = read_weights(dump_weights(arrays))
    assert {name: one.tobytes() for name, one in again.items()} == {
        name: one.tobytes() for name, one in arrays.items()
    }


def test_negative_bytes_are_written_as_two_digits() -> None:
    arrays = {"t": np.array([-1, 127], np.int8)}
    assert dump_weights(arrays) == b"1\nt 2 2 ff 7f\n"
    assert read_weights(b"1\nt 2 2 ff 7f")["t"].tolist() == [-1, 127]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (b"", "not the count"),
        (b"-1", "not the count"),
        (b"2\na 0 0", "2 tensors are announced, and 1 are there"),
        (b"1\na 0 0\nb 0 0", "1 tensors are announced, and 2 are there"),
        (b"1\na 1 1 3c00", "of type '1'"),
        (b"1\na 9 1 00", "of type '9'"),
        (b"1\na 0 2 3f800000", "has 1 elements, not 2"),
        (b"1\na 0 -1", "not a name, type, count"),
        (b"1\na 0", "not a name, type, count"),
        (b"1\na 0 1 3f8000000", "not 8 hexadecimal digits"),
        (b"1\na 0 1 -3f80000", "not 8 hexadecimal digits"),
        (b"1\na 0 1 3f 80000", "has 2 elements, not 1"),
        (b"1\na 0 2 3f80 0000 3f80000", "has 3 elements, not 2"),
        (b"1\na 0 2 3f8000zz 3f800000", "not 8 hexadecimal digits"),
        (b"1\na 2 1 100", "not 2 hexadecimal digits"),
        (b"2\na 2 1 00\na 2 1 00", "'a' is given twice"),
        (b"\xff", "not text"),
        (b"\x1f3", "3 tensors are announced, and 0 are there"),  # a blank to Python, but not to int
    ],
)
def test_damaged_weights_are_named(text: bytes, complaint: str) -> None:
    with pytest.raises(pl.ParseError, match=complaint):
        read_weights(text)


@pytest.mark.parametrize(
    ("name", "array"),
    [("a b", np.ones(1, np.float32)), ("", np.ones(1, np.int8)), ("a", np.ones(1, np.float16))],
)
def test_weights_that_the_format_cannot_hold_are_refused(name: str, array: Any) -> None:
    with pytest.raises(pl.GraphError, match="cannot be written as weights"):
        dump_weights({name: array})


def test_the_example_of_lightnets_documents() -> None:
    data = list(range(1, 9))
    ops = [
        made("tensor1", 2, 4, data=data),
        op("slice", {"src": "tensor1"}, {"dst": "tensor2"}, axis=1, start=1, len=3),
        op("print", {"src": "tensor2"}, {}, msg="tensor2:"),
    ]
    graph = load_lightnet(model(*ops))
    assert graph.outputs == ("tensor2",)
    assert pl.run(graph, {})["tensor2"].tolist() == [[2, 3, 4], [6, 7, 8]]


def test_comments_are_passed_over_but_not_in_strings() -> None:
    text = model(made("x//no", 2, from_file=True), relu("x//no", "/*y*/")).decode()
    text = text.replace('{"name"', '// one\n{ /* several\n lines */ "name"', 1)
    graph = load_lightnet(text.encode())
    assert graph.inputs == ("x//no",)
    assert graph.outputs == ("/*y*/",)


def test_escaped_quotes_do_not_end_a_string() -> None:
    graph = load_lightnet(model(made('a"//', 2, from_file=True), relu('a"//')))
    assert graph.inputs == ('a"//',)


def test_what_a_plan_adds_is_passed_over() -> None:
    document = json.loads(model(made("x", 2, from_file=True), relu()))
    document["mem_sizes_h"], document["mem_sizes_l"] = [0], [64]
    document["ops"][1]["tensors_in"][0].update(offset_h=0, offset_l=1)
    assert load_lightnet(json.dumps(document).encode()).inputs == ("x",)


def test_values_that_are_not_known_are_inputs() -> None:
    ops = [
        made("file", 2, from_file=True),
        made("random", 2, ran=[-1, 1]),
        made("zeros", 2),
        made("data", 2, data=[1, 2]),
        *(relu(name, f"{name}_y") for name in ("file", "random", "zeros", "data")),
    ]
    graph = load_lightnet(model(*ops))
    assert graph.inputs == ("file", "random")
    assert graph.constants["zeros"].tolist() == [0, 0]
    assert graph.constants["data"].tolist() == [1, 2]


def test_weights_give_values_and_inputs_take_them_away() -> None:
    content = model(made("x", 2, ran=[0, 1]), relu())
    weights = b"1\nx 0 2 3f800000 40000000"
    assert load_lightnet(content, weights).constants["x"].tolist() == [1, 2]
    assert load_lightnet(content, weights, inputs=["x"]).inputs == ("x",)


def test_weights_that_nothing_creates_are_passed_over_with_a_warning() -> None:
    content = model(made("x", 2, from_file=True), relu())
    with pytest.warns(UserWarning, match="weights of 'y' are passed over"):
        load_lightnet(content, b"1\ny 0 1 3f800000")


@pytest.mark.parametrize("weights", [b"1\nx 0 3 0 0 0", b"1\nx 2 2 00 00"])
def test_weights_must_fit_the_tensor(weights: bytes) -> None:
    with pytest.raises(pl.ParseError, match="among the weights"):
        load_lightnet(model(made("x", 2, from_file=True), relu()), weights)


def test_what_does_not_fit_a_dtype_is_the_nearest_that_does() -> None:
    params: dict[str, Any] = {"ran": [0, 0], "data": [-300, 1.75, 300], "from_file": False}
    created = op("create", {}, {"dst": "x"}, dtype="TL_INT8", dims=[3], **params)
    graph = load_lightnet(model(created, op("forward", {"src": "x"}, {"dst": "y"})))
    assert pl.run(graph, {})["y"].tolist() == [-128, 1, 127]


def test_what_nobody_reads_is_an_output_after_what_is_printed() -> None:
    ops = [made("x", 2, from_file=True), relu("x", "a"), relu("a", "b"), relu("a", "c")]
    printed = [op("print", {"src": name}, {}, f"print{name}", msg="") for name in ("c", "a")]
    assert load_lightnet(model(*ops)).outputs == ("b", "c")
    assert load_lightnet(model(*ops, *printed)).outputs == ("c", "a", "b")


def test_an_input_that_is_printed_is_copied_to_an_output() -> None:
    ops = [made("x", 2, from_file=True), op("print", {"src": "x"}, {}, msg="")]
    graph = load_lightnet(model(*ops))
    assert graph.outputs == ("x/printed",)


def test_names_in_the_file_do_not_collide_with_names_made_for_it() -> None:
    ops = [
        create("x", np.ones((2, 3), np.float32)),
        op("reshape", {"src": "x"}, {"dst": "constant.1"}, "reshape", dims=[3, 2]),
        op("reshape", {"src": "x"}, {"dst": "reshape/constant"}, "reshape2", dims=[6]),
    ]
    assert load_lightnet(model(*ops)).outputs == ("constant.1", "reshape/constant")


def test_the_document_lists_what_is_read() -> None:
    document = (Path(__file__).parents[3] / "docs" / "formats.md").read_text()
    listed = document.partition("**Read**:")[2].partition("; also with")[0]
    assert sorted(re.findall(r"`(\w+)`", listed)) == sorted(RULES)


def test_all_unknown_operators_are_named() -> None:
    ops = [op("tensorrt", {}, {"dst": "a"}), op("conv1x1_dpu", {}, {"dst": "b"})]
    with pytest.raises(pl.UnknownOperatorError, match="conv1x1_dpu, tensorrt"):
        load_lightnet(model(*ops))


X = made("x", 2, 3, from_file=True)
SLICE: dict[str, Any] = {"axis": 0, "start": 0, "len": 1}


@pytest.mark.parametrize(
    ("ops", "complaint"),
    [
        ([relu()], "no earlier operator writes tensor 'x'"),
        ([X], "nothing is computed"),
        ([X, op("relu", {}, {"dst": "y"})], "the input 'src' is missing"),
        ([X, op("relu", {"src": "x"}, {})], "the output 'dst' is missing"),
        ([X, op("relu", {"src": "x", "more": "x"}, {"dst": "y"})], "no input 'more'"),
        ([X, op("relu", {"src": "x"}, {"dst": "y"}, more=1)], "no parameter 'more'"),
        ([X, op("slice", {"src": "x"}, {"dst": "y"}, axis=1)], "'start' is missing"),
        ([X, op("slice", {"src": "x"}, {"dst": "y"}, **{**SLICE, "axis": 2})], "≥ 0 and < 2"),
        ([X, op("slice", {"src": "x"}, {"dst": "y"}, **{**SLICE, "len": 9})], "beyond the end"),
        ([X, op("slice", {"src": "x"}, {"dst": "y"}, **{**SLICE, "len": 0.5})], "integer ≥ 1"),
        (
            [X, op("slice", {"src": "x"}, {"dst": "y"}, **{**SLICE, "start": 1e99})],
            "beyond the end",
        ),
        ([X, op("slice", {"src": "x"}, {"dst": "y"}, **{**SLICE, "len": "1"})], "a number"),
        ([X, op("reshape", {"src": "x"}, {"dst": "y"}, dims=[])], "not empty"),
        ([X, op("reshape", {"src": "x"}, {"dst": "y"}, dims=["6"])], "array of numbers"),
        ([X, op("reshape", {"src": "x"}, {"dst": "y"}, dims=[1, "6"])], "array of one kind"),
        ([X, op("reshape", {"src": "x"}, {"dst": "y"}, dims=[5])], "the element counts differ"),
        ([X, op("elew", {"src1": "x", "src2": "x"}, {"dst": "y"}, elew_op="TL_MOD")], "none of"),
        ([X, relu(), op("relu", {"src": "x"}, {"dst": "z"}, "relu_y")], "are named 'relu_y'"),
        ([X, relu(), op("relu", {"src": "x"}, {"dst": "y"}, "r2")], "'y' is taken"),
        ([X, op("relu", {"src": "x"}, {"dst": "y" * 512}, "r")], "a name has 512 bytes"),
        ([X, relu("x", "")], "is not a name"),
        ([made("x", 2, data=[1, 2, 3])], "holds 3 elements, not 2"),
        ([made("x", 2, ran=[1, 0])], "is not a range"),
        ([made("x", 99999, 99999)], "a tensor of 9999800001 elements"),
        ([made("x", 0)], "integers ≥ 1"),
    ],
)
def test_what_is_wrong_with_an_operator_is_said(ops: list[Any], complaint: str) -> None:
    with pytest.raises(pl.GraphError, match=complaint) as caught:
        load_lightnet(model(*ops))
    assert caught.value.at is not None
    assert caught.value.fix is not None


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (b"", "not JSON"),
        (b"[]", "not a model"),
        (b'{"ops": {}}', "no list of operators"),
        (b"{}", "this JSON is not a model"),
        (b'{"ops": [1]}', "an operator is not an object"),
        (b'{"ops": [{"name": 1}]}', "'name' is missing, or no string"),
        (b'{"ops": [], "ops": []}', "a key is given twice"),
        (b'{"ops": [] /* }', "a comment has no end"),
        (b'{"ops": NaN}', "NaN is not a number"),
        (b'{"ops": ' + b"[" * 100_000, "nested too deeply"),
        (b'{"ops": []} x', "Extra data"),
        (b"\xff{}", "not JSON"),
    ],
)
def test_what_is_no_file_of_lightnets_is_named(text: bytes, complaint: str) -> None:
    with pytest.raises(pl.ParseError, match=complaint):
        load_lightnet(text)


def test_errors_tell_the_line_in_spite_of_comments() -> None:
    with pytest.raises(pl.ParseError, match="line 4"):
        load_lightnet(b"{ // one\n /* two\n three */\n oops}")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(pl.ParseError, match="there is no such file"):
        load_lightnet(tmp_path / "none.json")


def test_load_knows_the_format_and_the_weights_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "net.json"
    path.write_bytes(b"// a comment first\n" + model(made("x", 2, from_file=True), relu()))
    path.with_suffix(".wts").write_bytes(b"1\nx 0 2 bf800000 40000000")
    graph = pl.load(path)
    assert graph.name == "net"
    assert pl.run(graph, {})["y"].tolist() == [0, 2]


def test_numbers_for_integers_lose_their_fractions() -> None:
    """Rows L32 and L33: parameters keep an integer view, truncated toward zero."""
    graph = load_lightnet(
        model(
            made("x", 2.5, 3.99, from_file=True),
            op("slice", {"src": "x"}, {"dst": "y"}, axis=1.5, start=-0.9, len=2.5),
        )
    )
    assert graph.tensors["x"].shape == (2, 3)
    assert pl.run(graph, {"x": np.arange(6, dtype="float32").reshape(2, 3)})["y"].tolist() == [
        [0, 1],
        [3, 4],
    ]
