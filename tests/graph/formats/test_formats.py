from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import plait as pl
import pytest
from onnx_models import model, node, written
from plait.graph.values.errors import GraphError, ParseError


def small_graph() -> pl.Graph:
    b = pl.GraphBuilder("small")
    b.output("y", b.op("Add", b.input("x", "float32", (2,)), np.ones(2, "float32")))
    return b.build()


def test_a_saved_graph_is_loaded(tmp_path: Path) -> None:
    pl.save(small_graph(), tmp_path / "small.plait")

    assert str(pl.load(tmp_path / "small.plait")) == str(small_graph())


def test_paths_may_be_text(tmp_path: Path) -> None:
    pl.save(small_graph(), os.fspath(tmp_path / "small.plait"))

    assert pl.load(os.fspath(tmp_path / "small.plait")).name == "small"


def test_files_are_told_apart_by_content(tmp_path: Path) -> None:
    pl.save(small_graph(), tmp_path / "small.plait")
    native = (tmp_path / "small.plait").rename(tmp_path / "native.onnx")
    proto = model([node("Relu", "x", "y")], {"x": ("float32", (2,))})
    foreign = written(proto, tmp_path, "foreign.plait")

    assert pl.load(native).name == "small"
    assert pl.load(foreign).name == "tiny"


@pytest.mark.parametrize("name", ["model.pb", "model", "model.plait.gz"])
def test_files_of_other_kinds_are_not_written(name: str, tmp_path: Path) -> None:
    with pytest.raises(GraphError, match="plait does not write") as caught:
        pl.save(small_graph(), tmp_path / name)
    assert caught.value.fix == "choose a name that ends in .plait, .onnx, .json or .net"
    assert not list(tmp_path.iterdir())


def test_a_missing_file_says_so(tmp_path: Path) -> None:
    with pytest.raises(ParseError, match="there is no such file") as caught:
        pl.load(tmp_path / "nowhere.onnx")
    assert str(caught.value.at).endswith("nowhere.onnx")


def test_a_folder_says_so(tmp_path: Path) -> None:
    with pytest.raises(ParseError, match="this is a folder"):
        pl.load(tmp_path)


def test_a_file_one_may_not_read_says_so(tmp_path: Path) -> None:
    (tmp_path / "not").touch()
    with pytest.raises(ParseError, match="cannot read the file: Not a directory"):
        pl.load(tmp_path / "not" / "model.onnx")


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "model.onnx")
    with pytest.raises(ParseError, match="not an ordinary file"):
        pl.load(tmp_path / "model.onnx")


def test_what_is_no_path_says_so() -> None:
    with pytest.raises(
        ParseError, match=r"expected a path, bytes, an open file, or a model.*, got int"
    ):
        pl.load(3)
    with pytest.raises(GraphError, match="expected a path, got NoneType"):
        pl.save(small_graph(), None)  # type: ignore[arg-type]


def test_only_graphs_are_saved(tmp_path: Path) -> None:
    with pytest.raises(GraphError, match="expected a graph, got dict"):
        pl.save({}, tmp_path / "small.plait")  # type: ignore[arg-type]


def test_a_path_that_cannot_be_says_so() -> None:
    with pytest.raises(ParseError, match="cannot read the file: embedded null byte"):
        pl.load("model\0.onnx")


def test_an_empty_file_says_so(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").touch()
    with pytest.raises(ParseError, match="the file is empty"):
        pl.load(tmp_path / "model.onnx")


@pytest.mark.parametrize(
    "content",
    [
        b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR" + bytes(40),
        b"# Notes\n\nThis is text, not a model.\n" * 9,
        b"PK\x03\x04" + bytes(99),
        b"\x80\x04\x95cbuiltins\nprint\n",
        bytes(100),
        b"\x00",
    ],
)
def test_other_files_are_no_models(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(content)
    with pytest.raises(ParseError, match=r"neither a \.plait file nor an ONNX model") as caught:
        pl.load(path)
    assert caught.value.at == str(path)
