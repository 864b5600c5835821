"""Plans are pickled and copied; sessions say that they cannot be."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import plait as pl
import pytest


def make_plan() -> pl.Plan:
    b = pl.GraphBuilder("relu")
    b.output("y", b.op("Relu", b.input("x", "float32", (2,))))
    return pl.plan(b.build(), "cpu")


@pytest.mark.parametrize(
    "duplicate", [copy.copy, copy.deepcopy, lambda plan: pickle.loads(pickle.dumps(plan))]
)
def test_a_copy_of_a_plan_runs(duplicate: Callable[[pl.Plan], pl.Plan]) -> None:
    plan = make_plan()
    made = duplicate(plan)
    assert made == plan
    np.testing.assert_array_equal(pl.run(made, {"x": np.array([-1, 1], "float32")})["y"], [0, 1])


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_session_says_what_to_copy_instead(duplicate: Callable[[Any], Any]) -> None:
    with pl.BlockingSession(make_plan()) as session:
        for one in (session, pl.Session(session.plan), pl.BlockingMicroBatches(session, size=2)):
            with pytest.raises(pl.SessionError, match="cannot be copied or pickled") as caught:
                duplicate(one)
            assert "plan" in str(caught.value.fix)


def test_operators_have_all_outputs_that_are_not_optional() -> None:
    b = pl.GraphBuilder("largest")
    x = b.input("x", "float32", (4,))
    for values, places in (b.op("TopK", x, 2), x.topk(2)):
        assert values.shape == places.shape == (2,)


@pytest.mark.parametrize("name", ["a b", "a,b", "a=b", " ", "a\n"])
def test_a_device_has_a_name_that_commands_can_list(name: str) -> None:
    with pytest.raises(pl.DeviceError, match="not the name of a device"):
        pl.devices.register(name, pl.device)
