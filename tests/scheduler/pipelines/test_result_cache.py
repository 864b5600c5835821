"""Kept results equal those of the function, which is called once."""

from __future__ import annotations

import math
import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cached_work
import numpy as np
import plait as pl
import pytest
import trio
from cached_work import make_array, note_call, read_calls, run_pipe
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from patience import WAIT_S
from plait.scheduler.pipelines.result_cache import CachedFunction, cache_results

FACTOR = 2


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kept") / "kept.sqlite"


DTYPES = [*("bool", "int8", "uint64", ">i4", "float16", "float64", "complex64", "<U3", "S2")]
PLAIN = (
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 64) - 1)
    | st.floats()
    | st.text(st.characters(exclude_categories=["Cs"]))
    | st.binary()
    | st.sampled_from(DTYPES).flatmap(
        lambda dtype: arrays.arrays(dtype, arrays.array_shapes(min_dims=0, min_side=0, max_side=3))
    )
    | st.sampled_from([np.float32(1.5), np.bool_(True), np.int8(-3), np.datetime64("2026-01-02")])
)
VALUES = st.recursive(
    PLAIN,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text("ab") | st.integers(0, 9) | st.tuples(st.integers(0, 9)), inner)
    ),
    max_leaves=8,
)


def is_same(a: Any, b: Any) -> bool:
    """Compare types and contents; NaN is the same as NaN."""
    if type(a) is not type(b):
        return False
    if isinstance(a, np.ndarray | np.generic):
        return bool(a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes())
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(is_same, a, b))
    if isinstance(a, dict):
        return is_same([*a.items()], [*b.items()])
    if isinstance(a, float):
        return math.copysign(1, a) == math.copysign(1, b) and (a == b or (a != a and b != b))
    return bool(a == b)


@given(VALUES, VALUES)
def test_kept_results_are_those_of_the_function(shared: Path, result: Any, argument: Any) -> None:
    tally = Tally()

    def compute(given: Any) -> Any:
        tally.note("")
        return result

    assert is_same(cache_results(compute, shared, 1 << 30)(argument), result)
    calls = len(tally.names)  # none if another example was the same
    assert is_same(cache_results(compute, shared, 1 << 30)(argument), result)
    assert len(tally.names) == calls <= 1


@given(VALUES, VALUES)
def test_other_arguments_have_other_results(shared: Path, one: Any, other: Any) -> None:
    def compute(given: Any) -> Any:
        return [given]

    kept = cache_results(compute, shared, 1 << 30)
    assert is_same(kept(one), [one])
    assert is_same(kept(other), [other])
    assert is_same(kept(one), [one])


@pytest.mark.parametrize("options", [{}, {"workers": 2}], ids=["threads", "workers"])
def test_a_second_run_does_not_call_the_function(tmp_path: Path, options: dict[str, Any]) -> None:
    names = [f"n{number % 9}" for number in range(30)]
    first = run_pipe(tmp_path, names, **options)
    calls = read_calls(tmp_path)
    assert set(calls) == {"example", *names}
    second = run_pipe(tmp_path, names, **options)
    assert read_calls(tmp_path) == calls
    for name, a, b in zip(names, first, second, strict=True):
        assert a["name"] == b["name"] == name
        assert bytes(a["codes"]) == bytes(b["codes"]) == name.encode()


def test_a_second_process_does_not_call_the_function(tmp_path: Path) -> None:
    run_pipe(tmp_path, ["a", "b"])
    script = "import cached_work, sys, pathlib as p; cached_work.run_pipe(p.Path(sys.argv[1]), "
    command = [sys.executable, "-c", script + "['a', 'b', 'c'])", str(tmp_path)]
    support = str(Path(cached_work.__file__).parent)
    subprocess.run(command, env={**os.environ, "PYTHONPATH": support}, timeout=WAIT_S, check=True)
    assert read_calls(tmp_path) == ["a", "b", "c", "example"]


def test_rows_and_async_functions_and_generators_are_kept(tmp_path: Path) -> None:
    tally = Tally()
    steps = make_kinds(tally)
    for _ in range(2):
        kept = [pl.step(one, cache=tmp_path) for one in steps]
        pipe = pl.pipeline(kept[0], pl.each(kept[1]), kept[2], example=3)
        with pipe:
            assert list(pipe.stream([3, 3, 3])) == [3, 3, 3]
    assert (tmp_path / "results.sqlite").exists()
    assert sorted(tally.names) == ["add", "double", "double", "double", "spread"]


class Tally:
    """A list of names that digests leave out, since a lock cannot be pickled."""

    def __init__(self) -> None:
        self.lock, self.names = threading.Lock(), list[str]()

    def note(self, name: str) -> None:
        self.names.append(name)


