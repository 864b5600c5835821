"""Functions that raise what few expect: their item fails, with that as its cause, and no other."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import plait as pl
import pytest
from plait.graph.values.tensor import Array

from .fault_graphs import answer, calling, feeds

FATAL = 666


class Own(BaseException):
    pass


class MuteError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


RAISED = [SystemExit(3), KeyboardInterrupt(), GeneratorExit(), Own("own"), MuteError()]
kinds = pytest.mark.parametrize("error", RAISED, ids=lambda error: type(error).__name__)


def raise_on_some(x: Array, error: BaseException) -> Array:
    if x[0] == FATAL:
        raise error
    return x + x


@pytest.fixture(params=["function", "async function"])
def plan(error: BaseException, forget_operators: None, request: pytest.FixtureRequest) -> pl.Plan:
    def function(x: Array) -> Array:
        return raise_on_some(x, error)

    async def async_function(x: Array) -> Array:
        return raise_on_some(x, error)

    chosen = function if request.param == "function" else async_function
    defined = pl.operator(name="test_odd_exceptions.raise_on_some")(chosen)
    return pl.plan(calling(defined), max_in_flight=2)


def check(failure: BaseException | None, error: BaseException) -> None:
    assert isinstance(failure, pl.KernelError)
    assert failure.what.startswith(type(error).__name__)
    assert str(failure)
    assert failure.__cause__ is error


@kinds
def test_in_a_blocking_session(plan: pl.Plan, error: BaseException) -> None:
    """On a thread, since on the main one what looks like Ctrl-C may be that."""
    with ThreadPoolExecutor(1) as thread:
        thread.submit(run_in_a_blocking_session, plan, error).result()


def run_in_a_blocking_session(plan: pl.Plan, error: BaseException) -> None:
    with pl.BlockingSession(plan) as session:
        with pytest.raises(pl.KernelError) as caught:
            session.run(feeds(FATAL))
        check(caught.value, error)
        found = list(session.stream(map(feeds, (1, FATAL, 2))))
        check(found[1].error, error)
        assert [found[i]["y"].tolist() for i in (0, 2)] == [answer(1), answer(2)]
        assert session.run(feeds(3))["y"].tolist() == answer(3)


@kinds
def test_in_an_asyncio_session(plan: pl.Plan, error: BaseException) -> None:
    if isinstance(error, KeyboardInterrupt) and plan.steps[0].awaited:
        pytest.skip("what looks like Ctrl-C on the main thread may be that")

    async def main() -> None:
        async with pl.AsyncioSession(plan) as session:
            with pytest.raises(pl.KernelError) as caught:
                await session.run(feeds(FATAL))
            check(caught.value, error)
            assert (await session.run(feeds(3)))["y"].tolist() == answer(3)

    asyncio.run(main())


@kinds
async def test_in_a_session(plan: pl.Plan, error: BaseException) -> None:
    async with pl.Session(plan) as session:
        async with session.stream(map(feeds, (1, FATAL, 2))) as results:
            errors = [item.error async for item in results]
        assert (await session.run(feeds(3)))["y"].tolist() == answer(3)
    check(errors[1], error)
    assert [errors[0], errors[2]] == [None, None]


@pytest.mark.parametrize("strikes", [True, False], ids=["Ctrl-C", "raised by the function"])
def test_ctrl_c_is_nobody_s_failure(
    strikes: bool, monkeypatch: pytest.MonkeyPatch, forget_operators: None
) -> None:
    """What looks like it on any other thread than the main one is none."""

    @pl.operator(name="test_odd_exceptions.interrupted")
    def interrupted(x: Array) -> Array:
        raise KeyboardInterrupt

    if strikes:
        monkeypatch.setattr(threading, "main_thread", threading.current_thread)
    with pl.BlockingSession(pl.plan(calling(interrupted))) as session:
        with pytest.raises(KeyboardInterrupt if strikes else pl.KernelError):
            session.run(feeds(1))


@kinds
def test_when_an_instance_is_opened_or_closed(error: BaseException, forget_operators: None) -> None:
    def owner(hook: str) -> type:
        class Owner:
            def open(self, inputs: Any) -> None:
                if hook == "open":
                    raise error

            def run(self, x: Array) -> Array:
                return x + x

            def close(self) -> None:
                if hook == "close":
                    raise error

        return Owner

    with pytest.raises(pl.KernelError, match="when it was opened") as caught:
        pl.BlockingSession(pl.plan(calling(defined(owner("open"), "opens"))))
    check(caught.value, error)
    session = pl.BlockingSession(pl.plan(calling(defined(owner("close"), "closes"))))
    assert session.run(feeds(1))["y"].tolist() == answer(1)
    with pytest.raises(pl.KernelError, match="when it was closed") as caught:
        session.close()
    check(caught.value, error)


def defined(kind: type, name: str) -> Callable[..., Array]:
    defined: Callable[..., Array] = pl.operator(name=f"test_odd_exceptions.{name}")(kind)
    return defined


@pytest.mark.parametrize(
    "error", [error for error in RAISED if type(error) is not KeyboardInterrupt]
)
async def test_an_observer_that_raises_it_is_reported(
    error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    def observe(_: object) -> None:
        raise error

    async with pl.Session(pl.plan(relu()), on_event=observe) as session:
        for _ in range(2):
            await session.run(feeds(1))
    assert [record.message for record in caplog.records if record.levelno == logging.ERROR] == [
        "an observer of a session failed"
    ] * 2


def relu() -> Any:
    builder = pl.GraphBuilder("relu")
    builder.output("y", builder.op("Relu", builder.input("x", "float32", (8,))))
    return builder.build()
