"""The plan: everything decided before the first run, in one frozen value.

A graph with symbolic dimensions is partitioned as it is; memories, transfers and offsets follow
when the shapes are known, by `Plan.for_shapes`, which a session does for what it is fed. With
bounds, all is decided for the largest shapes.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ..devices.device import Device
from ..graph.ir import Graph
from ..graph.passes import Applied, Pass, expand_unsupported, fold_constants, fuse_chains
from ..graph.printing import bytes_text, counted
from ..graph.state import taken_back
from .bounds import Template, leeway_of
from .chains import AFTER_CHOICE
from .costs import Costs
from .ends import Ends
from .fixed import growing_leeway
from .memory.leeway import NONE, Leeway
from .memory.regions import MemoryPlan
from .partition.decision import Decision
from .partition.pins import Pins
from .partition.strategies import Objective, Request, Strategy
from .plans.partition import Partition, Subgraph
from .plans.placement import Placement
from .plans.shapes import Bounds, Shapes
from .replicas.groups import Groups, as_range, every_device, variants
from .run_once import joined
from .specialise import specialised
from .steps import Step

if TYPE_CHECKING:
    from .profile import Profile
    from .simulation.simulation import Simulation


@dataclass(frozen=True)
class Plan:
    """Who runs what, in which memory, after what.

    Attributes
    ----------
    graph : Graph
        The graph that runs for each item; for given shapes, with what could be computed ahead
        folded.
    devices : tuple of str
        In order of preference.
    pins : Mapping of str to str
    max_in_flight : int
        For how many items at once memory is planned; with replicas for so many on each variant.
    partition : Partition
    placement : Placement or None
        None while dimensions are symbolic.
    memory : MemoryPlan or None
        None while dimensions are symbolic.
    """

    graph: Graph
    devices: tuple[str, ...]
    pins: Pins
    max_in_flight: int
    partition: Partition
    placement: Placement | None
    memory: MemoryPlan | None
    passes: tuple[Pass, ...] = field(repr=False)
    """What made the graph simpler."""
    prototypes: Mapping[str, Device] = field(repr=False, compare=False)
    """The devices that were asked what they support; those the user gave are also run on."""
    given: frozenset[str] = field(repr=False, compare=False, default=frozenset())
    """The names of devices that the user gave as objects."""
    strategy: Strategy = "auto"
    objective: Objective = "latency"
    costs: Costs = field(repr=False, default_factory=Costs)
    """What nodes and copies were taken to cost."""
    max_subgraphs: int | None = None
    memory_limits: Mapping[str, int] = field(default_factory=dict)
    replicas: Groups = ()
    """The devices that the first of each group stands for: items take turns there."""
    beside: Groups = ()
    """The groups that its devices are of, where the plan is one of several variants."""
    decision: Decision | None = field(repr=False, compare=False, default=None)
    """What was weighed before nodes were given to devices."""
    bounds: Bounds = field(default_factory=dict)
    """The smallest and the largest length of each symbol, where `graph` is of the largest."""
    template: Graph | None = field(repr=False, default=None)
    """The graph with its symbols, where other lengths of these run in it."""
    computed: Bounds = field(default_factory=dict)
    """The same where some follow from values: it is planned in stages, when it is opened or run."""
    inputs_on: Mapping[str, str] = field(default_factory=dict)
    """The devices on which callers hand over inputs; the others are fed on the host."""
    outputs_on: Mapping[str, str] = field(default_factory=dict)
    """The devices on which callers take outputs."""
    applied: tuple[Applied, ...] = field(repr=False, compare=False, default=())
    """What the passes did, one after the other."""
    precision: Mapping[str, str] = field(default_factory=dict)
    """The devices that may compute in float16."""
    halved: Mapping[str, str] = field(default_factory=dict)
    """Where the nodes run that do, and those that convert."""
    once: Plan | None = field(repr=False, default=None)
    """What is computed when it is opened, as a plan for one item; its outputs are prepared here."""
    source: Graph | None = field(repr=False, compare=False, default=None)
    """The graph as it was before all passes, where that is known."""
    dead: Mapping[str, str] = field(repr=False, compare=False, default_factory=dict)
    """The nodes of the caller's graph that no output needs, and why: they are dropped."""
    unneeded: frozenset[str] = frozenset()
    """Inputs that the plan was rid of by `fetching`; they may be fed all the same."""

    def __repr__(self) -> str:
        """Return a line, however large the plan: `report` tells more."""
        size = (
            f"{counted(len(self.graph.nodes), 'node')} in "
            f"{counted(len(self.subgraphs), 'subgraph')} on {', '.join(self.device_names)}"
        )
        memory = "memory by shapes"
        if self.memory is not None:
            pools = self.memory.pools.items()
            memory = ", ".join(f"{bytes_text(pool.nbytes)} in {name}" for name, pool in pools)
        return f"<Plan {self.graph.name!r}: {size}, {self.in_flight:,} in flight, {memory}>"

    @property
    def is_static(self) -> bool:
        """True when all shapes are known, and thereby all memory."""
        return self.memory is not None

    @cached_property
    def fed(self) -> Graph:
        """The graph that was planned: with symbols where there are bounds, and all its nodes.

        Variables are nodes in it.
        """
        return self.whole if self.template is None else self._whole(self.template)

    @property
    def fetchable(self) -> Graph:
        """The graph whose tensors can be fetched: that of the caller, if it is known."""
        return self.fed if self.source is None else self.source

    @property
    def whole(self) -> Graph:
        """The graph that runs, what runs once included."""
        return self._whole(self.graph)

    def _whole(self, rest: Graph) -> Graph:
        return taken_back(rest if self.once is None else joined(self.once.graph, rest))

    @property
    def ends(self) -> Ends:
        """Where callers hand over inputs and take outputs."""
        return Ends(self.inputs_on, self.outputs_on)

    @property
    def leeway(self) -> Leeway:
        """What memory must allow for, so that all shapes within bounds find room."""
        if self.template is None:
            return NONE
        if not self.bounds:
            return growing_leeway(self.template)
        template = Template(self.template, self.prototypes, self.pins, self.folds)
        return leeway_of(template, self.bounds, self.graph)

    @property
    def folds(self) -> bool:
        """True where nodes whose results are known ahead become constants."""
        return fold_constants in self.passes

    @property
    def variants(self) -> int:
        """On how many sets of devices the plan runs at once: 1 without replicas."""
        return variants(self.replicas)

    @property
    def in_flight(self) -> int:
        """How many items there is memory for, on all variants together."""
        return self.max_in_flight * self.variants

    @property
    def every_device(self) -> tuple[str, ...]:
        """The devices that a session opens, replicas included."""
        return every_device(self.devices, self.replicas)

    @property
    def device_names(self) -> tuple[str, ...]:
        """The devices as users name them: replicas as a range, ``"worker:0..3"``."""
        ranges = {names[0]: as_range(names) for names in self.replicas}
        return tuple(ranges.get(name, name) for name in self.devices)

    @property
    def assignment(self) -> Mapping[str, str]:
        """The device of every node, by name."""
        return self.partition.assignment

    @property
    def reasons(self) -> Mapping[str, str]:
        """Why every node is where it is, by name."""
        return self.partition.reasons

    @property
    def subgraphs(self) -> tuple[Subgraph, ...]:
        """The subgraphs, in a topological order."""
        return self.partition.subgraphs

    @property
    def steps(self) -> tuple[Step, ...]:
        """The runs and transfers; empty while dimensions are symbolic."""
        return self.placement.steps if self.placement is not None else ()

    def for_shapes(self, shapes: Shapes, max_in_flight: int | None = None) -> Plan:
        """Return the plan for inputs of these shapes, with memory of its own for just them.

        Shapes that depend on values are still unknown in it: see `boundaries`.

        Raises
        ------
        FeedError
            If a shape does not fit its input.
        ShapeError
            If shapes do not fit together inside the graph.
        """
        graph, folded = specialised(self.fed, shapes, self.passes)
        made = replace(self, applied=(*self.applied, *folded)).over(graph, max_in_flight)
        return self._fetching_as_much(made)

    def at_shapes(self, shapes: Shapes, max_in_flight: int | None = None) -> Plan:
        """Return the plan for inputs of these shapes, beside which those of other lengths run.

        Raises
        ------
        FeedError
            If a shape does not fit its input.
        ShapeError
            If shapes do not fit together inside the graph.
        PlanError
            If values decide shapes.
        """
        from .deciding import at_shapes

        made = at_shapes(self.fed, shapes, self._request(max_in_flight), self.given)
        return self._alike(made)

    def fetching(self, *names: str) -> Plan:
        """Return the plan for some tensors of the graph: only what they need runs, and is fed.

        They are those of the graph that was planned, whatever passes made of it; of a plan from a
        file only those that passes left. It is the plan itself where all of that is needed.

        Raises
        ------
        FetchError
            If there is no such tensor, or none is named.
        PlanError, DeviceError
            As `plait.plan`.
        """
        from .fetching import fetching

        return fetching(self, names, self._request(None))

    def over(self, graph: Graph, max_in_flight: int | None = None) -> Plan:
        """Return the plan of another graph for the same devices and pins."""
        from .deciding import decide

        passes = self.passes if self.template is None else ()  # they were at work on the template
        made = decide(graph, self._request(max_in_flight), self.given, passes)
        return replace(made, replicas=self.replicas, applied=(*self._simplified, *made.applied))

    def again(self, max_in_flight: int | None = None) -> Plan:
        """Return the plan of the same graph and bounds, for another number of items in flight."""
        from .deciding import within

        if not self.bounds:
            return self._fetching_as_much(self.over(self.whole, max_in_flight))
        request = self._request(max_in_flight)
        made = within(self.fed, self.bounds, request, self.given, folds=self.folds)
        return self._alike(made)

    def within(self, graph: Graph, bounds: Bounds) -> Plan:
        """Return the plan of another graph for the same devices and pins, for lengths in bounds."""
        from .deciding import within

        made = within(graph, bounds, self._request(None), self.given, folds=self.folds)
        return replace(made, passes=self.passes, replicas=self.replicas)

    def _alike(self, made: Plan) -> Plan:
        """Return a plan of the same graph with all that this one says beside it."""
        applied = (*self._simplified, *made.applied)
        made = replace(made, passes=self.passes, replicas=self.replicas, applied=applied)
        return self._fetching_as_much(made)

    def _fetching_as_much(self, made: Plan) -> Plan:
        made = replace(made, computed=self.computed)
        return replace(made, source=self.source, dead=self.dead, unneeded=self.unneeded)

    @property
    def _simplified(self) -> tuple[Applied, ...]:
        """What was done before nodes were given to devices."""
        return tuple(one for one in self.applied if one.name not in AFTER_CHOICE)

    def _request(self, max_in_flight: int | None) -> Request:
        return Request(
            self.prototypes,
            self.pins,
            self.max_in_flight if max_in_flight is None else max_in_flight,
            self.strategy,
            self.objective,
            self.costs,
            self.max_subgraphs,
            self.memory_limits,
            self.ends,
            fuse_chains in self.passes,
            self.precision,
            self.halved,
            expand_unsupported in self.passes,
        )

    def report(self, *, nodes: bool = False) -> str:
        """Return the plan for people: subgraphs, transfers, memory and reasons.

        With `nodes`, every node is listed with its device and the reason for it.
        """
        from .explain.report import report

        return report(self, nodes=nodes)

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as plain values, for JSON."""
        from .explain.plain import to_dict

        return to_dict(self)

    def to_json(self) -> str:
        """Return the plan as JSON, in the form that docs/plans.md describes."""
        from .explain.plain import to_json

        return to_json(self)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the plan to a file, from which `plait.load_plan` makes it again without planning.

        A file of that name is replaced, wholly or not at all.

        Raises
        ------
        PlanError
            If it was made with passes of the user's own.
        GraphError
            If the graph holds what cannot be written, or the file cannot be.
        """
        from .explain.plan_file import save_plan

        save_plan(self, path)

    def save_html(
        self,
        path: str | os.PathLike[str],
        *,
        profile: Profile | None = None,
        simulation: Simulation | None = None,
    ) -> None:
        """Write a report for a browser: graph, predicted timeline, memory, and why all is so.

        One file that asks nothing of any network. With a `profile`, what was measured is shown
        beside it; a `simulation` stands in place of the predictions for the plan's own devices.

        Raises
        ------
        PlanError
            If the file cannot be written.
        """
        from .explain.html import write_html

        write_html(path, self, profile, simulation)

    @staticmethod
    def load(path: str | os.PathLike[str], devices: Iterable[Device] = ()) -> Plan:
        """Return the plan in a file: the same as `plait.load_plan`."""
        from .explain.plan_file import load_plan

        return load_plan(path, devices)

    def __str__(self) -> str:
        return self.report()
