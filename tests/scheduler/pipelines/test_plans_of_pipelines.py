"""Plans of pipelines: in files, in the hands of another pipeline, opened by several threads."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import plait as pl
import pytest
from patience import WAIT_S
from plait.graph.core.operator import list_operators, unregister_operator
from plait.graph.functions.function_digest import hash_with_constants
from plait.scheduler.pipelines.api import Pipeline

pytestmark = pytest.mark.usefixtures("forget_operators")


def make_celsius() -> Pipeline:
    def convert(x: float) -> float:
        return (x - 32) * 5 / 9

    return pl.pipeline(convert, example=1.0)


def make_scaled(factor: float) -> Pipeline:
    def convert(x: float) -> float:
        return x * factor

    return pl.pipeline(convert, example=1.0)


def forget_pipelines() -> None:
    """Unregister the operators of pipelines, but not those that jobs keep for their rows."""
    for name in list_operators():
        if name.startswith("pipeline.") and " of each row" not in name:
            unregister_operator(name)


@pytest.mark.parametrize("make_other", [make_celsius, partial(make_scaled, 2.0)])
def test_a_file_is_refused_for_another_function_of_the_same_name(
    make_other: Callable[[], Pipeline], tmp_path: Path
) -> None:
    """In another process, pipelines may be built in another order, which numbers their names."""
    make_other()
    make_scaled(1.6).plan().save(tmp_path / "scaled.plan")
    forget_pipelines()
    make_scaled(1.6)
    make_other()
    with pytest.raises(pl.ParseError, match=r"'pipeline\.convert#2'.*another definition"):
        pl.load_plan(tmp_path / "scaled.plan")


def test_a_file_is_read_by_the_same_pipeline(tmp_path: Path) -> None:
    make_scaled(1.6).plan().save(tmp_path / "scaled.plan")
    forget_pipelines()
    with make_scaled(1.6) as pipe:
        pipe.open(pl.load_plan(tmp_path / "scaled.plan"))
        assert pipe.run(10.0) == 16.0


def test_a_plan_of_another_pipeline_is_refused() -> None:
    celsius, scaled = make_celsius(), make_scaled(2.0)
    fix = r"(?s)another pipeline.*each pipeline a name: pipeline\(\.\.\., name="
    with scaled, pytest.raises(pl.PlanError, match=fix):
        scaled.open(celsius.plan())
    with scaled:
        assert scaled.run(2.0) == 4.0


def test_a_file_of_another_model_is_refused(tmp_path: Path) -> None:
    def make(weight: float) -> Pipeline:
        b = pl.GraphBuilder("scale")
        b.output("y", b.input("x", "float32", (2,)) * np.float32(weight))
        return pl.pipeline(b.build(), str, example=np.ones(2, "float32"))

    make(2).plan().save(tmp_path / "scale.plan")
    forget_pipelines()
    with make(3) as pipe, pytest.raises(pl.PlanError, match="another pipeline"):
        pipe.open(pl.load_plan(tmp_path / "scale.plan"))
    forget_pipelines()
    with make(2) as pipe:
        pl.load_plan(tmp_path / "scale.plan").save(tmp_path / "again.plan")
        pipe.open(pl.load_plan(tmp_path / "again.plan"))
        assert pipe.run(np.ones(2, "float32")) == "[2. 2.]"


def test_an_open_pipeline_refuses_another_plan() -> None:
    with make_celsius() as pipe:
        planned = pipe.plan("cpu")
        session = pipe.open(planned)
        assert pipe.open(planned) is session
        assert pipe.open() is session
        with pytest.raises(pl.SessionError, match="open on another plan"):
            pipe.open(pipe.plan("cpu", max_in_flight=7))


def test_threads_that_open_it_at_once_get_one_session() -> None:
    start = threading.Barrier(4)

    def open_together(_: int) -> object:
        start.wait(WAIT_S)
        return pipe.open()

    with make_celsius() as pipe, ThreadPoolExecutor(4) as threads:
        assert len(set(map(id, threads.map(open_together, range(4))))) == 1


@pytest.mark.parametrize("batch", [None, 4])
def test_a_closed_pipeline_keeps_its_profile(batch: int | None) -> None:
    step = pl.step(list if batch else float, batch=batch)
    with pl.pipeline(step, example=1) as pipe:
        assert pipe.map([1, 2]) == [1, 2]
        before = pipe.profile().table()
    assert pipe.profile().table() == before
    with pipe:
        pipe.run(3)
        assert pipe.profile().table().startswith("1 item in")


def test_digests_count_code_and_constants() -> None:
    def make(factor: Any, *, twice: bool = False) -> Callable[[Any], Any]:
        def once(x: Any) -> Any:
            return x * factor

        def two(x: Any) -> Any:
            return x * factor * factor

        return two if twice else once

    digests = [hash_with_constants(make(one)) for one in (1.0, 2.0, "a", (1, "b"), [1], [2])]
    assert len(set(digests)) == 5  # objects count by type
    assert digests[-1] == digests[-2]
    assert hash_with_constants(make(1.0)) == digests[0]
    assert hash_with_constants(make(1.0, twice=True)) != digests[0]
    assert hash_with_constants(partial(pow, 2)) != hash_with_constants(partial(pow, 3))
    assert hash_with_constants(partial(pow, mod=2)) != hash_with_constants(partial(pow, mod=3))
