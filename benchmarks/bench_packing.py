"""How small and how fast are plait's packings, against the bound, other layouts and omnimalloc?

- MiniMalloc's challenging sets (`--sets FOLDER`, files named NAME.CAPACITY.csv), as they are and
  with time reversed: is each packed inside its capacity, by compiled code (warm) and in Python?
- Rectangles cut by a guillotine, which can be packed without a gap.
- Lifetimes of net shapes, up to 20,000 tensors: peak over the bound, and seconds.
- Partial orders of several lanes: peak over the heaviest antichain, against one arena per lane
  (each packed as well as we can) and omnimalloc; seconds and bytes for 20,000 blocks.

All of it takes some two minutes, `--no-python` less.
Goals: 11 of 11 sets in 25 s, the slowest in 10, with Numba; 7 of 11 within 60 s each without.
Nets at the bound; 20,000 lifetimes in 2 s, 20,000 blocks over 8 lanes in 3 s and 200 MB.
Partial orders of 1,000 blocks in 1 s: 1.10 of the bound, never above lanes stacked or omnimalloc.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tracemalloc
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from antichain import find_heaviest_antichain
from measure import save
from plait.scheduler.packing import Block, Conflicts, Intervals, check, find_conflicts, pack
from plait.scheduler.packing.packing import Solver
from plait.scheduler.packing.table import read_table

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))
from packing_problems import KINDS, guillotine, network

Figures = dict[str, Any]


def solved(
    sizes: Sequence[int], lives: Intervals, capacity: int, solver: Solver, seconds: float
) -> Figures:
    """Pack inside a capacity; check and time it."""
    packing = pack(sizes, lives, capacity=capacity, solver=solver, deadline_s=seconds)
    check([Block(size) for size in sizes], lives, packing)
    fits = packing.nbytes <= capacity
    return {"fits": fits, "nbytes": packing.nbytes, "seconds": round(packing.seconds, 3)}


def reversed_in_time(lives: Intervals) -> Intervals:
    end = int(np.max(lives.upper))
    return Intervals(end - np.asarray(lives.upper), end - np.asarray(lives.lower))


WAYS = ("as they are", "time reversed")


def challenging_sets(
    folder: Path, solver: Solver, seconds: float, ways: Sequence[str] = WAYS
) -> Figures:
    figures: Figures = {}
    for way in ways:
        rows: Figures = {}
        for file in sorted(folder.glob("*.csv")):
            table = read_table(file.read_text(), file.name)
            sizes = [block.nbytes for block in table.blocks]
            lives = table.lives if way == "as they are" else reversed_in_time(table.lives)
            capacity = int(file.name.split(".")[1])
            rows[file.name.split(".")[0]] = solved(sizes, lives, capacity, solver, seconds)
        figures[way] = {**total(rows), "sets": rows}
    return figures


def total(rows: Figures) -> Figures:
    times = [row["seconds"] for row in rows.values()]
    return {
        "solved": sum(row["fits"] for row in rows.values()),
        "of": len(rows),
        "total_s": round(sum(times), 2),
        "worst_s": max(times),
    }


def perfect_packings(solver: Solver, seconds: float) -> Figures:
    return {
        f"{count} blocks, seed {seed}": solved(*guillotine(count, seed), 4096, solver, seconds)
        for count in (50, 100, 150)
        for seed in range(3)
    }


QUADRATIC = ("unet", "dense")
"""Kinds where half of all tensors are alive together: their conflicts do not fit into memory."""


def nets(counts: Sequence[int], kinds: Sequence[str] = KINDS) -> Figures:
    figures: Figures = {}
    for kind in kinds:
        for count in counts:
            if count > 1000 and kind in QUADRATIC:
                continue
            sizes, lives = network(kind, count)
            packing = pack(sizes, lives, deadline_s=5)
            check([Block(size) for size in sizes], lives, packing)
            figures[f"{kind} {count}"] = {
                "over_bound": round(packing.nbytes / packing.lower_bound, 4),
                "seconds": round(packing.seconds, 3),
                "algorithm": packing.algorithm,
            }
    return figures


def lanes(
    count: int, width: int, crossing: float, seed: int
) -> tuple[list[list[int]], list[list[int]], list[int], list[int]]:
    """Return predecessors, accesses, sizes and lanes of blocks that serial lanes make and read."""
    dice = random.Random(seed)
    before: list[list[int]] = []
    accesses: list[list[int]] = []
    lane_of: list[int] = []
    recent: list[list[int]] = [[] for _ in range(width)]
    for point in range(count):
        lane = dice.randrange(width)
        sources = set(recent[lane][-1:])
        if recent[lane] and dice.random() < 0.3:
            sources.add(dice.choice(recent[lane][-4:]))
        other = dice.randrange(width)
        if recent[other] and dice.random() < crossing:
            sources.add(recent[other][-1])
        for source in sources:
            accesses[source].append(point)
        before.append(sorted(sources))
        accesses.append([point])
        lane_of.append(lane)
        recent[lane].append(point)
    return before, accesses, [dice.randint(1, 64) * 64 for _ in range(count)], lane_of


def partial_orders(seconds: float) -> Figures:
    figures: Figures = {}
    for name, crossing in (("towers", 0.0), ("loose", 0.02), ("coupled", 0.2)):
        for width in (4, 8):
            before, accesses, sizes, lane_of = lanes(1000, width, crossing, width)
            started = perf_counter()
            relation = find_conflicts(before, [[point] for point in range(1000)], accesses)
            elapsed = perf_counter() - started
            assert isinstance(relation, Conflicts)
            bound = find_heaviest_antichain(sizes, relation, range(1000))
            packing = pack(sizes, relation, lower_bound=bound, deadline_s=seconds, stacks=lane_of)
            check([Block(size) for size in sizes], relation, packing)
            figures[f"{name}, {width} lanes"] = {
                "conflicts_s": round(elapsed, 3),
                "plait": round(packing.nbytes / bound, 3),
                "stacked": round(stacked(sizes, relation, lane_of) / bound, 3),
                "omnimalloc": omnimalloc_peak(sizes, before, accesses, lane_of, bound),
                "algorithm": packing.algorithm,
            }
    return figures


def stacked(sizes: Sequence[int], relation: Conflicts, lane_of: Sequence[int]) -> int:
    """Return the bytes of one arena per lane."""
    total = 0
    for lane in set(lane_of):
        mine = [block for block, other in enumerate(lane_of) if other == lane]
        total += pack([sizes[block] for block in mine], relation.restrict(mine)).nbytes
    return total


def omnimalloc_peak(
    sizes: Sequence[int],
    before: Sequence[Sequence[int]],
    accesses: Sequence[Sequence[int]],
    lane_of: Sequence[int],
    bound: int,
) -> float | None:
    """Return the peak of omnimalloc's portfolio over the bound, with lifetimes as vector clocks."""
    if find_spec("omnimalloc") is None:
        return None
    import omnimalloc as omni

    width = max(lane_of) + 1
    clocks: list[list[int]] = []
    starts: list[list[int]] = []
    for point, direct in enumerate(before):
        start = [max((clocks[p][lane] for p in direct), default=0) for lane in range(width)]
        starts.append(start)
        clocks.append([*start])
        clocks[-1][lane_of[point]] += 1
    allocations = tuple(
        omni.Allocation(
            id=block,
            size=size,
            start=omni.VectorClock(starts[block]),
            end=omni.VectorClock(
                [max(clock) for clock in zip(*(clocks[p] for p in at), strict=True)]
            ),
        )
        for block, (size, at) in enumerate(zip(sizes, accesses, strict=True))
    )
    packed = omni.allocate(omni.Pool(id="pool", allocations=allocations), "omni")
    return round(max((one.offset or 0) + one.size for one in packed.allocations) / bound, 3)


