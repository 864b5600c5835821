"""Tensors of text: fed, computed by ONNX Runtime, handed to Python functions, and fetched."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import plait as pl
import pytest
from onnx import TensorProto, helper
from plait.graph.values.errors import GraphError
from plait.graph.values.tensor import Array

WORDS = np.array(["ö", "", "blue", "red " * 50], object)
COLOURS: dict[str, Any] = {
    "keys_strings": ("blue", "ö"),
    "values_int64s": (3, 5),
    "default_int64": -1,
}
CODES = [5, -1, 3, -1]


def encoding() -> pl.Graph:
    """Return the graph that gives each word its code, and the code its word again."""
    b = pl.GraphBuilder("encoding")
    words = b.input("words", "str", ("n",))
    codes = b.op("ai.onnx.ml.LabelEncoder", words, **COLOURS)
    names: dict[str, Any] = {
        "keys_int64s": (3, 5),
        "values_strings": ("blau", "ö"),
        "default_string": "?",
    }
    b.output("codes", codes)
    b.output("again", b.op("ai.onnx.ml.LabelEncoder", codes, **names))
    return b.build()


def model(node: Any, inputs: Mapping[str, int], output: int, constants: Any = ()) -> Any:
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [node],
        "text",
        [value(name, type_, ["n", 2]) for name, type_ in inputs.items()],
        [value("y", output, None)],
        list(constants),
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("ai.onnx.ml", 3)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def text_proto(name: str, *rows: str, dims: list[int]) -> Any:
    return TensorProto(
        name=name,
        data_type=TensorProto.STRING,
        dims=dims,
        string_data=[row.encode() for row in rows],
    )


def by_onnxruntime(proto: onnx.ModelProto, fed: dict[str, Array]) -> Array:
    session = onnxruntime.InferenceSession(
        proto.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    (found,) = session.run(None, fed)
    return np.asarray(found)


@pytest.mark.parametrize("devices", [["ort"], ["cpu", "ort"], ["worker:0", "ort"]])
@pytest.mark.parametrize("bounds", [None, {"n": 9}])
def test_items_that_are_in_flight_together_keep_their_words(
    devices: list[str], bounds: dict[str, int] | None
) -> None:
    plan = pl.plan(encoding(), devices, max_in_flight=3, bounds=bounds)
    rows = [WORDS[: 1 + n % 4] for n in range(20)]
    with pl.BlockingSession(plan) as session:
        found = [
            (item["codes"].tolist(), item["again"].tolist())
            for item in session.stream({"words": row} for row in rows)
        ]
    again = ["ö", "?", "blau", "?"]
    assert found == [(CODES[: len(row)], again[: len(row)]) for row in rows]


@pytest.mark.parametrize("suffix", [".onnx", ".plait"])
def test_files_hold_it(suffix: str, tmp_path: Path) -> None:
    pl.save(encoding(), tmp_path / f"model{suffix}")
    again = pl.load(tmp_path / f"model{suffix}")
    assert again.tensors["words"] == pl.TensorSpec("str", ("n",))
    assert pl.run(again, {"words": WORDS}, devices=["ort"])["codes"].tolist() == CODES


def test_saved_plans_hold_it(tmp_path: Path) -> None:
    pl.plan(encoding(), ["ort"], shapes={"words": (4,)}).save(tmp_path / "encoding.plan")
    plan = pl.load_plan(tmp_path / "encoding.plan")
    assert pl.run(plan, {"words": WORDS})["codes"].tolist() == CODES


def test_batches_are_stacked_and_taken_apart() -> None:
    plan = pl.plan(encoding(), ["ort"])
    with pl.BlockingSession(plan) as session:
        rows = ({"words": WORDS[n : n + 1]} for n in range(4))
        found = [item["codes"].tolist() for item in session.stream(rows, batch=2)]
    assert found == [[code] for code in CODES]


def columns(words: list[str | None]) -> dict[str, Any]:
    """Return what libraries make of words, None among them for those that are missing."""
    pandas, polars, arrow = map(pytest.importorskip, ("pandas", "polars", "pyarrow"))
    return {
        "objects": np.array(words, object),
        "polars": polars.Series("words", words),
        "pyarrow": arrow.array(words),
        "pandas": pandas.Series(words, dtype="string"),
        "pandas of today": pandas.Series(words),
    }


def test_columns_of_text_are_fed_and_what_they_lack_is_refused() -> None:
    graph = encoding()
    for library, column in columns(["ö", "blue"]).items():
        found = pl.run(graph, {"words": column}, devices=["ort"])
        assert found["codes"].tolist() == [5, 3], library
    for library, column in columns(["ö", None]).items():
        with pytest.raises(pl.FeedError, match="values are missing in what is fed") as caught:
            pl.run(graph, {"words": column}, devices=["ort"])
        assert caught.value.at == "input 'words'", library


@pytest.mark.parametrize("words", [["ö", "blue"], np.array(["ö", "blue"])])
def test_lists_and_arrays_of_one_length_are_fed(words: Any) -> None:
    fed: list[Any] = [words, np.array(words, np.dtypes.StringDType())]
    for one in fed:
        assert pl.run(encoding(), {"words": one}, devices=["ort"])["codes"].tolist() == [5, 3]


@pytest.mark.parametrize("fed", [np.ones(2), np.array(["a", 1], object), np.array([b"a"])])
def test_what_is_no_text_is_refused(fed: Array) -> None:
    with pytest.raises(pl.FeedError, match=r"'words' must be str\[n\]"):
        pl.run(encoding(), {"words": fed}, devices=["ort"])


def test_constants_of_text_have_their_shape() -> None:
    table = text_proto("table", "a", "b", "ö", "", dims=[2, 2])
    one = text_proto("one", "b", dims=[])
    node = helper.make_node("Where", ["which", "table", "one"], ["y"])
    proto = model(node, {"which": TensorProto.BOOL}, TensorProto.STRING, [table, one])
    fed = {"which": np.array([[True, False], [False, True]])}
    found = pl.run(pl.load(proto), fed, devices=["cpu", "ort"])["y"]
    assert np.array_equal(found, by_onnxruntime(proto, fed))
    assert found.tolist() == [["a", "b"], ["b", ""]]


@pytest.mark.parametrize(("rows", "dims"), [(["a"], [2]), (["a"], [-1])])
def test_constants_of_other_lengths_than_they_say_are_refused(
    rows: list[str], dims: list[int]
) -> None:
    node = helper.make_node("Equal", ["x", "c"], ["y"])
    inputs = {"x": TensorProto.STRING}
    proto = model(node, inputs, TensorProto.BOOL, [text_proto("c", *rows, dims=dims)])
    with pytest.raises(pl.ParseError, match="has 1 elements") as caught:
        pl.load(proto)
    assert "constant 'c'" in str(caught.value.at)


@pytest.mark.parametrize("attribute", [{"value_string": "b"}, {"value_strings": ["b"]}])
def test_nodes_may_hold_text(attribute: Any) -> None:
    proto = model(
        helper.make_node("Equal", ["x", "c"], ["y"]), {"x": TensorProto.STRING}, TensorProto.BOOL
    )
    proto.graph.node.insert(0, helper.make_node("Constant", [], ["c"], **attribute))
    fed = {"x": np.array([["a", "b"]], object)}
    assert pl.run(pl.load(proto), fed, devices=["ort"])["y"].tolist() == [[False, True]]


def test_numbers_become_text_and_text_numbers_on_ort_alone() -> None:
    cast = helper.make_node("Cast", ["x"], ["y"], to=TensorProto.STRING)
    proto = model(cast, {"x": TensorProto.FLOAT}, TensorProto.STRING)
    fed = {"x": np.array([[1.5, -2]], np.float32)}
    plan = pl.plan(pl.load(proto), ["cpu", "ort"])
    assert np.array_equal(pl.run(plan, fed)["y"], by_onnxruntime(proto, fed))
    assert "text goes to Python functions alone on 'cpu' devices" in plan.report(nodes=True)


def test_tables_of_classes_and_numbers_stay_tables() -> None:
    node = helper.make_node(
        "ZipMap", ["x"], ["y"], domain="ai.onnx.ml", classlabels_strings=["a", "b"]
    )
    graph = pl.load(model(node, {"x": TensorProto.FLOAT}, TensorProto.FLOAT))
    table = np.array([[0.25, 0.75]], np.float32)
    assert np.array_equal(pl.run(graph, {"x": table})["y"], table)


@pl.operator(pl.TensorSpec("str", ("n",)), inputs=[pl.TensorSpec("str", ("n",))])
def strip(words: Array) -> Array:
    return np.array([word.strip() for word in words])


@pl.operator(pl.TensorSpec("str", ("n",)), inputs=[pl.TensorSpec("int64", ("n",))])
def spoil(codes: Array) -> Array:
    return codes


def test_functions_take_and_give_text() -> None:
    b = pl.GraphBuilder("stripped")
    words = b.call(strip, b.input("words", "str", ("n",)))
    b.output("codes", b.op("ai.onnx.ml.LabelEncoder", words, **COLOURS))
    plan = pl.plan(b.build(), ["worker:0", "cpu", "ort"])
    assert set(plan.assignment.values()) == {"cpu", "ort"}
    with pl.BlockingSession(plan) as session:
        for words in (["ö ", " blue"], ["blue"]):
            fed = np.array(words)
            assert session.run({"words": fed})["codes"].tolist() == [5, 3][-len(fed) :]


def test_what_functions_declare_to_be_text_has_to_be_that() -> None:
    b = pl.GraphBuilder("spoiled")
    b.output("y", b.call(spoil, b.input("codes", "int64", ("n",))))
    with pytest.raises(pl.KernelError, match="output 0 of the function is not only text"):
        pl.run(b.build(), {"codes": np.arange(3)}, devices=["cpu"])


def test_devices_that_take_no_text_say_so() -> None:
    with pytest.raises(pl.UnsupportedOpError, match="text does not go to 'worker:0'") as caught:
        pl.plan(encoding(), ["worker:0"])
    assert "add 'ort'" in str(caught.value.fix)


def test_a_constant_is_no_text() -> None:
    graph = encoding()
    tensors = {**graph.tensors, "c": pl.TensorSpec("str", (4,))}
    broken = pl.Graph("g", graph.inputs, graph.outputs, graph.nodes, tensors, {"c": WORDS})
    with pytest.raises(GraphError, match="constant 'c' is not an array of numbers"):
        pl.save(broken, "never.plait")


@pytest.mark.extended
def test_the_command_line_reads_and_writes_it(tmp_path: Path) -> None:
    pl.save(encoding(), tmp_path / "m.plait")
    np.save(tmp_path / "words.npy", WORDS.astype(str))
    command = [sys.executable, "-m", "plait", "run", "m.plait", "--devices", "ort"]
    options = ["--input", "words=words.npy", "--output", "out.npz"]
    done = subprocess.run(
        [*command, *options], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert "wrote codes, again" in done.stdout
    with np.load(tmp_path / "out.npz") as found:
        assert found["again"].tolist() == ["ö", "?", "blau", "?"]
    drawn = subprocess.run(
        [*command, "--input", "words=random"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "str[1]" in drawn.stdout
