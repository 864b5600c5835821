"""Weights in several files: the index says which array is where, and is not believed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import plait as pl
import pytest
from plait.graph.values.errors import ParseError

INDEX = "model.safetensors.index.json"


def index_of(folder: Path, places: Any) -> Path:
    for name in "ab":
        pl.save_weights({name: np.full(2, ord(name)), "both": np.zeros(1)}, folder / f"{name}.st")
    path = folder / INDEX
    path.write_text(json.dumps({"metadata": {"total_size": 32}, "weight_map": places}))
    return path


def test_arrays_come_from_the_files_that_the_index_names(tmp_path: Path) -> None:
    weights = pl.load_weights(index_of(tmp_path, {"b": "b.st", "a": "a.st"}))

    assert {name: array.tolist() for name, array in weights.items()} == {
        "b": [98, 98],
        "a": [97, 97],
    }


@pytest.mark.parametrize(
    ("places", "message"),
    [
        (None, "there is no weight_map"),
        (["a.st"], "there is no weight_map"),
        ({"a": 3}, "there is no weight_map"),
        ({"a": "../a.st"}, r"'../a.st' is not a file beside the index"),
        ({"a": "/etc/passwd"}, "is not a file beside the index"),
        ({"a": "..\\a.st"}, "is not a file beside the index"),
        ({"a": ".."}, "is not a file beside the index"),
        ({"a": "c.st"}, "there is no such file"),
        ({"b": "a.st"}, "the file 'a.st' has no array 'b'"),
        ({"a": INDEX}, "not a safetensors file"),
    ],
)
def test_an_index_that_cannot_be_right_is_refused(
    tmp_path: Path, places: Any, message: str
) -> None:
    with pytest.raises(ParseError, match=message) as caught:
        pl.load_weights(index_of(tmp_path, places))
    assert caught.value.at
    assert caught.value.fix


@pytest.mark.parametrize(
    "text",
    [
        "[1]",
        "{",
        r'{"weight_map": {"w": "\ud800"}}',
        '{"weight_map": {"a": "x", "a": "y"}}',
        "[" * 99999,
    ],
)
def test_a_damaged_index_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / INDEX).write_text(text)
    with pytest.raises(ParseError, match=r"the index is damaged|there is no weight_map"):
        pl.load_weights(tmp_path / INDEX)