def twenty_thousand() -> Figures:
    before, accesses, sizes, _ = lanes(20_000, 8, 0.2, 0)
    writers = [[point] for point in range(20_000)]
    started = perf_counter()
    relation = find_conflicts(before, writers, accesses)
    conflicts_s = perf_counter() - started
    packing = pack(sizes, relation, deadline_s=1)
    elapsed = perf_counter() - started
    tracemalloc.start()
    pack(sizes, find_conflicts(before, writers, accesses), deadline_s=0)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return {
        "conflicts_s": round(conflicts_s, 2),
        "with_packing_s": round(elapsed, 2),
        "traced_megabytes": round(peak / 1e6),
        "conflicts": len(
            relation.conflicts.indices if isinstance(relation, Intervals) else relation.indices
        )
        // 2,
        "over_bound": round(packing.nbytes / packing.lower_bound, 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--sets", type=Path, metavar="FOLDER", help="MiniMalloc's CSV files")
    parser.add_argument("--python-seconds", type=float, default=30.0)
    parser.add_argument("--no-python", action="store_true", help="leave out the sets in Python")
    options = parser.parse_args()
    figures: Figures = {"load": os.getloadavg()}
    solvers: list[tuple[Solver, float]] = [("python", 1.0)]
    if find_spec("numba") is not None:
        solvers.append(("compiled", 3.0))
        pack(*guillotine(50, 9), deadline_s=120, solver="compiled")  # makes the machine code
    for solver, seconds in solvers:
        figures[f"guillotine, {solver}"] = perfect_packings(solver, seconds)
    if options.sets is not None:
        if find_spec("numba") is not None:
            figures["sets, compiled"] = challenging_sets(options.sets, "compiled", 30.0)
        if not options.no_python:
            limit = options.python_seconds
            figures["sets, python"] = challenging_sets(options.sets, "python", limit, WAYS[:1])
    figures["nets"] = nets((50, 200, 1000, 5000))
    figures["nets of 20,000"] = nets((20_000,))
    figures["partial orders of 1,000, peak over antichain"] = partial_orders(1.0)
    figures["the same, 5 s"] = partial_orders(5.0)
    figures["20,000 blocks over 8 lanes"] = twenty_thousand()
    save("packing", figures)


if __name__ == "__main__":
    main()
