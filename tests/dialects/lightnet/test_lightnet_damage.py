"""Files of LightNet's that were damaged: an error, or another graph, never anything else."""

from __future__ import annotations

import contextlib
import copy
import json
import warnings
from typing import Any

import numpy as np
import plait as pl
from hypothesis import given, settings
from hypothesis import strategies as st
from lightnet_models import create, model, op
from plait.dialects.lightnet.load import load_lightnet
from plait.dialects.lightnet.weights import read_weights

MODEL = model(
    create("x", np.ones((1, 2, 6, 6), np.float32)),
    create("w", np.ones((2, 2, 3, 3), np.float32)),
    create("b", np.ones(2, np.float32)),
    op(
        "conv2d",
        {"src": "x", "weight": "w", "bias": "b"},
        {"dst": "c"},
        group=1,
        size=[3, 3],
        stride=[1, 1],
        dilation=[1, 1],
        padding=[1, 1, 1, 1],
        autopad="NOTSET",
    ),
    op("arange", {}, {"dst": "a"}, dtype="TL_INT32", start=0, stop=3, step=1),
    op("upsample", {"src": "c"}, {"dst": "u"}, mode="TL_NEAREST", scales=[1, 1, 2, 2]),
    op("slice", {"src": "u"}, {"dst": "y"}, axis=2, start=1, len=2),
)
WEIGHTS = b"2\nb 0 2 3f800000 bf800000\nt 2 3 01 ff 00\n"

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.sampled_from([1e300, -1e300, 2**31, 1e-300])
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["name", "value", "arg_name", "ops"]), inner, max_size=3)
    ),
    max_leaves=4,
)


def assert_understood_or_refused(content: bytes, weights: bytes | None = None) -> None:
    with warnings.catch_warnings(), contextlib.suppress(pl.GraphError):
        warnings.filterwarnings("ignore", "weights of .* are passed over")
        load_lightnet(content, weights)


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_any_value_in_any_place_is_understood_or_refused(data: st.DataObject) -> None:
    document = copy.deepcopy(json.loads(MODEL))
    place: Any = document
    while True:
        key = data.draw(
            st.sampled_from(sorted(place) if isinstance(place, dict) else range(len(place)))
        )
        inner = place[key]
        if not isinstance(inner, dict | list) or not inner or data.draw(st.integers(0, 5)) == 0:
            break
        place = inner
    place[key] = data.draw(JSON)
    assert_understood_or_refused(json.dumps(document).encode())


@given(st.integers(0, len(MODEL) - 1), st.binary(max_size=3), st.integers(0, 40))
@settings(max_examples=100, deadline=None)
def test_damaged_bytes_are_understood_or_refused(at: int, more: bytes, less: int) -> None:
    assert_understood_or_refused(MODEL[:at] + more + MODEL[at + less :])


@given(st.integers(0, len(WEIGHTS) - 1), st.binary(max_size=3), st.integers(0, 10))
@settings(max_examples=100, deadline=None)
def test_damaged_weights_are_understood_or_refused(at: int, more: bytes, less: int) -> None:
    assert_understood_or_refused(MODEL, WEIGHTS[:at] + more + WEIGHTS[at + less :])


@given(st.binary(max_size=40) | st.text(max_size=40).map(str.encode))
@settings(max_examples=60, deadline=None)
def test_any_bytes_are_weights_or_refused(content: bytes) -> None:
    with contextlib.suppress(pl.ParseError):
        read_weights(content)


def test_the_model_that_is_damaged_is_whole() -> None:
    assert load_lightnet(MODEL).outputs == ("y",)
