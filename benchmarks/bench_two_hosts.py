"""What does an item of 1 MB cost between two hosts, on a remote device and on a replica?

The hosts are network namespaces on this machine with a virtual cable between them, a node of a Ray
cluster in each; making them takes the rights of root. Four items are in flight; results of 1 MB
come back over the cable, or sums of four bytes. Beside it a tiny item, awaited. The same with
Ray's own limit for values that go inline, 100 KB: then a megabyte goes through its object store.
Goals: 4 ms an item of 1 MB, 2 ms a tiny one.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from measure import save

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))
from two_hosts import two_hosts, why_not

PROGRAM = str(Path(__file__).with_name("between_hosts.py"))
LIMITS = {"inline up to 64 MB": 64 << 20, "inline up to 100 KB": 100 << 10}


def figures(inline_limit: int, timeout_s: float) -> dict[str, Any]:
    with two_hosts(inline_limit) as hosts:
        ran = hosts.driver(PROGRAM, timeout_s=timeout_s)
    if ran.returncode != 0:
        raise RuntimeError(ran.stderr[-3000:])
    found: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store", action="store_true", help="the object store too: some minutes")
    store: bool = parser.parse_args().store
    if (reason := why_not()) is not None:
        raise SystemExit(reason)
    chosen = LIMITS if store else dict(list(LIMITS.items())[:1])
    save("two_hosts", {name: figures(limit, 280) for name, limit in chosen.items()})


if __name__ == "__main__":
    main()
