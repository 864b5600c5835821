"""A real cluster for the tests here: a head and two labelled nodes, on this machine's loopback."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from plait.scheduler.ray import Cluster, RayNode, cluster

NODES = [RayNode({"gpu": "a", "plait-host": "find"}), RayNode({"gpu": "b", "plait-host": "read"})]
JOINED = ExitStack()
NEED_IT = pytest.StashKey[set[str]]()


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[Cluster]:
    pytest.importorskip("ray", reason="ray is not installed")
    with JOINED:
        yield JOINED.enter_context(cluster("local", nodes=NODES))


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    """End the cluster after the last test that needs it: its dozen processes are never idle."""
    session = item.session
    if NEED_IT not in session.stash:
        session.stash[NEED_IT] = {one.nodeid for one in session.items if _needs_it(one)}
    session.stash[NEED_IT].discard(item.nodeid)
    if not session.stash[NEED_IT]:
        JOINED.close()


def _needs_it(item: pytest.Item) -> bool:
    return "ray_cluster" in getattr(item, "fixturenames", ())
