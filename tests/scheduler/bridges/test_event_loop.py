"""Event loops that are started for callers, where the system has nothing left to start one with."""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import plait as pl
import pytest
from plait.scheduler.bridges.loop_thread import run_loop

FEEDS = {"x": np.array([-1, 2], "float32")}


def relu() -> pl.Plan:
    b = pl.GraphBuilder("relu")
    b.output("y", b.op("Relu", b.input("x", "float32", (2,))))
    return pl.plan(b.build())


@contextmanager
def no_descriptors_left() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize(
    "begin", [lambda plan: pl.run(plan, FEEDS), pl.BlockingSession], ids=["run", "BlockingSession"]
)
def test_a_loop_that_finds_no_descriptors_says_what_is_missing(
    begin: Callable[[pl.Plan], object],
) -> None:
    plan = relu()
    pl.run(plan, FEEDS)  # nothing is imported when no file can be opened
    with pytest.raises(pl.SessionError, match="no event loop can be started: Too many") as caught:
        with no_descriptors_left():
            begin(plan)
    assert "ulimit" in str(caught.value.fix)
    assert pl.run(plan, FEEDS)["y"].tolist() == [0, 2]


def test_what_a_loop_runs_may_fail_with_the_same_kind_of_error() -> None:
    async def fail() -> None:
        raise FileNotFoundError("of its own")

    with pytest.raises(FileNotFoundError, match="of its own"):
        run_loop(fail)
