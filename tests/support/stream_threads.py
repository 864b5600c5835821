"""Functions of items that run on the threads of a stream, and note where."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from itertools import count
from threading import Barrier, Event
from typing import Any

import numpy as np
import plait as pl
import pytest
from patience import WAIT_S
from plait.scheduler.bridges.inline import StreamHere

Array = np.ndarray[Any, Any]
Item = dict[str, Array]
_numbers = count()


def may_use_threads(here: StreamHere) -> bool:
    return here.threads > 0 and not here.are_threads_refused


def send_items_to_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have streams run items on threads wherever these may, and no item where it is asked for."""
    monkeypatch.setattr(StreamHere, "uses_threads", property(may_use_threads))
    monkeypatch.setattr(StreamHere, "is_due", property(lambda here: not here.threads))
    monkeypatch.setattr(StreamHere, "__call__", lambda *_: None)


class Called:
    """The function of a step: notes where it runs; waits, raises or calls as a test says."""

    __name__ = "called"

    def __init__(self) -> None:
        self.threads: list[str] = []
        self.wait_at: dict[float, Event | Barrier] = {}
        self.raise_at: set[float] = set()
        self.inside: Any = None

    def __call__(self, x: Array) -> Array:
        value = float(x[0])
        self.threads.append(threading.current_thread().name)
        if value in self.wait_at:
            self.wait_at[value].wait(WAIT_S)
        if self.inside is not None:
            self.inside()
        if value in self.raise_at:
            raise ValueError(f"{value:g} is refused")
        return x + 1


def make_operator(function: Called, **options: Any) -> Any:
    def call(x: Array) -> Array:
        return function(x)

    return pl.operator(name=f"stream_threads.called_{next(_numbers)}", **options)(call)


def make_items(number: int) -> Iterator[Item]:
    """Yield items in one array, which is written again and again."""
    fed = {"x": np.zeros(2, np.float32)}
    for value in range(number):
        fed["x"].fill(value)
        yield fed


def is_on_threads(function: Called) -> bool:
    return {name.split(":")[0] for name in function.threads} == {"plait-item"}


def make_called_plan(function: Called, lanes: int = 2, **options: Any) -> pl.Plan:
    builder = pl.GraphBuilder("called")
    called = make_operator(function)
    builder.output("y", builder.call(called, builder.input("x", "float32", (2,))))
    return pl.plan(builder.build(), [f"cpu:0..{lanes - 1}"], **options)


def list_threads(session: pl.BlockingSession) -> list[Any]:
    return [*session._submitter.threads._threads]
