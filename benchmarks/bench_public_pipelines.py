"""Are pipelines that other projects publish shorter with plait, and as fast as by hand?

Twelve pipelines (benchmarks/public), rebuilt from their descriptions with models from packages, or
small networks of the same kind, on generated data. None has been tuned for. Each runs in turns:

- as a loop: ONNX Runtime with its default threads, one item after the other;
- by hand: a ThreadPoolExecutor of 2 or 3 threads and ONNX Runtime with one thread each, whichever
  is faster in a first round;
- in SPDL and in Daft, with the same functions, where these are installed;
- with `plait.pipeline`, without options.

Goals: at least 1.0 times as fast as by hand and as each engine, and fewer lines than by hand. With
`taskset -c 0` and `--results public_pipelines_one_core` on one core, as many containers have; with
`--seconds 0.5` and `--results public_pipelines_long` for longer streams. Most others last for 50
ms, in which systems still move threads from core to core.
"""

from __future__ import annotations

import argparse
import inspect
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np
import onnxruntime as ort
from measure import save
from public.cases import CASES, Case
from quiet import Watch

Way = Callable[[Sequence[Any]], list[Any]]
GOALS = {"times as fast as by hand, at least": 1.0, "times as fast as engines, at least": 1.0}
POOL_LINES, PLAIT_LINES = 3, 2
"""Lines of a user's script beside the functions: to make and use a pool, or a pipeline."""


def open_with(threads: int) -> Callable[[Any], Callable[..., Any]]:
    """Return a function that opens models by hand."""

    def open_model(path: Any) -> Callable[..., Any]:
        options = ort.SessionOptions()
        options.intra_op_num_threads = threads
        session = ort.InferenceSession(str(path), options)
        names = [one.name for one in session.get_inputs()]
        return lambda *arrays: session.run(None, dict(zip(names, arrays, strict=True)))[0]

    return open_model


def make_ways(case: Case, stack: ExitStack) -> Iterator[tuple[str, Way]]:
    """Yield the ways to run a case without plait."""
    # Threads of ONNX Runtime choose their cores among all, whatever `taskset` says.
    alone = case.by_hand(open_with(0 if len(os.sched_getaffinity(0)) > 1 else 1))
    yield "loop", lambda items: [alone(item) for item in items]
    work = case.by_hand(open_with(1))
    for workers in (2, 3):
        pool = stack.enter_context(ThreadPoolExecutor(workers))
        yield f"pool of {workers}", _map_in(pool, work)
    if find_spec("spdl"):
        yield "SPDL", lambda items: _run_in_spdl(work, items)
    if find_spec("daft"):
        yield "Daft", _make_daft_way(case)


def _map_in(pool: ThreadPoolExecutor, work: Callable[[Any], Any]) -> Way:
    return lambda items: list(pool.map(work, items))


