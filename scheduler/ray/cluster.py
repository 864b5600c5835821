"""A cluster that this process has joined, or has started on this machine: `plait.ray.cluster`."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar, Unpack

import sniffio
import trio

from ...devices.errors import DeviceError, DeviceUnavailableError
from ...devices.host import count_cores
from ...graph.core.ir import Graph
from ...graph.values.tensor import Array
from ..bridges.asyncio_results import wait_until_done
from ..plans.plan import Plan
from ..runtime.events import Observer
from ..runtime.faults import FaultPolicy
from .actors import Actor, ActorPlacement, ActorSystem
from .engine import RayEngine, load_ray
from .host import Host
from .nodes import LocalNodes, RayNode
from .payload import make_payload, unpack_plan
from .pools.blocking_pool import BlockingReplicaPool, ReplicaArguments
from .pools.replicas import ReplicaPool
from .remote.device import RayDevice
from .remote.hosts import RemoteHost

T = TypeVar("T")

INLINE_LIMIT = 64 << 20
START_S = 60.0
SILENCE_S = 30.0
HOST_LABEL = "plait-host"


class Cluster:
    """A cluster, joined within `with` or `async with`; also called `cluster`.

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

    def __init__(
        self,
        address: str = "local",
        *,
        nodes: Sequence[RayNode] = (),
        inline_limit: int = INLINE_LIMIT,
        start_timeout_s: float = START_S,
        silence_s: float = SILENCE_S,
    ) -> None:
        self.address = address
        self.start_timeout_s = start_timeout_s
        self.inline_limit = inline_limit
        self.silence_s = silence_s
        self._nodes = tuple(nodes)
        self._lock = threading.Lock()
        self._hosts: dict[str, RemoteHost] = {}
        self._local: LocalNodes | None = None
        self._engine: ActorSystem | None = None

    @property
    def engine(self) -> ActorSystem:
        """The engine that starts actors.

        Raises
        ------
        DeviceUnavailableError
            If the cluster is not entered.
        """
        if self._engine is None:
            raise DeviceUnavailableError(
                "the cluster is not joined", fix="with pl.ray.cluster(...) as cluster"
            )
        return self._engine

    def host(
        self,
        name: str,
        *,
        select: Mapping[str, str] | None = None,
        num_cpus: float = 0,
        num_gpus: float = 0,
        resources: Mapping[str, float] | None = None,
    ) -> RemoteHost:
        """Declare the host `name`; its devices are then named ``"ray:name/..."``.

        Parameters
        ----------
        select : Mapping of str to str
            Labels that its node must have.
        num_cpus, num_gpus : float
            The share of the node that Ray reserves for it.
        resources : Mapping of str to float
            Further resources that it reserves, by the cluster's own names.

        Returns
        -------
        RemoteHost
            It starts on first use, and ends with the cluster's context, or when it is closed.

        Raises
        ------
        DeviceError
            If there is another host of that name.
        """
        placing = ActorPlacement(dict(select or {}), num_cpus, num_gpus, dict(resources or {}))
        with self._lock:
            known = self._hosts.get(name)
            # The name of a closed host is free.
            if known is not None and not known.is_closed:
                if known.placing == placing:
                    return known
                raise DeviceError(f"there is a host {name!r} already", fix="choose another name")
            made = RemoteHost(
                name, self.engine, placing, start_s=self.start_timeout_s, silence_s=self.silence_s
            )
            self._hosts[name] = made
        return made

    def device(self, name: str) -> RayDevice:
        """Return the device `name`, on a host: ``"enc/cuda:0"``.

        An undeclared host is placed on a node with the label ``plait-host`` of that name.

        Raises
        ------
        DeviceUnavailableError
            If the name is not that of a host and device.
        """
        host, slash, kind = name.removeprefix("ray:").partition("/")
        if not (host and slash and kind) or kind.startswith("ray"):
            raise DeviceUnavailableError(
                f"{name!r} names no device on a host", fix="name both: 'ray:enc/cuda:0'"
            )
        with self._lock:
            known = self._hosts.get(host)
        if known is None or known.is_closed:
            # An undeclared host may run on any node with its label.
            known = self.host(host, select={HOST_LABEL: host})
        return RayDevice(known, kind)

    def replicas(
        self,
        plan: Plan | Graph,
        n: int | tuple[int, int] = 1,
        *,
        devices: str | Sequence[str] | None = None,
        planning: Mapping[str, Any] | None = None,
        select: Mapping[str, str] | None = None,
        num_cpus: float = 1,
        num_gpus: float = 0,
        resources: Mapping[str, float] | None = None,
        max_in_flight: int | None = None,
        faults: FaultPolicy | None = None,
        on_event: Observer | None = None,
        seed: int = 0,
    ) -> ReplicaPool:
        """Return a pool of replicas, each a session of the plan on a host of its own.

        Parameters
        ----------
        plan : Plan or Graph
            A plan for devices that both the hosts and this machine have; or a graph, which each
            host plans.
        n : int or tuple of two, default 1
            The number of replicas; or the least and the greatest number: replicas are added while
            items wait for a second, and removed when they have been idle for a minute.
        devices : str or sequence of str, optional
            For a graph: the devices for which hosts plan it.
        planning : Mapping of str to object, optional
            For a graph: further arguments of `plait.plan`.
        select, num_cpus, num_gpus, resources
            The requirements of each replica, as for `host`.
        max_in_flight : int, optional
            The largest number of items of a replica, including those in transit; 64 by default. A
            replica gets at most the items that its plan has memory for, and work for 10 ms more.
        faults : FaultPolicy, optional
            How often items of lost replicas run again, and when other replicas are started.
        on_event : callable, optional
            Called with events, as by a `Session`.
        seed : int, default 0
            Seed of random numbers: a pool draws the same as one session, on any replica.

        Examples
        --------
        ::

            async with cluster.replicas(plan, n=(1, 16), select={"gpu": "h200"}) as pool:
                async with pool.stream(batches) as results:
                    async for item in results:
                        show(item["boxes"])
        """
        placing = ActorPlacement(dict(select or {}), num_cpus, num_gpus, dict(resources or {}))

        async def start(name: str) -> Actor:
            starting = partial(self.start, Host, name, placing=placing)
            return await trio.to_thread.run_sync(starting)

        return ReplicaPool(
            make_payload(plan, devices, planning),
            start,
            self.engine.put,
            n=n,
            max_in_flight=max_in_flight,
            silence_s=self.silence_s,
            start_timeout_s=self.start_timeout_s,
            faults=faults,
            on_event=on_event,
            seed=seed,
        )

    def blocking_replicas(
        self,
        plan: Plan | Graph,
        n: int | tuple[int, int] = 1,
        **arguments: Unpack[ReplicaArguments],
    ) -> BlockingReplicaPool:
        """Return an open pool of `n` (default: 1) replicas of `plan` for code without a trio loop.

        Its arguments are those of `replicas`.

        Raises
        ------
        PlaitError
            Any error of opening a pool.
        """
        return BlockingReplicaPool(self.replicas(plan, n, **arguments))

    def dump(
        self,
        plan: Plan | Graph,
        value: Any,
        *,
        devices: str | Sequence[str] | None = None,
        planning: Mapping[str, Any] | None = None,
    ) -> tuple[Array, bytes]:
        """Return the data of `plan`, and a pickle of a function that makes it, and of `value`.

        `devices` and `planning` are those of `replicas`. Raises PlanError as it does; DeviceError
        if the value cannot be sent.
        """
        data, *rest = make_payload(plan, devices, planning).pack(lambda sent: sent)
        return data, self.engine.dump((lambda sent: unpack_plan(sent, *rest), value))

    def start(self, kind: type, *arguments: Any, placing: ActorPlacement | None = None) -> Actor:
        return self.engine.start(kind, *arguments, placing=placing or ActorPlacement())

    def add_node(self, node: RayNode) -> int:
        """Start `node`, one more of a cluster that was started here; return its number.

        The head is 1; the initial nodes of the cluster follow.
        """
        return self._owned().add(node)

    def remove_node(self, number: int) -> None:
        """End the node `number`, which was started here; everything that runs there is lost."""
        self._owned().remove(number)

    def __enter__(self) -> Cluster:
        if self._engine is not None:
            raise DeviceUnavailableError("the cluster is joined already", fix="make another one")
        # Fails before a process is started that could not be ended without the package.
        load_ray()
        try:
            if self.address == "local":
                self._start_nodes()
            address = self.address if self._local is None else self._local.address
            self._engine = RayEngine(address, loopback=self._local is not None)
        except BaseException:
            self._leave()
            raise
        _entered.append(self)
        return self

    def _start_nodes(self) -> None:
        # With other nodes, the head offers no CPUs: actors run on the nodes that were asked for.
        head = RayNode(num_cpus=0) if self._nodes else RayNode(num_cpus=count_cores())
        self._local = LocalNodes(head, self.inline_limit, self.start_timeout_s)
        for node in self._nodes:
            self._local.add(node)

    def __exit__(self, *_: object) -> None:
        self._leave()

    async def __aenter__(self) -> Cluster:
        return await finish_on_thread(self.__enter__)

    async def __aexit__(self, *_: object) -> None:
        await finish_on_thread(self._leave)

    def _leave(self) -> None:
        # Entering may have failed before the cluster was added.
        if self in _entered:
            _entered.remove(self)
        with self._lock:
            # Closed outside of the lock, since that takes a while.
            hosts, self._hosts = self._hosts, {}
        for host in hosts.values():
            host.close()
        engine, self._engine = self._engine, None
        local, self._local = self._local, None
        try:
            if engine is not None:
                engine.leave()
        finally:
            if local is not None:
                local.close()

    def _owned(self) -> LocalNodes:
        if self._local is None:
            raise DeviceUnavailableError(
                "the nodes of this cluster were not started here",
                fix='add them by its own means; only nodes of cluster("local") are ours',
            )
        return self._local


def find(name: str) -> RayDevice:
    """Return the device with the full name `name`, on the cluster that this process has entered.

    Raises DeviceUnavailableError if no cluster is entered.
    """
    if not _entered:
        raise DeviceUnavailableError(
            f"{name!r} is on a Ray cluster, and none is joined",
            fix="with pl.ray.cluster(...): plan and run inside",
        )
    return _entered[-1].device(name)


_entered: list[Cluster] = []
"""The clusters that this process has entered and not left, the latest last."""


async def finish_on_thread(function: Callable[[], T]) -> T:
    """Return the result of `function`, called on a thread; wait for it even if cancelled."""
    if sniffio.current_async_library() == "trio":
        with trio.CancelScope(shield=True):
            return await trio.to_thread.run_sync(function)
    calling = asyncio.get_running_loop().run_in_executor(None, function)
    await wait_until_done(calling)
    return calling.result()


cluster = Cluster
