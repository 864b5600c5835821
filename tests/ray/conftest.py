"""Clusters for the tests here: a real one, of a head and two labelled nodes on this machine's
loopback; and a fake one, with a host whose devices are driven in this process.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from fake_cluster import FakeEngine
from patience import WAIT_S
from plait.scheduler.ray import Cluster, RayNode, cluster
from plait.scheduler.ray.actors import ActorPlacement
from plait.scheduler.ray.remote.hosts import RemoteHost

NODES = [RayNode({"gpu": "a", "plait-host": "find"}), RayNode({"gpu": "b", "plait-host": "read"})]
JOINED = ExitStack()
NEED_IT = pytest.StashKey[set[str]]()


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[Cluster]:
    pytest.importorskip("ray", reason="ray is not installed")
    with JOINED:
        yield JOINED.enter_context(cluster("local", nodes=NODES))


@pytest.fixture
def engine() -> Iterator[FakeEngine]:
    made = FakeEngine()
    yield made
    made.leave()


@pytest.fixture
def host(engine: FakeEngine) -> Iterator[RemoteHost]:
    made = RemoteHost("enc", engine, ActorPlacement(), start_s=WAIT_S)
    yield made
    made.close()


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
