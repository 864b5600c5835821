"""``--ray`` and ``--replicas``: devices, and whole sessions, on the nodes of a cluster."""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, TypeAlias

import click

from .help import option
from .parsing import CommandError

if TYPE_CHECKING:
    from ..scheduler.plans.plan import Plan
    from ..scheduler.ray import Cluster
    from ..scheduler.ray.pools.replicas import ReplicaPool
    from ..scheduler.runtime.session import Session

KIND = "ray:"

MOST_HERE = 64
"""CPUs of the node on this machine: the limit of its replicas, which reserve one each."""

Size: TypeAlias = int | tuple[int, int]

ray_option = option(
    "Cluster",
    "--ray",
    "address",
    metavar="ADDRESS",
    help="Join a Ray cluster, HOST:PORT or auto, for devices such as ray:enc/cuda:0; local starts "
    "one on this machine, with a node for each named host.",
)
replicas_option = option(
    "Cluster",
    "--replicas",
    metavar="N|LEAST..MOST",
    help="Run whole sessions on this many hosts of the cluster of --ray, which share the items.",
)


def join_cluster(address: str | None, devices: Iterable[str]) -> Cluster | None:
    """Join the cluster at `address`, if any, until the command ends; `devices` are those it uses.

    Raises CommandError if one of them is on a cluster and the address is missing;
    DeviceUnavailableError if the cluster cannot be joined, or Ray is not installed.
    """
    hosts = list_hosts(devices)
    if address is None:
        if hosts:
            raise CommandError(
                f"{KIND}{hosts[0]} is a host of a cluster, and it is not said which one",
                fix="add --ray HOST:PORT, --ray auto or --ray local",
            )
        return None
    from ..scheduler.ray import RayNode, cluster
    from ..scheduler.ray.cluster import HOST_LABEL

    nodes = [RayNode({HOST_LABEL: host}) for host in hosts] or [RayNode(num_cpus=MOST_HERE)]
    if address != "local":
        nodes = []
    return click.get_current_context().with_resource(cluster(address, nodes=nodes))


def list_hosts(devices: Iterable[str]) -> list[str]:
    remote = (name.removeprefix(KIND) for name in devices if name.startswith(KIND))
    return list(dict.fromkeys(name.partition("/")[0] for name in remote))


def list_devices(cluster: Cluster) -> list[str]:
    """Return the full names of devices on all nodes of `cluster`; or DeviceUnavailableError."""
    from ..scheduler.ray.cluster import HOST_LABEL

    found = []
    for node in cluster.engine.nodes():
        name = node["labels"].get(HOST_LABEL, node["id"][:8])
        host = cluster.host(name, select={"ray.io/node-id": node["id"]})
        found += [f"{KIND}{name}/{device}" for device in host.link().hello["devices"]]
    return found


def parse_replicas(text: str | None, cluster: Cluster | None, devices: Iterable[str]) -> Size:
    """Parse `text`, a number or range of replicas; 0 means that the session runs here.

    Without a text it is 1 if there is a `cluster` and none of the `devices` is on it, otherwise 0.
    Raises CommandError if the text is not a number or range, or the cluster is missing.
    """
    if text is None:
        return 0 if cluster is None or list_hosts(devices) else 1
    found = re.fullmatch(r"(\d{1,6})(?:\.\.(\d{1,6}))?", text, re.ASCII)
    least, most = (int(found[1]), int(found[2] or found[1])) if found else (0, 0)
    if not 1 <= least <= most:
        raise CommandError(
            f"--replicas {text!r} is not a number of replicas", fix="for example 4, or 1..16"
        )
    if cluster is None:
        raise CommandError(
            "replicas run on a cluster, and none is named", fix="add --ray HOST:PORT or --ray local"
        )
    return most if least == most else (least, most)


def open_session(
    plan: Plan, cluster: Cluster | None, replicas: Size, *, measure: bool = False
) -> AbstractAsyncContextManager[Session | ReplicaPool]:
    if cluster is not None and replicas:
        return cluster.replicas(plan, n=replicas)
    from ..scheduler.runtime.session import Session

    return Session(plan, measure=measure)


def check_here(replicas: Size, **options: object) -> None:
    """Raise CommandError if `options` that inspect a session are given together with `replicas`."""
    for name, value in options.items():
        if replicas and value:
            raise CommandError(
                f"--{name} looks into the session, and replicas run theirs on other hosts",
                fix=f"leave --{name} out, or --replicas",
            )
