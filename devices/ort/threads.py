"""The number of threads of a program in ONNX Runtime, and whether they spin.

Spinning threads wait for the next node's work in a busy loop. That pays while their cores are free:
a run of some ms distributes work hundreds of times, and waking a thread takes as long as many
nodes. So they spin if the device has all cores, for `SPIN_US` at most, and never between runs. Time
of real networks on two threads, relative to one (two cores of an AMD EPYC, otherwise idle;
`benchmarks/results/models.json`): 0.51 to 0.61 spinning, 0.7 to 0.95 asleep, for those that take
more than 2 ms.

Each program has its own threads, because only these can be stopped from spinning. ONNX Runtime's
global pool cannot, and the first loaded model fixes its size. So programs get no more threads than
their work is worth, and small ones none.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from ...graph.core.infer import get_cost
from ...graph.core.ir import Graph
from ..kinds import guess
from ..model import name_family

WORTH_S = {True: 5e-4, False: 1e-3}
"""Seconds of work on one core that pay for a thread that spins, or sleeps. Networks of 0.6 ms gain
nothing from a second one that spins, and it takes its core from others; networks of 2.6 ms gain
nothing from one that sleeps."""

PARALLEL = {True: 0.85, False: 0.4}
"""The share of a network's work that spinning or sleeping threads divide (means of the above)."""

SPIN_US = 100
"""Time that a thread spins before it sleeps. Next to 20 busy processes on two cores, spinning for
1 ms makes a run 1.3 to 1.8 times as long as for 0.1 ms (2026-11-23)."""


@dataclass(frozen=True, slots=True)
class Threads:
    """Count of a program's threads, including the caller's, and whether they spin."""

    count: int = 1
    spinning: bool = False


ONE_THREAD = Threads()


def choose_threads(seconds: float, most: int, *, spinning: bool) -> Threads:
    """Return the threads that `seconds` on one core are worth: a power of two, or `most`.

    If there is more than one, they may be `spinning`.
    """
    worth = int(min(seconds / WORTH_S[spinning], most))
    count = most if worth == most else 1 << max(worth.bit_length() - 1, 0)
    return Threads(count, spinning and count > 1)


def compute_speedup(threads: Threads) -> float:
    """Return the speed-up of `threads` over one thread (Amdahl's law)."""
    parallel = PARALLEL[threads.spinning]
    return 1 / (1 - parallel + parallel / threads.count)


def estimate_work_s(graph: Graph, device: str, enough_s: float = inf) -> float:
    """Return the seconds of the static `graph` on one core, as the model of `device` predicts.

    It stops counting at `enough_s`, to be quick when programs are compiled for each new length.
    """
    model, found = guess(device), 0.0
    for node in graph.nodes:
        found += model.kernel_s(name_family(graph, node), get_cost(graph, node))
        if found >= enough_s:
            break
    return found
