"""Tuning: measure each device, make plans from the measurements, run them, and choose the fastest.

Costs are measured node by node, but nodes that run at the same time slow each other down. So each
plan is measured as a whole too, and its figures feed the next round, until planning repeats itself.
The fastest plan of all that ran is chosen: it is never slower than one device that runs everything.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...devices.automatic import AUTO
from ...devices.device import Device, Scaling
from ...devices.errors import DeviceError
from ...devices.host import count_cores
from ...devices.registry import device as make_device
from ...devices.registry import find
from ...graph.core.ir import Graph
from ...graph.core.printing import format_count
from ...graph.formats.graphs import load
from ..bridges.blocking import block_on
from ..costs import Costs
from ..costs.host import is_on_host
from ..costs.signature import make_digest
from ..dispatch.back_pressure import WAITING
from ..dispatch.core_shares import list_planned, share_cores
from ..errors import PlanError
from ..planner.api import plan
from ..planner.partition.replicable import list_scaling
from ..planner.request import make_costs
from ..planner.scaling_out import explain_single, plan_on_replicas
from ..plans.plan import Plan
from ..plans.replicas import expand_auto, list_ranges
from ..plans.request import Objective
from .trial import Items, Trial
from .tuned import Tuned

MOST_ROUNDS = 3
TURNS = 3
"""Turns per trial; trials that are compared alternate."""

SAME = 0.01
"""Share by which a plan must be faster than an earlier trial, which is simpler."""

Devices = str | Device | Iterable[str | Device]
Progress = Callable[[str], object]


def tune(
    graph: Graph | str | os.PathLike[str],
    devices: Devices = AUTO,
    *,
    feeds: Mapping[str, Any] | Items,
    costs: Costs | str | os.PathLike[str] | None = None,
    objective: Objective = "latency",
    max_in_flight: int | None = None,
    progress: Progress | None = None,
    **options: Any,
) -> Tuned:
    """Find the fastest plan for this machine, by running items.

    Each device is measured alone. Plans are then made from the measurements, run, and measured
    again, until a plan repeats, in at most three rounds. The best single device is also tried with
    more threads, and for streams (``"throughput"``) as replicas. Plans on several devices that
    `plan` would consider are tried even if they are not predicted to be faster.

    Parameters
    ----------
    graph : Graph or path
    devices : str, Device, or iterable of them, default "auto"
        As in `plan`.
    feeds : Mapping of str to array, or sequence of these
        A typical item, or several that take turns. The plan is for their shapes, if these are all
        the same and no `bounds` are given.
    costs : Costs or path, optional
        Earlier measurements.
    objective : {"latency", "throughput"}, default "latency"
        The quantity to minimize: the time of one item, or the time per item of a stream.
    max_in_flight : int, optional
        The number of items in flight in a stream: by default two more than there are cores, and 1
        for ``"latency"``.
    progress : callable, optional
        Called with a line of text before each run.
    **options
        Other arguments of `plan`: `pin`, `bounds`, `passes`, `max_subgraphs`, `memory_limits`, ...

    Raises
    ------
    PlanError
        If planning fails, or tuning decides one of the options itself.
    SessionError
        If called in a trio task, which it would block.
    KernelError, DeviceError, FeedError
        If an item fails.

    Examples
    --------
    >>> import numpy as np
    >>> import plait as pl
    >>> b = pl.GraphBuilder("doubled")
    >>> x = b.input("x", "float32", ("n",))
    >>> b.output("y", b.op("Add", x, x))
    >>> tuned = pl.tune(b.build(), ["cpu"], feeds={"x": np.ones(1000, "float32")})
    >>> tuned.plan.devices, tuned.plan.is_static
    (('cpu',), True)
    """
    if isinstance(graph, str | os.PathLike):
        graph = load(graph)
    if not isinstance(graph, Graph):
        raise PlanError(
            f"expected a graph, got {type(graph).__name__}",
            fix="tune what load(path) or GraphBuilder.build() returned, or a pipeline's graph",
        )
    decided = sorted({"strategy", "shapes"} & options.keys())
    if decided:
        raise PlanError(
            f"tune() is given {' and '.join(decided)}, which it decides",
            fix="leave that out: shapes are those of the feeds",
        )
    is_one = isinstance(feeds, Mapping) or not isinstance(feeds, Iterable)
    items: list[Any] = [feeds] if is_one else [*feeds]
    if not items or not all(isinstance(item, Mapping) for item in items):
        raise PlanError(
            "feeds is neither an item nor a list of items", fix="map the graph's inputs to arrays"
        )
    listed = [*expand_auto(devices)]
    is_streamed = objective == "throughput"
    if max_in_flight is None:
        max_in_flight = count_cores() + WAITING if is_streamed else 1
    options |= {"objective": objective, "max_in_flight": max_in_flight}
    if not options.get("bounds"):
        shapes = [{n: np.shape(item[n]) for n in graph.inputs if n in item} for item in items]
        if all(one == shapes[0] for one in shapes):
            options["shapes"] = shapes[0]
    tuning = _Tuning(graph, listed, items, is_streamed, options, progress or (lambda _: None))
    return block_on(
        lambda: tuning.run(costs),
        "plait.tune()",
        "await trio.to_thread.run_sync(lambda: plait.tune(...))",
    )


@dataclass
class _Tuning:
    graph: Graph
    devices: Sequence[str | Device]
    feeds: Items
    is_streamed: bool
    options: Mapping[str, Any]
    progress: Progress
    trials: list[Trial] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    async def run(self, given: Costs | str | os.PathLike[str] | None) -> Tuned:
        costs = make_costs(given, {}) if given is not None else Costs()
        # Each alone first: a split is planned with the costs of nodes on every device.
        await self._compare(self._singles(costs), [])
        for trial in self.trials:
            costs = await self._measure_costs(costs, trial)
        rounds = 0
        for rounds in range(1, MOST_ROUNDS + 1):
            made = self._plan(self.devices, costs=costs)
            if self._is_tried(made):
                break
            trial = self._trial(f"auto, round {rounds}", made)
            await self._compare([trial], self._champion)
            costs = await self._measure_costs(costs, self.trials[-1])
        await self._compare([*self._variations(costs)], self._champion)
        if self.is_streamed:
            await self._compare(self._replicas(costs), self._champion)
        best = self._best
        return Tuned(best.plan, costs, tuple(self.trials), best, rounds, tuple(self.notes))

    def _singles(self, costs: Costs) -> list[Trial]:
        """Plan a trial by `costs` for each device; nodes that it does not support run on others."""
        found: list[Trial] = []
        for device in self.devices:
            name = _name_device(device)
            try:
                made, share = self._plan([device], costs=costs), "all"
            except PlanError:  # it does not support all nodes, or a pin names another device
                others = (one for one in self.devices if one is not device)
                try:
                    made = self._plan([device, *others], costs=costs, strategy="preference")
                except PlanError:  # the plan on all devices raises the reason, if that fails too
                    continue
                share = "most" if len({*made.assignment.values()}) > 1 else "all"
            if any(_is_same(made, trial.plan) for trial in found):
                continue
            found.append(self._trial(f"{share} on {name}", made))
        return found

    def _variations(self, costs: Costs) -> Iterator[Trial]:
        best = min(self.trials, key=lambda trial: trial.seconds, default=None)
        used = set() if best is None else {*best.plan.assignment.values()}
        names = [one for one in self.devices if isinstance(one, str) and used <= {one, f"{one}:0"}]
        if best is None or len(names) != 1 or not is_on_host(find(names[0])):
            return
        (name,), (first,) = names, used
        prototype = find(name)
        scales = isinstance(prototype, Scaling)
        # One item on all cores may beat several that share them; only running both shows which.
        if scales and self.is_streamed and self.options["max_in_flight"] > 1:
            made = self._plan([name], costs=costs, max_in_flight=1)
            yield self._trial(f"all on {name}, one item at a time", made)
        current = _describe_threads(prototype, share_cores(best.plan)[first])
        varied = (
            one
            for one in _vary_threads(name)
            if not scales or _describe_threads(one, count_cores()) != current
        )
        ranges = list_ranges(name, self.options["max_in_flight"]) if self.is_streamed else ()
        for devices in (*varied, *ranges):
            try:
                made = self._plan([devices], costs=costs)
            except PlanError:  # such as that items must not pass each other
                continue
            if made.replicas and self._is_tried(made):
                continue
            is_priced = scales or isinstance(devices, str)
            yield Trial(_label_trial(devices), made, self.is_streamed, is_priced=is_priced)

    def _replicas(self, costs: Costs) -> list[Trial]:
        """Plan trials by `costs` with replicas of each device that scales; others run the rest."""
        found: list[Trial] = []
        for device in self.devices:
            others = [one for one in self.devices if one is not device]
            try:
                made = self._plan([device, *others], costs=costs, strategy="preference")
            except PlanError:  # such as that there would be too many subgraphs
                continue
            used = sorted(list_planned(made))
            if len(used) > 1 and not made.replicas and (why := explain_single(made)):
                note = f"no replicas of {' and '.join(used)}: {why}"
                self.notes += [note] if note not in self.notes else []
            for one in (
                plan_on_replicas(made) if _name_device(device) in list_scaling(made.request) else ()
            ):
                if not self._is_tried(one, *found):
                    ranges = ", ".join(name for name in one.device_names if ".." in name)
                    found.append(self._trial(f"all on {ranges}", one))
        return found

    def _is_tried(self, made: Plan, *more: Trial) -> bool:
        return any(_is_same(made, trial.plan) for trial in (*self.trials, *more))

    def _plan(self, devices: Sequence[str | Device], **more: Any) -> Plan:
        return plan(self.graph, devices, **{**self.options, **more})

    def _trial(self, name: str, made: Plan) -> Trial:
        return Trial(name, made, self.is_streamed)

    async def _measure_costs(self, costs: Costs, trial: Trial) -> Costs:
        """Measure `trial`, unless shapes in it depend on values, and return the updated `costs`."""
        if not trial.plan.is_static:
            return costs
        self.progress(f"measuring the nodes of {trial.name}")
        return costs.merged(await trial.measure_costs(self.feeds))

    async def _compare(self, new: Sequence[Trial], known: Sequence[Trial]) -> None:
        if not new:
            return
        self.trials += new
        compared = [*known, *new]
        # A machine that becomes warm or busy then slows all of them down.
        for turn in range(1, TURNS + 1):
            for place, trial in enumerate(compared):
                self.progress(f"running {trial.name}, turn {turn} of {TURNS}")
                compared[place] = after = await trial.run_turn(self.feeds)
                self.trials[self.trials.index(trial)] = after

    @property
    def _champion(self) -> list[Trial]:
        return [self._best] if self.trials else []

    @property
    def _best(self) -> Trial:
        least = min(trial.seconds for trial in self.trials)
        return next(one for one in self.trials if one.seconds <= least * (1 + SAME))


def _is_same(made: Plan, other: Plan) -> bool:
    same_parts = _count_parts(made) == _count_parts(other)
    return same_parts and _select_replicas(made) == _select_replicas(other)


def _count_parts(plan: Plan) -> Counter[tuple[str, str]]:
    # By digest: a node that was fused and split again for a device has another name.
    return Counter((part.device, make_digest(part.graph)) for part in plan.subgraphs)


def _select_replicas(plan: Plan) -> set[tuple[str, ...]]:
    used = list_planned(plan)
    return {names for names in plan.replicas if names[0] in used}


def _vary_threads(name: str) -> Iterator[Device]:
    """Yield the device `name` with other numbers of threads.

    A device that scales gets all cores, waiting with and without spinning, and then one thread. Any
    other gets all cores.
    """
    cores = count_cores()
    if cores == 1:
        return
    known: Sequence[Mapping[str, Any]] = (
        {"threads": cores, "spinning": True},
        {"threads": cores, "spinning": False},
        {"threads": 1},
    )
    for options in known if isinstance(find(name), Scaling) else ({"threads": cores},):
        try:
            yield make_device(name, **options)
        except DeviceError:  # it has no such option
            continue


def _describe_threads(device: Device, cores: int) -> str:
    if isinstance(device, Scaling):
        return device.computes_on(cores)
    return format_count(count_cores(), "thread")


def _name_device(device: str | Device) -> str:
    return device if isinstance(device, str) else getattr(device, "name", repr(device))


def _label_trial(device: str | Device) -> str:
    if isinstance(device, str):
        return f"all on {device}"
    return f"all on {device.name}, {_describe_threads(device, count_cores())}"
