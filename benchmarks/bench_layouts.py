"""Would kernels that keep channels last (NHWC) be faster than those that keep them first?

For every convolution and pooling of the real models, once for each distinct geometry: the kernel
that a device runs, against prototypes on the same numbers with channels last (`channels_last.py`,
and for `compiled` `channels_last_compiled.py`), of which the best counts. Where Winograd's method
runs, whose steps are the same in either layout, it is a candidate at the same time. Weights are
laid out for each side beforehand, and no prototype pays for a conversion: layouts could win no
more than this. What all else in a model takes is left as it is.

Times are those of the measuring thread on a core (BLAS runs on one thread), so that what else the
machine does is left out; sides take turns.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

os.environ["OPENBLAS_NUM_THREADS"] = "1"

import channels_last
import numpy as np
import plait as pl
import trio
from measure import save
from plait.devices.kernels.convolution import choose, make_geometry
from plait.devices.kernels.geometry import Geometry
from plait.devices.kernels.registry import Step, find_kernel
from plait.devices.kernels.winograd import Winograd
from plait.graph.core.ir import Graph, Node
from plait.graph.values.tensor import Array
from real_models import REAL_MODELS

FIRST = "first"
"""The side of the kernels that run now."""

SUMS = ("first", "last", "best")
"""With channels first, with channels last, and with the better of the two for each node."""

ITEMS = 3
"""Of a whole model, for each turn."""

POOLING = ("MaxPool", "AveragePool", "GlobalAveragePool")


@dataclass(frozen=True)
class Case:
    """A node that has a layout, and nodes like it in the same model."""

    graph: Graph
    node: Node

    @property
    def key(self) -> tuple[object, ...]:
        """What tells the work: nodes with equal keys take equally long."""
        specs = [self.graph.tensors[name] for name in (*self.node.inputs, *self.node.outputs)]
        attributes = tuple(sorted((k, str(v)) for k, v in self.node.attributes.items()))
        return self.node.op, attributes, tuple((s.shape, str(s.dtype)) for s in specs)

    def arrays(self) -> list[Array]:
        """Return numbers of the shapes of its inputs."""
        random = np.random.default_rng(0)
        specs = [self.graph.tensors[name] for name in self.node.inputs]
        return [random.standard_normal(spec.static_shape, np.float32) for spec in specs]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="*", default=None, metavar="PART", help="of their names")
    parser.add_argument("--devices", nargs="*", default=["cpu", "compiled"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--at-least-s", type=float, default=0.003, help="per turn")
    options = parser.parse_args()
    figures = {device: figures_of(device, options) for device in options.devices}
    save("layouts", {"devices": figures})


def figures_of(device: str, options: argparse.Namespace) -> dict[str, Any]:
    """Return what layouts would gain on a device, for each model and on the average."""
    models: dict[str, Any] = {}
    for name, model in REAL_MODELS.items():
        if options.models and not any(part in name for part in options.models):
            continue
        fed = model.feeds(1)
        shapes = {key: value.shape for key, value in fed.items()}
        plan = pl.plan(pl.load(model.path()), [device], shapes=shapes)
        cases = cases_of(plan.graph)
        if cases:
            whole_ms = 1e3 * trio.run(time_of, plan, fed, options.rounds)
            models[name] = measure(device, cases, whole_ms, options)
            print(line(device, name, models[name]), flush=True)
    if not models:
        raise SystemExit("no model of that name has convolutions")
    means = {
        key: statistics.geometric_mean(each[key] for each in models.values())
        for key in ("all_last", "best_of_both")
    }
    return {"models": models, "geometric_mean": means}


def cases_of(graph: Graph) -> list[tuple[Case, int]]:
    """Return the distinct float convolutions and poolings, and how often they occur."""
    found: dict[tuple[object, ...], Case] = {}
    counts: Counter[tuple[object, ...]] = Counter()
    for node in graph.nodes:
        if node.op != "Conv" and node.op not in POOLING:
            continue
        case = Case(graph, node)
        spec = graph.tensors[node.inputs[0]]
        if len(node.outputs) == 1 and spec.dtype == np.float32 and len(spec.static_shape) == 4:
            found.setdefault(case.key, case)
            counts[case.key] += 1
    return [(case, counts[key]) for key, case in found.items()]


async def time_of(plan: pl.Plan, fed: Mapping[str, Array], rounds: int) -> float:
    """Return the median seconds that an item takes of this process, whatever thread it is on."""
    found: list[float] = []
    async with pl.Session(plan) as session:
        for _ in range(rounds + 1):
            start = time.process_time()
            for _ in range(ITEMS):
                await session.run(fed)
            found.append((time.process_time() - start) / ITEMS)
    return statistics.median(found[1:])


def measure(
    device: str, cases: list[tuple[Case, int]], whole_ms: float, options: argparse.Namespace
) -> dict[str, Any]:
    """Return milliseconds per kind of work with channels first and last, and what that makes."""
    kinds: dict[str, dict[str, float]] = {}
    for case, count in cases:
        result, call = channels_first(device, case)
        call()
        sides = {FIRST: call}
        for key, (found, step) in channels_last.candidates(case, device).items():
            step()
            assert np.allclose(np.moveaxis(found, -1, 1), result, rtol=1e-3, atol=1e-3), key
            sides[key] = step
        ms = {key: 1e3 * value for key, value in alternate(sides, options).items()}
        if device == "cpu" and runs_winograd(case):
            ms["winograd"] = ms[FIRST]
        best = min((key for key in ms if key != FIRST), key=lambda key: ms[key])
        kind = kinds.setdefault(kind_of(case), dict.fromkeys(SUMS, 0.0))
        kind["first"] += count * ms[FIRST]
        kind["last"] += count * ms[best]
        kind["best"] += count * min(ms[FIRST], ms[best])
    first, last, both = (sum(kind[key] for kind in kinds.values()) for key in SUMS)
    rest = max(0.0, whole_ms - first)
    return {
        "whole_ms": whole_ms,
        "kinds_ms": kinds,
        "all_last": (rest + first) / (rest + last),
        "best_of_both": (rest + first) / (rest + both),
    }


def kind_of(case: Case) -> str:
    """Return a word for what a node does."""
    if case.node.op != "Conv":
        return "pooling"
    w = case.graph.tensors[case.node.inputs[1]].static_shape
    if case.node.attributes["group"] > 1 and w[1] == 1:
        return "depthwise"
    return "pointwise" if w[2:] == (1, 1) else "dense"


def geometry_of(case: Case) -> Geometry:
    graph, node = case.graph, case.node
    x, w, y = (graph.tensors[name].static_shape for name in (*node.inputs[:2], node.outputs[0]))
    return make_geometry(x, w, y, node.attributes, np.dtype(np.float32))


def runs_winograd(case: Case) -> bool:
    return case.node.op == "Conv" and isinstance(choose(geometry_of(case)), Winograd)


def channels_first(device: str, case: Case) -> tuple[Array, Step]:
    """Return where the kernel that a device runs writes, and that kernel, bound as in a plan."""
    graph, node = case.graph, case.node
    arrays = case.arrays()
    for array in arrays[1:]:
        array.flags.writeable = False
    call, specs = graph.call(node), graph.output_specs(node)
    (y,) = (np.empty(graph.tensors[name].static_shape, np.float32) for name in node.outputs)
    if device == "compiled" and node.op == "Conv":
        from plait.devices.compiled.convolution import find_convolution
        from plait.devices.compiled.epilogue import CompiledEpilogue

        conv = find_convolution(call, specs)
        if conv is not None:
            x, w, *rest = arrays
            bias = rest[0] if rest else np.zeros(y.shape[1], np.float32)
            scratch = [np.empty(spec.static_shape, np.float32) for spec in conv.scratch]
            return y, conv.bind(x, w, bias, y, scratch, CompiledEpilogue())
    kernel = find_kernel(node.op, device)
    assert kernel is not None
    arguments: list[Any] = [np, arrays, [y], node.attributes]
    if kernel.scratch is not None:
        buffers = kernel.scratch(call, specs)
        arguments.append([np.empty(spec.static_shape, spec.dtype) for spec in buffers])
    step = partial(kernel.function, *arguments)
    return y, step() if kernel.binds else step


def alternate(
    sides: Mapping[str, Callable[[], object]], options: argparse.Namespace
) -> dict[str, float]:
    """Return each side's median seconds per call on a core."""
    repeats: dict[str, int] = {}
    for name, call in sides.items():
        call()
        repeats[name] = max(1, int(options.at_least_s / max(seconds_of(call, 1), 1e-7)))
    found: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(options.rounds):
        for name, call in sides.items():
            found[name].append(seconds_of(call, repeats[name]))
    return {name: statistics.median(values) for name, values in found.items()}


def seconds_of(call: Callable[[], object], repeats: int) -> float:
    start = time.thread_time()
    for _ in range(repeats):
        call()
    return (time.thread_time() - start) / repeats


def line(device: str, name: str, figures: Mapping[str, Any]) -> str:
    kinds = ", ".join(
        f"{kind} {ms['first']:.2f} -> {ms['last']:.2f} (best {ms['best']:.2f})"
        for kind, ms in figures["kinds_ms"].items()
    )
    gains = f"all last {figures['all_last']:.2f}, best of both {figures['best_of_both']:.2f}"
    return f"{device:8} {name:32} {figures['whole_ms']:6.1f} ms: {gains}; {kinds}"


if __name__ == "__main__":
    main()