def _run_in_spdl(work: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
    builder: Any = import_module("spdl.pipeline").PipelineBuilder()

    built = (
        builder.add_source(items)
        .pipe(work, concurrency=2, output_order="input")
        .add_sink(4)
        .build(num_threads=2)
    )
    with built.auto_stop():
        return list(built)


def _make_daft_way(case: Case) -> Way:
    daft: Any = import_module("daft")

    class Worker:
        """Opens the models where it runs: functions that hold a session cannot be pickled."""

        def __init__(self) -> None:
            self._work = case.by_hand(open_with(1))

        def call(self, item: Any) -> Any:
            return self._work(item)

    returns_python = daft.method(return_dtype=daft.DataType.python())
    Worker.call = returns_python(Worker.call)  # type: ignore[method-assign]
    worker = daft.cls(max_concurrency=2)(Worker)()

    def run(items: Sequence[Any]) -> list[Any]:
        column = daft.Series.from_pylist(list(items), "item", pyobj="force")
        frame = daft.from_pydict({"item": column})
        found = frame.select(worker.call(frame["item"]).alias("found"))
        return list(found.to_pydict()["found"])

    return run


def compare(case: Case, rounds: int, at_least_s: float) -> dict[str, Any]:
    """Return milliseconds per item of all ways, in turns, and the ratios.

    A stream has items for `at_least_s` of the loop.
    """
    with ExitStack() as stack:
        ways = dict(make_ways(case, stack))
        if case.make_last is not None:
            ways = {name: _add_last(way, case.make_last) for name, way in ways.items()}
        if case.make_first is not None:
            ways = {name: _add_first(way, case.make_first) for name, way in ways.items()}
        start = time.perf_counter()
        pipe = stack.enter_context(case.with_plait(case.make_items(0)[0]))
        made_s = time.perf_counter() - start
        ways["plait"] = pipe.map
        skipped = _drop_failing(ways, case.make_items(0)[:4])
        wall: dict[str, list[float]] = {name: [] for name in ways}
        cpu: dict[str, list[float]] = {name: [] for name in ways}
        watch, equal, count = Watch(), True, 0
        begun = time.perf_counter()
        ways["loop"](case.make_items(0))
        times = max(1, round(at_least_s / (time.perf_counter() - begun)))
        for turn in range(rounds):
            parts = range(turn * times, (turn + 1) * times)
            items = [one for part in parts for one in case.make_items(part)]
            count = len(items)
            for name, way in _rotate(ways, turn):
                time.sleep(0.1)
                begun, busy = time.perf_counter(), time.process_time()
                found = way(items)
                wall[name].append((time.perf_counter() - begun) / count)
                cpu[name].append((time.process_time() - busy) / count)
                if name == "loop":
                    wanted = found
                elif name == "plait" and turn and not (case.make_first or case.make_last):
                    equal &= are_equal(wanted, found)
    ms = {name: 1e3 * statistics.median(each) for name, each in wall.items()}
    best = min((name for name in ms if name == "loop" or "pool" in name), key=ms.__getitem__)
    return {
        "project": case.project,
        "items": count,
        "ms per item": ms,
        "cpu ms per item": {n: 1e3 * statistics.median(each) for n, each in cpu.items()},
        "best by hand": best,
        "times as fast as by hand": _divide(wall[best], wall["plait"]),
        "times as fast as engines": {
            name: _divide(wall[name], wall["plait"]) for name in ("SPDL", "Daft") if name in wall
        },
        "same results": equal,
        "lines by hand": count_lines(case.by_hand) + POOL_LINES,
        "lines with plait": count_lines(case.with_plait) + PLAIT_LINES,
        "plait's making, s": made_s,
        "disturbance": watch.disturbance(),
        "skipped": skipped,
    }


def _add_first(way: Way, make_first: Callable[[], Callable[[Any], Any]]) -> Way:
    first = make_first()
    return lambda items: way(map(first, items))  # type: ignore[arg-type]


def _add_last(way: Way, make_last: Callable[[], Callable[[Any], Any]]) -> Way:
    last = make_last()
    return lambda items: [last(one) for one in way(items)]


def _drop_failing(ways: dict[str, Way], items: Sequence[Any]) -> dict[str, str]:
    """Remove engines that cannot run the case, and return why."""
    skipped = {}
    for name in [name for name in ways if name != "plait"]:
        try:
            ways[name](items)
        except Exception as error:  # engines raise any
            skipped[name] = f"{type(error).__name__}: {str(error)[:200]}"
            del ways[name]
    return skipped


def _rotate(ways: dict[str, Way], turn: int) -> list[tuple[str, Way]]:
    """Return the loop, which gives the wanted results, and the others from another one on."""
    listed = [(name, way) for name, way in ways.items() if name != "loop"]
    first = turn % len(listed)
    return [("loop", ways["loop"]), *listed[first:], *listed[:first]]


def _divide(theirs: Sequence[float], own: Sequence[float]) -> float:
    return statistics.median(a / b for a, b in zip(theirs, own, strict=True))


def are_equal(wanted: Any, found: Any) -> bool:
    """True for equal values; arrays may differ by rounding."""
    if isinstance(wanted, np.ndarray):
        return np.allclose(wanted, found, atol=1e-4)
    if isinstance(wanted, list | tuple):
        return len(wanted) == len(found) and all(map(are_equal, wanted, found))
    return bool(wanted == found)


def count_lines(function: Callable[..., Any]) -> int:
    """Count the lines of a function's body."""
    return sum(bool(line.strip()) for line in inspect.getsource(function).splitlines()[1:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", nargs="*", default=[case.name for case in CASES])
    parser.add_argument("--seconds", type=float, default=0.0, help="of the loop, at least")
    parser.add_argument("--results", default="public_pipelines")
    options = parser.parse_args()
    figures = {}
    for case in CASES:
        if case.name in options.only:
            figures[case.name] = found = compare(case, options.rounds, options.seconds)
            engines = {n: round(x, 2) for n, x in found["times as fast as engines"].items()}
            print(
                f"{case.name:26} {found['times as fast as by hand']:.2f} x {found['best by hand']},"
                f" {engines}, lines {found['lines with plait']} for {found['lines by hand']}",
                flush=True,
            )
    worst = min(found["times as fast as by hand"] for found in figures.values())
    shorter = sum(f["lines with plait"] < f["lines by hand"] for f in figures.values())
    summary = {
        "times as fast as by hand, at least": worst,
        "geometric mean": statistics.geometric_mean(
            found["times as fast as by hand"] for found in figures.values()
        ),
        "shorter": f"{shorter} of {len(figures)}",
    }
    save(
        options.results,
        {"goals": GOALS, "load": os.getloadavg(), "summary": summary, "pipelines": figures},
    )


if __name__ == "__main__":
    main()
