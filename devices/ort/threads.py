"""On how many threads ONNX Runtime computes a program, and whether these spin.

Threads that spin wait for the next node's work in a busy loop. That is worth it while no one else
wants their cores: a run of some ms hands out work hundreds of times, and to wake a thread takes as
long as many a node. So they spin where the device has all cores, for `SPIN_US` at most, and never
between runs. Time of real networks on two threads, as multiples of that on one (two cores of an
AMD EPYC, otherwise idle; `benchmarks/results/models.json`): 0.51 to 0.61 spinning, 0.7 to 0.95
asleep, for those that take more than 2 ms.

Each program has threads of its own, as only these can be stopped from spinning: ONNX Runtime's
pool for the whole process cannot, and its size is settled by whoever loads the first model. So
programs get no more of them than their work is worth, and small ones none.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from math import inf

from ...graph.infer import cost_of
from ...graph.ir import Graph
from ..kinds import guess
from ..model import family

WORTH_S = {True: 5e-4, False: 1e-3}
"""The seconds of work on one core for each thread that spins, or sleeps. Networks of 0.6 ms gain
nothing from a second one that spins, and it takes its core from others; networks of 2.6 ms gain
nothing from one that sleeps."""

PARALLEL = {True: 0.85, False: 0.4}
"""Which share of a network's work spinning and sleeping threads divide (the means of the above)."""

SPIN_US = 100
"""How long a thread spins until it sleeps. Beside 20 busy processes on two cores, threads that spin
for 1 ms make a run 1.3 to 1.8 times as long as with 0.1 ms (2026-11-23)."""


@dataclass(frozen=True, slots=True)
class Threads:
    """How a program computes: on so many threads, the caller's among them."""

    count: int = 1
    spinning: bool = False


ONE_THREAD = Threads()


def threads_for(seconds: float, most: int, *, spinning: bool) -> Threads:
    """Return what a program is worth that takes so long on one core: a power of two, or most."""
    worth = int(min(seconds / WORTH_S[spinning], most))
    count = most if worth == most else 1 << max(worth.bit_length() - 1, 0)
    return Threads(count, spinning and count > 1)


def speedup(threads: Threads) -> float:
    """Return by what factor a program is faster than on one thread (Amdahl's law)."""
    parallel = PARALLEL[threads.spinning]
    return 1 / (1 - parallel + parallel / threads.count)


def is_machine_loaded(cores: int) -> bool:
    """Return whether other programs want the cores: threads that spin would take them away.

    Two programs for each core in the mean of the last minute. ``PLAIT_FIGURES=off`` assumes none.
    """
    if os.environ.get("PLAIT_FIGURES") == "off" or not hasattr(os, "getloadavg"):
        return False
    return os.getloadavg()[0] >= 2 * cores


def work_s(graph: Graph, device: str, enough_s: float = inf) -> float:
    """Return how long a static graph takes on one core, by the model of its kind of device.

    Where that is enough, nodes are counted no further: programs are compiled for each new length.
    """
    model, found = guess(device), 0.0
    for node in graph.nodes:
        found += model.kernel_s(family(graph, node), cost_of(graph, node))
        if found >= enough_s:
            break
    return found
