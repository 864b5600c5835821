"""Cost of an item that reads the state of the item before, while all else overlaps.

A stage that waits 10 ms on four lanes, and a running average after it: with one item in flight,
with eight, and by hand in a pool of four threads and a loop over its results. Then a stream of
short items, also with keys, beside a loop with a dict. At last a wait of 10 ms between reading and
assigning the state: of one key, of eight, and by hand in four threads with two keys each.

At last many microphones through silero VAD, if that is installed, else through a recurrent network
made here: a session for each, a key for each, in batches and not, and by hand with ONNX Runtime,
one at a time and with the states of all stacked. In milliseconds, and of processor time as well.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from functools import partial
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import plait as pl
import trio
from measure import alternate, save
from plait.graph.values.tensor import Array

SPEC = pl.TensorSpec("float32", (4,))


@pl.operator(SPEC, inputs=[SPEC], ordered=False)
def wait(x: Array) -> Array:
    time.sleep(0.01)
    return x + 0


def make_graph(*, waits: bool = False, waits_in_cycle: bool = False) -> pl.Graph:
    b = pl.GraphBuilder("average")
    x = b.input("x", "float32", (4,))
    last = b.call(wait, x, name="wait") if waits else x
    mean = b.variable("mean", np.zeros(4, "float32"))
    following = mean * 0.9 + last
    if waits_in_cycle:
        following = b.call(wait, following, name="wait")
    b.output("y", mean.assign(following))
    return b.build()


def stream(session: pl.BlockingSession, items: int) -> None:
    for item in session.stream({"x": np.ones(4, "float32")} for _ in range(items)):
        _ = item["y"]


def stream_keys(session: pl.BlockingSession, items: int, keys: int) -> None:
    source = ({"x": np.ones(4, "float32"), "key": index % keys} for index in range(items))
    for item in session.stream(source, key="key"):
        _ = item["y"]


def average_keys(items: int, keys: int) -> None:
    means: dict[int, Array] = {}
    for index in range(items):
        key = index % keys
        mean = means.get(key, np.zeros(4, "float32"))
        means[key] = mean * np.float32(0.9) + np.ones(4, "float32")


def average_slowly(items: int) -> None:
    mean = np.zeros(4, "float32")
    for _ in range(items):
        mean = wait(mean * np.float32(0.9) + np.ones(4, "float32"))


def average_in_threads(pool: ThreadPoolExecutor, items: int) -> None:
    list(pool.map(average_slowly, [items // 4] * 4))


def average_over_pool(pool: ThreadPoolExecutor, items: int) -> None:
    mean = np.zeros(4, "float32")
    for made in pool.map(wait, (np.ones(4, "float32") for _ in range(items))):
        mean = mean * np.float32(0.9) + made


def average(items: int) -> None:
    mean = np.zeros(4, "float32")
    for _ in range(items):
        mean = mean * np.float32(0.9) + np.ones(4, "float32")


def compare(
    ways: Mapping[str, Callable[[], object]],
    items: int,
    rounds: int,
) -> dict[str, float]:
    """Return the median milliseconds per item of each way."""
    found = alternate(ways, rounds=rounds)
    return {name: round(seconds / items * 1e3, 4) for name, seconds in found.items()}


N_SAMPLES, N_STATES, N_CHUNKS = 576, 128, 10


def find_detector(folder: Path) -> tuple[str, Path]:
    """Return the name and the file of a recurrent network, which may have to be made."""
    spec = find_spec("silero_vad")
    if spec is not None and spec.origin is not None:
        return "silero", Path(spec.origin).parent / "data" / "silero_vad.onnx"
    random = np.random.default_rng(0)
    b = pl.GraphBuilder("detector")
    sound = b.input("input", "float32", ("rows", N_SAMPLES))
    state = b.input("state", "float32", (2, "rows", N_STATES))
    hidden = sound
    for before, width in pairwise((N_SAMPLES, N_SAMPLES, N_SAMPLES, N_STATES)):
        weights = random.normal(0, 1 / before, (before, width)).astype("float32")
        hidden = (hidden @ weights).tanh()
    b.output("stateN", (state * 0.5 + hidden).tanh())
    b.output("output", hidden[:, :1].sigmoid())
    path = folder / "detector.onnx"
    pl.save(b.build(), path)
    return "made here", path


def make_detector(path: Path) -> pl.Graph:
    """Return the network with its state as a variable."""
    network = pl.load(path)
    b = pl.GraphBuilder("voice")
    fed = {"input": b.input("input", "float32", (1, N_SAMPLES))}
    fed["state"] = state = b.variable("state", np.zeros((2, 1, N_STATES), "float32"))
    if "sr" in network.inputs:
        fed["sr"] = b.constant(np.array(16_000))
    made = b.include(network, fed)
    state.assign(made["stateN"])
    b.output("output", made["output"])
    return b.build()


class ByHand:
    """Streams of chunks through ONNX Runtime."""

    def __init__(self, path: Path, sounds: Array, threads: int) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.log_severity_level = threads, 3
        self._run = onnxruntime.InferenceSession(path, options).run
        names = {"sr": np.array(16_000)} if "sr" in pl.load(path).inputs else {}
        self._fixed, self._sounds = names, sounds

    def run_one_at_a_time(self) -> None:
        states = [np.zeros((2, 1, N_STATES), "float32") for _ in self._sounds]
        for place in range(N_CHUNKS):
            for number, sound in enumerate(self._sounds):
                fed = {"input": sound[place], "state": states[number], **self._fixed}
                _, states[number] = self._run(["output", "stateN"], fed)

    def run_stacked(self) -> None:
        state = np.zeros((2, len(self._sounds), N_STATES), "float32")
        for place in range(N_CHUNKS):
            fed = {"input": self._sounds[:, place, 0], "state": state, **self._fixed}
            _, state = self._run(["output", "stateN"], fed)


async def run_sessions(sessions: list[pl.Session], sounds: Array) -> None:
    for place in range(N_CHUNKS):
        for session, sound in zip(sessions, sounds, strict=True):
            await session.run({"input": sound[place]})


def list_chunks(sounds: Array) -> Iterator[dict[str, Any]]:
    for place in range(N_CHUNKS):
        for number, sound in enumerate(sounds):
            yield {"input": sound[place], "key": number}


async def stream_sounds(session: pl.Session, sounds: Array, batch: int | None) -> None:
    async with session.stream(list_chunks(sounds), key="key", batch=batch) as results:
        async for item in results:
            _ = item["output"]


def stream_sounds_blocking(session: pl.BlockingSession, sounds: Array, batch: int) -> None:
    for item in session.stream(list_chunks(sounds), key="key", batch=batch):
        _ = item["output"]


async def compare_detectors(n_streams: int, batch: int, rounds: int) -> dict[str, Any]:
    """Return the median milliseconds per chunk of each way, on the clock and of the processor."""
    sounds = np.random.default_rng(0).normal(0, 0.1, (n_streams, N_CHUNKS, 1, N_SAMPLES))
    sounds = sounds.astype("float32")
    found: dict[str, list[tuple[float, float]]] = {}
    with TemporaryDirectory() as folder:
        name, path = find_detector(Path(folder))
        plan = pl.plan(make_detector(path), ["ort", "cpu"])
        hand = ByHand(path, sounds, threads=1)
        async with AsyncExitStack() as stack:
            sessions = [await stack.enter_async_context(pl.Session(plan)) for _ in range(n_streams)]
            one, other = [await stack.enter_async_context(pl.Session(plan)) for _ in range(2)]
            blocking = stack.enter_context(await trio.to_thread.run_sync(pl.BlockingSession, plan))
            in_thread = partial(stream_sounds_blocking, blocking, sounds, batch)
            ways: dict[str, Callable[[], Any]] = {
                "a session each": partial(run_sessions, sessions, sounds),
                "by key": partial(stream_sounds, one, sounds, None),
                f"by key, batch={batch}": partial(stream_sounds, other, sounds, batch),
                f"blocking, batch={batch}": partial(trio.to_thread.run_sync, in_thread),
                "by hand, one at a time": partial(trio.to_thread.run_sync, hand.run_one_at_a_time),
                "by hand, stacked": partial(trio.to_thread.run_sync, hand.run_stacked),
            }
            for _ in range(rounds + 1):  # the first binds programs
                for way, run in ways.items():
                    begin = time.perf_counter(), time.process_time()
                    await run()
                    end = time.perf_counter(), time.process_time()
                    found.setdefault(way, []).append((end[0] - begin[0], end[1] - begin[1]))
    figures: dict[str, Any] = {"network": name, "streams": n_streams}
    for place, clock in enumerate(("ms", "processor ms")):
        figures[clock] = {
            way: round(median(one[place] for one in times[1:]) / n_streams / N_CHUNKS * 1e3, 4)
            for way, times in found.items()
        }
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=100)
    parser.add_argument("--batch", type=int, default=50)
    parser.add_argument("--items", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=7)
    asked = parser.parse_args()
    pins = {"wait": "cpu:0..3"}
    slow, short = make_graph(waits=True), make_graph()
    cycle = pl.plan(make_graph(waits_in_cycle=True), "cpu:0..3", max_in_flight=8)
    overlapping = pl.plan(slow, ["cpu:0..3", "cpu:9"], pin=pins, max_in_flight=8)
    with (
        pl.BlockingSession(pl.plan(slow, "cpu")) as one,
        pl.BlockingSession(overlapping) as eight,
        pl.BlockingSession(pl.plan(short, "cpu")) as short_one,
        pl.BlockingSession(pl.plan(short, "cpu", max_in_flight=8)) as short_eight,
        pl.BlockingSession(cycle) as cycled,
        ThreadPoolExecutor(4) as pool,
    ):
        waiting = {
            "one in flight": partial(stream, one, asked.items),
            "eight in flight": partial(stream, eight, asked.items),
            "pool by hand": partial(average_over_pool, pool, asked.items),
        }
        brief = {
            "one in flight": partial(stream, short_one, asked.items),
            "eight in flight": partial(stream, short_eight, asked.items),
            "loop by hand": partial(average, asked.items),
            "one key": partial(stream_keys, short_eight, asked.items, 1),
            "100 keys": partial(stream_keys, short_eight, asked.items, 100),
            "dict by hand": partial(average_keys, asked.items, 100),
        }
        in_cycle = {
            "one key": partial(stream_keys, cycled, asked.items, 1),
            "8 keys": partial(stream_keys, cycled, asked.items, 8),
            "threads by hand": partial(average_in_threads, pool, asked.items),
        }
        figures = {
            "load": os.getloadavg()[0],
            "wait 10 ms, ms": compare(waiting, asked.items, asked.rounds),
            "short, ms": compare(brief, asked.items, asked.rounds),
            "wait 10 ms in the cycle, ms": compare(in_cycle, asked.items, asked.rounds),
        }
    sizes = asked.streams, asked.batch, asked.rounds
    figures["microphones"] = trio.run(compare_detectors, *sizes)
    save("state", figures)


if __name__ == "__main__":
    main()