def make_kinds(tally: Tally) -> list[Callable[..., Any]]:
    def spread(number: int) -> Iterator[int]:
        tally.note("spread")
        yield from range(number)

    def double(number: int) -> int:
        tally.note("double")
        return 2 * number

    async def add(numbers: list[int]) -> int:
        tally.note("add")
        await trio.lowlevel.checkpoint()
        return sum(numbers) // 2

    return [spread, double, add]


def test_jobs_that_are_resumed_or_repaired_reuse_results(tmp_path: Path) -> None:
    is_broken = True

    def check(found: dict[str, Any]) -> str:
        if is_broken and found["name"] == "n3":
            raise ValueError
        return str(found["name"])

    def read(position: int) -> Iterator[str]:
        for number in range(position, 8):
            if is_broken and number == 6:
                raise ConnectionError
            yield f"{tmp_path}/n{number}"

    def make_job(folder: str) -> pl.Job:
        step = pl.step(note_call, cache=tmp_path / "kept.sqlite")
        pipe = pl.pipeline(step, pl.step(check, ordered=False), example=f"{tmp_path}/n0")
        return pl.Job(pipe, read, "jsonl", tmp_path / folder)

    with pytest.raises(ConnectionError):
        make_job("job").run()
    is_broken = False
    assert make_job("job").run().failed == 1
    assert make_job("job").repair().failed == 0
    assert make_job("other").run().failed == 0
    assert read_calls(tmp_path) == [f"n{number}" for number in range(8)]


def test_a_job_sees_that_a_kept_function_changed(tmp_path: Path) -> None:
    for factor in (2, 3):
        step = pl.step(eval(f"lambda x: x * {factor}"), cache=tmp_path / "kept.sqlite")
        job = pl.Job(pl.pipeline(step, example=1), [1, 2], "jsonl", tmp_path / "job")
        if factor == 2:
            job.run()
        else:
            with pytest.raises(pl.JobError, match="the job's code"):
                job.run()


def test_another_version_of_a_function_is_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def make(offset: int) -> Callable[[int], int]:
        def compute(number: int) -> int:
            return number * FACTOR + offset

        return compute

    path = tmp_path / "kept.sqlite"
    assert cache_results(make(0), path, 1 << 20)(1) == 2
    assert cache_results(make(1), path, 1 << 20)(1) == 3
    monkeypatch.setitem(globals(), "FACTOR", 5)
    assert cache_results(make(1), path, 1 << 20)(1) == 6


def test_errors_and_cancelled_calls_are_not_kept(tmp_path: Path) -> None:
    fails = True

    def check(number: int) -> int:
        if fails:
            raise ValueError("not today")
        return number

    async def wait(number: int) -> int:
        await trio.lowlevel.checkpoint()
        return number + 1

    async def main() -> None:
        kept = cache_results(wait, tmp_path / "kept.sqlite", 1 << 20)
        with trio.CancelScope() as scope:
            scope.cancel()
            await kept(1)
        assert scope.cancelled_caught
        assert count_rows(kept) == 0
        assert await kept(1) == await kept(1) == 2
        assert count_rows(kept) == 1

    kept = cache_results(check, tmp_path / "kept.sqlite", 1 << 20)
    with pytest.raises(ValueError, match="not today"):
        kept(1)
    assert count_rows(kept) == 0
    fails = False
    trio.run(main)


def count_rows(kept: CachedFunction) -> int:
    found = kept.cache._open()[1].execute("SELECT count(*) FROM results").fetchone()[0]
    assert isinstance(found, int)
    return found


def test_the_file_is_bounded_and_the_least_recently_used_go(tmp_path: Path) -> None:
    calls = list[int]()

    class Grow:
        def __call__(self, number: int) -> bytes:
            list.append(calls, number)
            return bytes([number % 256]) * 10_000

    path, most = tmp_path / "kept.sqlite", 1 << 20
    kept = cache_results(Grow(), path, most)
    for number in range(300):
        kept(number)
        kept(0)  # it is always the latest
    assert 40 < count_rows(kept) < 105
    assert calls == list(range(300))
    kept(299)
    kept(0)
    assert len(calls) == 300
    kept(1)
    assert len(calls) == 301
    kept.cache._open()[1].execute("PRAGMA wal_checkpoint(TRUNCATE)")
    assert path.stat().st_size <= most
    huge, count = cache_results(lambda n: bytes(most + n), path, most), count_rows(kept)
    assert len(huge(1)) == most + 1  # it has no room, even alone
    assert count_rows(kept) == count
    small = cache_results(lambda n: bytes(40_000 - n), tmp_path / "small", 1 << 17)
    assert [len(small(n)) for n in (0, 1, 0, 1)] == [40_000, 39_999, 40_000, 39_999]
    assert (tmp_path / "small").stat().st_size <= 1 << 17


