"""On paper: what limits a pool of 1,000 hosts of three kinds first, and what do more drivers move?

Nothing is measured here but the simulation's own time; who gets which item is decided by the code
of real pools. The figures of a driver are those that `bench_ray.py` measured on loopback, its link
is one of 10 Gbit/s. The kinds stand for three generations of GPUs.

- One driver, items of four sizes, more and more hosts: items per second, and what is the limit.
- 1,000 hosts, more and more drivers, each with a share of hosts and items.
- Stragglers: ordered and not, with more and more items in flight.
- Slow kinds in an ordered stream, with more and more items in flight.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from typing import Any

from measure import save
from pool_simulation import Driver, HostKind, PoolSimulation, simulate_pool

Figures = dict[str, Any]

KB, MB = 1 << 10, 1 << 20
SIZES = {"4 KB": 4 * KB, "64 KB": 64 * KB, "1 MB": MB, "8 MB": 8 * MB}


def cluster(share: float = 1.0, **behaviour: float) -> list[HostKind]:
    """Return 1,000 hosts: 200, 300 and 500 of them, each kind slower than the one before."""
    return [
        HostKind("fast", round(200 * share), 0.020, 2, 0.1, **behaviour),
        HostKind("middle", round(300 * share), 0.040, 2, 0.1, **behaviour),
        HostKind("slow", round(500 * share), 0.160, 1, 0.1, **behaviour),
    ]


def row(found: PoolSimulation) -> Figures:
    return {
        "items_per_s": round(found.items_per_s),
        "of_possible": round(found.items_per_s / found.possible_items_per_s, 3),
        "limit": found.limit,
        "driver": round(found.driver, 2),
        "link": round(found.link, 2),
        "hosts": {name: round(share, 2) for name, share in found.hosts.items()},
        "latency_s": [round(seconds, 3) for seconds in found.latency_s],
    }


def one_driver(items: int, shares: Sequence[float]) -> Figures:
    return {
        size: {
            f"{round(1000 * share)} hosts": row(
                simulate_pool(cluster(share), items=items, feed_bytes=nbytes)
            )
            for share in shares
        }
        for size, nbytes in SIZES.items()
    }


def more_drivers(items: int, counts: Sequence[int]) -> Figures:
    return {
        size: {
            f"{count} drivers": row(
                simulate_pool(cluster(), items=items * count, feed_bytes=SIZES[size], drivers=count)
            )
            for count in counts
        }
        for size in ("4 KB", "1 MB")
    }


def stragglers(items: int) -> Figures:
    """50 hosts, so that no driver is the limit; 1 of 1,000 or 100 items takes ten times as long."""
    found: Figures = {}
    for share in (0.0, 0.001, 0.01):
        for ordered in (True, False):
            for most in (4, 16):
                hosts = [HostKind("gpu", 50, 0.1, spread=0.1, straggling=share)]
                name = f"{share:.1%}, {'ordered' if ordered else 'any order'}, {most} in flight"
                found[f"{name} a host"] = row(
                    simulate_pool(
                        hosts,
                        items=items,
                        feed_bytes=4 * KB,
                        max_in_flight=most * 50,
                        ordered=ordered,
                    )
                )
    return found


def slow_kinds(items: int) -> Figures:
    """Ten hosts of three kinds with 15 places: how many items in flight does order need?"""
    return {
        f"{most} in flight, {'ordered' if ordered else 'any order'}": row(
            simulate_pool(
                cluster(0.01),
                items=items,
                feed_bytes=4 * KB,
                max_in_flight=most,
                ordered=ordered,
            )
        )
        for most in (16, 32, 64, 128, 256)
        for ordered in (True, False)
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--items", type=int, default=10_000)
    items: int = parser.parse_args().items
    started = time.perf_counter()
    figures = {
        "driver": {name: getattr(Driver(), name) for name in Driver.__slots__},
        "one driver": one_driver(items, (0.01, 0.03, 0.1, 0.3, 1.0)),
        "more drivers": more_drivers(items, (1, 4, 10, 20, 50, 100)),
        "stragglers": stragglers(items),
        "slow kinds": slow_kinds(items),
    }
    save("scale", figures | {"seconds": round(time.perf_counter() - started, 1)})


if __name__ == "__main__":
    main()
