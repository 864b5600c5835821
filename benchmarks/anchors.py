"""Times of others for the same work, measured by an interpreter that need not have plait.

``python anchors.py steps 2000`` prints µs for each of two trivial steps, one item at a time;
``python anchors.py pipeline 200`` items per second of two stages of matrix products. As JSON, for
each of the others its figure, or why there is none. Benchmarks that compare with them run this with
the interpreter that ``PLAIT_ANCHORS`` names, their own otherwise: ray, dask, distributed and
openvino may stay in an environment of their own.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from time import perf_counter
from typing import Any

import numpy as np
import threadpoolctl

SIDE, PRODUCTS = 256, 8
"""Of a stage of the pipeline: so many products of matrices with this many rows."""

Call = Callable[[], object]
Array = np.ndarray[Any, Any]


def ask(what: str, items: int) -> dict[str, float | str]:
    """Return the figures of the others."""
    python = os.environ.get("PLAIT_ANCHORS", sys.executable)
    done = subprocess.run(
        [python, __file__, what, str(items)], stdout=subprocess.PIPE, check=True, text=True
    )
    figures: dict[str, float | str] = json.loads(done.stdout.splitlines()[-1])
    return figures


# two steps, one item at a time


def same(x: Array) -> Array:
    """Return the input."""
    return x


def asyncio_steps(items: int) -> float:
    """Two executors of one thread each, called from an asyncio loop."""

    async def main() -> float:
        loop, x = asyncio.get_running_loop(), np.ones(1, np.float32)
        with ThreadPoolExecutor(1) as one, ThreadPoolExecutor(1) as other:

            async def item() -> None:
                await loop.run_in_executor(other, same, await loop.run_in_executor(one, same, x))

            seconds = []
            for _ in range(items):
                start = perf_counter()
                await item()
                seconds.append(perf_counter() - start)
        return statistics.median(seconds) * 1e6 / 2

    return asyncio.run(main())


def dask_threads_steps(items: int) -> float:
    """Dask's scheduler for threads, of one process."""
    import dask

    chain = dask.delayed(same)(dask.delayed(same)(np.ones(1, np.float32)))
    return _median_us(lambda: chain.compute(scheduler="threads", num_workers=2), items) / 2


def dask_distributed_steps(items: int) -> float:
    """Dask distributed, two worker processes on this machine."""
    from distributed import Client, LocalCluster

    cluster = LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None)
    with cluster, Client(cluster) as client:
        x = np.ones(1, np.float32)

        def item() -> None:
            client.submit(same, client.submit(same, x, pure=False), pure=False).result()

        return _median_us(item, items) / 2


def ray_steps(items: int) -> float:
    """A compiled graph of ray: two actors, channels in shared memory."""
    import ray
    from ray.dag import InputNode

    class Same:
        def same(self, x: Array) -> Array:
            return x

    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    try:
        made: Any = ray.remote(Same)  # its methods have methods, which types do not know
        one, other = (made.remote() for _ in range(2))
        with InputNode() as x:
            graph = other.same.bind(one.same.bind(x)).experimental_compile()
        array = np.ones(1, np.float32)
        return _median_us(lambda: ray.get(graph.execute(array)), items) / 2
    finally:
        ray.shutdown()


def _median_us(call: Call, items: int) -> float:
    seconds = []
    for _ in range(items + items // 10):
        start = perf_counter()
        call()
        seconds.append(perf_counter() - start)
    return statistics.median(seconds[items // 10 :]) * 1e6  # without what warms up


# a pipeline of two stages


def asyncio_pipeline(items: int) -> float:
    """Two executors of one thread each, with a bounded queue between them."""

    async def first(between: asyncio.Queue[Array], thread: ThreadPoolExecutor) -> None:
        x, loop = np.zeros((SIDE, SIDE), np.float32), asyncio.get_running_loop()
        for _ in range(items):
            await between.put(await loop.run_in_executor(thread, _stage, x))

    async def main() -> float:
        between: asyncio.Queue[Array] = asyncio.Queue(1)
        loop = asyncio.get_running_loop()
        with ThreadPoolExecutor(1) as one, ThreadPoolExecutor(1) as other:
            start = perf_counter()
            producer = asyncio.create_task(first(between, one))
            for _ in range(items):
                await loop.run_in_executor(other, _stage, await between.get())
            await producer
            return items / (perf_counter() - start)

    with threadpoolctl.threadpool_limits(1):
        return asyncio.run(main())


def openvino_pipeline(items: int) -> float:
    """OpenVINO's AsyncInferQueue over the whole model: two requests, one thread each."""
    import openvino as ov
    import openvino.opset13 as ops

    x = last = ops.parameter([SIDE, SIDE], np.float32)
    for _ in range(2 * PRODUCTS):
        last = ops.matmul(last, np.eye(SIDE, dtype=np.float32), False, False)
    options = {"INFERENCE_NUM_THREADS": 2, "NUM_STREAMS": 2, "INFERENCE_PRECISION_HINT": "f32"}
    queue = ov.AsyncInferQueue(ov.compile_model(ov.Model([last], [x]), "CPU", options), 2)
    taken: list[Array] = []
    queue.set_callback(lambda request, _: taken.append(request.get_output_tensor().data.copy()))
    for count in (8, items):  # the first ones warm up
        start = perf_counter()
        for _ in range(count):
            queue.start_async({0: np.zeros((SIDE, SIDE), np.float32)})
        queue.wait_all()
    return items / (perf_counter() - start)


def _stage(x: Array) -> Array:
    weights = np.eye(SIDE, dtype=np.float32)
    for _ in range(PRODUCTS):
        x = x @ weights
    return x


OTHERS: dict[str, dict[str, Callable[[int], float]]] = {
    "steps": {
        "asyncio with executors": asyncio_steps,
        "dask threads": dask_threads_steps,
        "dask distributed": dask_distributed_steps,
        "ray compiled graph": ray_steps,
    },
    "pipeline": {
        "asyncio with executors": asyncio_pipeline,
        "openvino AsyncInferQueue": openvino_pipeline,
    },
}


def main() -> None:
    what, items = sys.argv[1], int(sys.argv[2])
    figures: dict[str, float | str] = {}
    with _quiet():
        for name, measure in OTHERS[what].items():
            try:
                figures[name] = measure(items)
            except ImportError as error:
                figures[name] = f"not installed: {error}"
    print(json.dumps(figures))


@contextmanager
def _quiet() -> Iterator[None]:
    """Send to stderr what others print."""
    ours = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(ours, 1)


if __name__ == "__main__":
    main()
