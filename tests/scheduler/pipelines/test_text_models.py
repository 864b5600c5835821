"""Models that take text in pipelines."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import plait as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("onnxruntime")


@pytest.fixture(autouse=True)
def _use_onnxruntime(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLAIT_DEVICES", "cpu,ort")


CODES = {"blue": 3, "ö": 5}
WORDS = st.sampled_from([*CODES, "", "a long word that no example has"])


def make_encoder() -> pl.Graph:
    b = pl.GraphBuilder("encoder")
    codes: dict[str, Any] = {
        "keys_strings": [*CODES],
        "values_int64s": [*CODES.values()],
        "default_int64": -1,
    }
    words = b.input("words", "str", ("n",))
    b.output("codes", b.op("ai.onnx.ml.LabelEncoder", words, **codes))
    return b.build()


def to_array(word: str) -> Any:
    return np.array([word])


def to_objects(word: str) -> Any:
    return np.array([word], object)


def to_strings(word: str) -> Any:
    return np.array([word], np.dtypes.StringDType())


MAKE = pytest.mark.parametrize("make", [to_array, to_objects, to_strings])


@given(st.lists(WORDS, min_size=1, max_size=6), st.sampled_from([None, 1, 4]))
@MAKE
def test_a_function_makes_their_words(
    make: Callable[[str], Any], words: list[str], batch: int | None
) -> None:
    model: Any = make_encoder() if batch is None else pl.step(make_encoder(), batch=batch)
    with pl.pipeline(make, model, lambda codes: int(codes[0]), example="blue") as pipe:
        assert pipe.map(words) == [CODES.get(word, -1) for word in words]


@given(st.lists(st.lists(WORDS, max_size=5), min_size=1, max_size=4), st.sampled_from([None, 2]))
@MAKE
def test_so_it_does_for_rows(
    make: Callable[[str], Any], items: list[list[str]], batch: int | None
) -> None:
    rows = pl.each(make, make_encoder(), lambda codes: int(codes[0]), batch=batch)
    with pl.pipeline(rows, example=["blue", "ö"]) as pipe:
        assert pipe.map(items) == [[CODES.get(word, -1) for word in words] for words in items]


def test_other_objects_are_refused() -> None:
    with pytest.raises(pl.PlaitError, match="words"):
        pl.pipeline(lambda word: np.array([word, 1], object), make_encoder(), example="blue")


@pytest.mark.parametrize(
    ("example", "message"),
    [
        ("blue", "got str\n(.|\n)*fix: give it an array of text"),
        (np.array([2.0]), r"got float64\[1\]\n(.|\n)*np.asarray\(value, 'str'\)"),
    ],
)
def test_an_example_that_is_no_array_of_text_is_refused(example: Any, message: str) -> None:
    with pytest.raises(pl.GraphError, match=message):
        pl.pipeline(make_encoder(), example=example)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (np.array([b"blue"]), "got bytes\n(.|\n)*fix: feed an array of str"),
        (np.array([2.0]), r"got dtype 'float64'\n(.|\n)*np.asarray\(value, 'str'\)"),
    ],
)
def test_a_feed_that_is_no_text_is_refused(words: Any, message: str) -> None:
    with (
        pl.BlockingSession(make_encoder()) as session,
        pytest.raises(pl.FeedError, match=message),
    ):
        session.run({"words": words})
