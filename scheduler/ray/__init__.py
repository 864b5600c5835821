"""Beyond one machine: devices and replicas of sessions on a Ray cluster.

Ray starts processes on the nodes of a cluster, transports calls to them and reports when they die;
it is an optional package, which only engine.py and nodes.py import. The parts: cluster.py (joining
a cluster, or starting one on this machine), host.py (the process on a node), remote/ (devices
there), pools/ (whole sessions on many hosts).

Examples
--------
>>> import plait as pl
>>> with pl.ray.cluster("auto") as cluster:  # doctest: +SKIP
...     with cluster.blocking_replicas(plan, n=4) as pool:
...         results = list(pool.stream(items))
"""

from .cluster import Cluster, cluster
from .nodes import RayNode
from .pools.blocking_pool import BlockingReplicaPool
from .pools.pool_status import PoolStatus, ReplicaStatus
from .pools.replicas import ReplicaPool

__all__ = [
    "BlockingReplicaPool",
    "Cluster",
    "PoolStatus",
    "RayNode",
    "ReplicaPool",
    "ReplicaStatus",
    "cluster",
]
