"""`plait.ray.cluster`: which cluster, and how it is joined."""

from __future__ import annotations

from collections.abc import Sequence

from .cluster import INLINE_LIMIT, SILENCE_S, START_S, Cluster
from .nodes import RayNode


def cluster(
    address: str = "local",
    *,
    nodes: Sequence[RayNode] = (),
    inline_limit: int = INLINE_LIMIT,
    start_timeout_s: float = START_S,
    silence_s: float = SILENCE_S,
) -> Cluster:
    """Return a cluster, to be entered by `with`.

    Parameters
    ----------
    address : str, default "local"
        `"local"` starts one on this machine, which listens on loopback only and ends with the
        ``with`` block; `"auto"` joins the cluster of this machine, `"host:port"` any other.
    nodes : sequence of RayNode
        The nodes of a local cluster besides its head; without any, actors run on the head.
    inline_limit : int
        The largest number of bytes of a value that is sent inside its call; larger values take a
        path that is slow between machines. For the nodes of a local cluster.
    start_timeout_s : float
        How long a node, or a process on one, may take to start.
    silence_s : float
        How long a host may be silent before it counts as lost. Ray itself takes longer to notice
        that a network is cut.

    Examples
    --------
    ::

        with pl.ray.cluster("local", nodes=[pl.ray.RayNode({"gpu": "a"})]) as cluster:
            plan = pl.plan(graph, devices=["ray:enc/cpu", "cpu"])
    """
    return Cluster(
        address,
        nodes,
        inline_limit=inline_limit,
        start_timeout_s=start_timeout_s,
        silence_s=silence_s,
    )
