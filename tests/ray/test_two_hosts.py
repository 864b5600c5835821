"""A cluster of two hosts with a cable between them, which is cut."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from patience import WAIT_S
from two_hosts import NodeError, TwoHosts, two_hosts, why_not

WHY_NOT = why_not() if find_spec("ray") else "ray is not installed"

pytestmark = [pytest.mark.extended, pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT))]

PROGRAM = str(Path(__file__).parents[1] / "support" / "over_a_cable.py")


def found_by(driver: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert driver.returncode == 0, driver.stderr[-3000:]
    found: dict[str, Any] = json.loads(driver.stdout.splitlines()[-1])
    return found


@pytest.fixture
def hosts() -> Iterator[TwoHosts]:
    """Two hosts; Ray itself is not what is tested: where it does not start, tests are skipped."""
    with ExitStack() as stack:
        try:
            made = stack.enter_context(two_hosts())
        except NodeError as error:
            pytest.skip(f"Ray's nodes do not start here: {error}")
        yield made


def test_items_go_over_a_cable_and_fail_in_time_when_it_is_cut(hosts: TwoHosts) -> None:
    found = found_by(hosts.driver(PROGRAM, "devices"))
    assert found["wrong"] == 0
    assert found["late"] + found["lost"] >= 10, "all but those that had come back already"
    assert found["late"] >= 1, "the deadline fires before anybody notices"


def test_replicas_on_this_side_do_what_was_beyond_a_cable_that_is_cut(hosts: TwoHosts) -> None:
    found = found_by(hosts.driver(PROGRAM, "replicas"))
    assert (found["nodes"], found["in order"]) == (2, True)
    assert found["beyond"] > 0, "some items were at the far end"


def test_a_job_by_shard_loses_a_host_and_gets_another_one(hosts: TwoHosts, tmp_path: Path) -> None:
    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(hosts.driver, PROGRAM, "shards", str(tmp_path))
        deadline_s = time.monotonic() + WAIT_S
        while not (tmp_path / "kill").exists() and not running.done():
            assert time.monotonic() < deadline_s
            time.sleep(0.05)
        if not running.done():
            hosts.kill("far")
            hosts.add("far")
            (tmp_path / "added").touch()
        found = found_by(running.result())
    assert found == {"done": True, "same": True, "nodes": [2, 2]}
