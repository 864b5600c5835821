"""Beyond one machine: devices and replicas of sessions on a Ray cluster.

Ray starts processes on the nodes of a cluster, transports calls to them and reports when they die;
it is an optional package, which only engine.py and nodes.py import. The parts: cluster.py (joining
a cluster, or starting one on this machine), host.py (the process on a node), remote/ (devices
there), pools/ (whole sessions on many hosts), pool_simulation.py (predictions for many hosts).

Examples
--------
>>> import plait as pl
>>> hosts = [pl.ray.HostKind("gpu", count=8, item_s=0.05, in_flight=2)]
>>> found = pl.ray.simulate_pool(hosts, items=2000, feed_bytes=1 << 20)
>>> found.limit
'hosts'
"""

from .cluster import Cluster, cluster
from .nodes import RayNode
from .pool_simulation import Driver, HostKind, PoolSimulation, simulate_pool
from .pools.blocking_pool import BlockingReplicaPool
from .pools.pool_status import PoolStatus, ReplicaStatus
from .pools.replicas import ReplicaPool

__all__ = [
    "BlockingReplicaPool",
    "Cluster",
    "Driver",
    "HostKind",
    "PoolSimulation",
    "PoolStatus",
    "RayNode",
    "ReplicaPool",
    "ReplicaStatus",
    "cluster",
    "simulate_pool",
]
