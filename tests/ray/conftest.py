"""A real cluster for the tests here: a head and two labelled nodes, on this machine's loopback."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from plait.scheduler.ray import Cluster, Node, cluster

NODES = [Node({"gpu": "a", "plait-host": "find"}), Node({"gpu": "b", "plait-host": "read"})]


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[Cluster]:
    pytest.importorskip("ray", reason="ray is not installed")
    with cluster("local", nodes=NODES) as joined:
        yield joined