def test_threads_share_a_file(tmp_path: Path) -> None:
    kept, wrong = cache_results(make_array, tmp_path / "kept.sqlite", 1 << 20), list[int]()

    def work(seed: int) -> None:
        chance = random.Random(seed)
        for _ in range(60):
            number = chance.randrange(40)
            if not is_same(kept(number), make_array(number)):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=[seed]) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert 0 < count_rows(kept) <= 40


@pytest.mark.slow
def test_processes_that_are_killed_leave_whole_rows(tmp_path: Path) -> None:
    path, chance, start = tmp_path / "kept.sqlite", random.Random(1), 0
    command = [sys.executable, cached_work.__file__, str(path)]
    for _ in range(6):
        child = subprocess.Popen([*command, str(start)], stdout=subprocess.PIPE)
        assert child.stdout is not None
        for _ in range(chance.randrange(1, 60)):  # more are under way when it is killed
            start = int(child.stdout.readline()) + 1
        child.send_signal(signal.SIGKILL)
        child.communicate()
    kept = cache_results(make_array, path, 1 << 30)
    for number in range(start):
        found = kept._find(kept._make_key((number,)))
        assert found is not None
        assert is_same(found[0], make_array(number))
    with sqlite3.connect(path) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    connection.close()


def test_a_forked_process_has_a_connection_of_its_own(tmp_path: Path) -> None:
    kept = cache_results(make_array, tmp_path / "kept.sqlite", 1 << 20)
    kept(1)
    child = os.fork()
    if child == 0:
        is_right = is_same(kept(1), make_array(1)) and is_same(kept(2), make_array(2))
        os._exit(0 if is_right else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert is_same(kept(2), make_array(2))
    assert count_rows(kept) == 2


def test_a_torn_or_forged_value_is_computed_again(tmp_path: Path) -> None:
    kept = cache_results(make_array, tmp_path / "kept.sqlite", 1 << 20)
    connection = kept.cache._open()[1]
    for change in ("substr(value, 1, 100)", "zeroblob(100)", "zeroblob(0)"):
        kept(5)
        connection.execute(f"UPDATE results SET value = {change}")
        assert is_same(kept(5), make_array(5))
    kept.cache.keep(kept._make_key((5,)), b"\xc1")
    assert is_same(kept(5), make_array(5))


def test_a_file_that_cannot_be_written_costs_no_result(tmp_path: Path) -> None:
    kept = cache_results(make_array, tmp_path / "kept.sqlite", 1 << 20)
    kept(1)
    kept.cache._open()[1].execute("PRAGMA query_only = ON")
    assert is_same(kept(1), make_array(1))
    assert is_same(kept(2), make_array(2))
    kept.cache._open()[1].execute("PRAGMA query_only = OFF")
    assert count_rows(kept) == 1


def draw(number: int) -> float:
    return number * random.random()


def draw_by_numpy(number: int) -> float:
    return number * float(np.random.default_rng(number).random())


async def yield_later(number: int) -> Any:
    yield number


SEEN: list[int] = []


def count_calls(number: int) -> int:
    SEEN.append(number)
    return len(SEEN)


@pytest.mark.parametrize(
    ("target", "options", "what"),
    [
        (count_calls, {}, "keeps state in 'SEEN'"),
        (draw, {}, "uses 'random'"),
        (make_array, {"ordered": True}, "ordered=True has no cache="),
        (yield_later, {}, "async generator"),
        (make_array, {"max_bytes": 10}, "max_bytes is 10"),
        (make_array, {"max_bytes": 1e9}, "max_bytes is 1000000000.0"),
        (make_array, {"cache": "/proc/none/kept"}, "the cache of results cannot be used"),
        (make_array, {"cache": __file__}, "file is not a database"),
    ],
)
def test_mistakes_are_refused(
    tmp_path: Path, target: Any, options: dict[str, Any], what: str
) -> None:
    with pytest.raises(pl.GraphError, match=what):
        pl.step(target, **{"cache": tmp_path / "kept.sqlite", **options})
    pl.step(draw_by_numpy, cache=tmp_path / "kept.sqlite")


def test_models_have_no_cache(tmp_path: Path) -> None:
    b = pl.GraphBuilder("twice")
    b.output("y", b.input("x", "float32", (1,)) * 2.0)
    with pytest.raises(pl.GraphError, match="a model has no cache="):
        pl.step(b.build(), cache=tmp_path)


@pytest.mark.parametrize("result", [object(), {1, 2}, 1 << 70, "\ud800", np.array([None])])
def test_results_without_a_form_are_refused(tmp_path: Path, result: Any) -> None:
    kept = cache_results(lambda number: result, tmp_path / "kept.sqlite", 1 << 20)
    with pytest.raises(pl.GraphError, match="a step with cache= returned a"):
        kept(1)


def test_arguments_without_content_are_refused(tmp_path: Path) -> None:
    kept = cache_results(make_array, tmp_path / "kept.sqlite", 1 << 20)
    with pytest.raises(pl.GraphError, match="has no content to compare"):
        kept(sys.stdout)
