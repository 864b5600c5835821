"""Ctrl-C at every moment of the loop, and at every instruction of the scheduler."""

from __future__ import annotations

import asyncio
import dis
import gc
import linecache
import signal
import sys
from collections.abc import Callable
from functools import cache
from itertools import count
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import plait as pl
import pytest
import trio
from moments import AtMoment
from patience import WAIT_S
from plait import scheduler
from resources import await_dropped_sessions, held, left_since

from .subjects import Watched, consume, planned, run_one, same, two_steps

SCHEDULER = Path(scheduler.__file__).parent


async def whole_life(plan: pl.Plan) -> None:
    with trio.fail_after(WAIT_S):
        async with pl.Session(plan) as session:
            await run_one(session, same(4))
            await consume(session, Watched(same(4), 3, asynchronous=False))


def control_c() -> None:
    signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize("shape", [4, "n"])
def test_control_c_at_any_moment_ends_the_program_and_leaves_nothing_behind(
    shape: int | str,
) -> None:
    plan, before = planned(two_steps(shape)), held()
    for moment in count(0, 5):
        at_moment = AtMoment(moment, control_c)
        try:
            trio.run(whole_life, plan, instruments=[at_moment])
        except KeyboardInterrupt:
            assert at_moment.struck
        else:
            break
        assert not left_since(before)
    assert moment > 50


CHECKS = {"CALL", "JUMP_BACKWARD", "RESUME"}
"""Where the interpreter looks for signals."""


class AtInstruction:
    """A trace function that sends Ctrl-C at the n-th instruction below a path that can get it.

    Attributes
    ----------
    struck : str or None
        Where it did.
    """

    def __init__(self, path: Path, instruction: int) -> None:
        self._path = str(path)
        self._left = instruction
        self.struck: str | None = None

    def __call__(self, frame: FrameType, event: str, argument: object) -> Any:
        if not frame.f_code.co_filename.startswith(self._path):
            return None
        frame.f_trace_lines, frame.f_trace_opcodes = False, True
        return self._instruction

    def _instruction(self, frame: FrameType, event: str, argument: object) -> Any:
        if event == "opcode" and _may_be_interrupted(frame):
            self._left -= 1
            if self._left < 0 and self.struck is None:
                self.struck = f"{frame.f_code.co_filename}:{frame.f_lineno}"
                control_c()
        return self._instruction


def _may_be_interrupted(frame: FrameType) -> bool:
    if dis.opname[_code(frame.f_code)[frame.f_lasti]] not in CHECKS:
        return False
    # Contexts are left by a call that no signal can come before.
    line = linecache.getline(frame.f_code.co_filename, frame.f_lineno or 0).lstrip()
    return not line.startswith(("with ", "async with "))


@cache
def _code(code: CodeType) -> bytes:
    return code.co_code


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "stride", "least"),
    [("", 31, 10), ("runtime/session.py", 1, 10), ("runtime/streaming/item_run.py", 1, 2)],
)
def test_control_c_at_any_instruction_ends_the_program_and_leaves_nothing_behind(
    path: str, stride: int, least: int
) -> None:
    plan, before = planned(two_steps(4)), held()
    tracing = sys.gettrace()
    for instruction in count(0, stride):
        at = AtInstruction(SCHEDULER / path, instruction)
        sys.settrace(at)
        try:
            trio.run(whole_life, plan)
        except KeyboardInterrupt:
            assert at.struck
        else:
            assert not at.struck, f"Ctrl-C was lost at {at.struck}"
            break
        finally:
            sys.settrace(tracing)
        assert not left_since(before), f"Ctrl-C at {at.struck}"
    assert instruction > least


def run_blocking(plan: pl.Plan) -> None:
    with pl.BlockingSession(plan) as session:
        session.run(next(same(4)))
        session.submit(next(same(4))).result(WAIT_S)
        with session.stream([next(same(4))] * 3) as results:
            for _ in results:
                pass


def drop_blocking(plan: pl.Plan) -> None:
    """Leave the end of a session, and of a stream, to their being collected."""
    session = pl.BlockingSession(plan)
    next(session.stream([next(same(4))] * 3))
    del session


async def run_on_asyncio(plan: pl.Plan) -> None:
    async with pl.AsyncioSession(plan) as session:
        await session.run(next(same(4)))
        async with session.stream([next(same(4))] * 3) as results:
            async for _ in results:
                pass


LIVES: dict[str, Callable[[pl.Plan], object]] = {
    "blocking": run_blocking,
    "dropped": drop_blocking,
    "asyncio": lambda plan: asyncio.run(run_on_asyncio(plan)),
}


@pytest.mark.slow
@pytest.mark.parametrize("life", LIVES)
@pytest.mark.parametrize(
    ("path", "stride", "least"),
    [("bridges", 7, 10), ("bridges/loop_thread.py", 1, 25), ("bridges/owners.py", 1, 2)],
)
def test_control_c_in_sessions_with_loops_of_their_own_ends_them(
    life: str, path: str, stride: int, least: int
) -> None:
    plan, before = planned(two_steps(4)), held()
    tracing = sys.gettrace()
    for instruction in count(0, stride):
        at = AtInstruction(SCHEDULER / path, instruction)
        sys.settrace(at)
        try:
            LIVES[life](plan)
        except (KeyboardInterrupt, asyncio.CancelledError):
            assert at.struck
        else:
            assert not at.struck, f"Ctrl-C was lost at {at.struck}"
            break
        finally:
            sys.settrace(tracing)
        gc.collect()
        await_dropped_sessions(())
        assert not left_since(before), f"Ctrl-C at {at.struck}"
    assert instruction > least
