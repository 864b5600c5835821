"""The plan: everything decided before the first run, in one frozen value.

A graph with symbolic dimensions is partitioned as it is; memories, transfers and offsets follow
when the shapes are known, by `Plan.for_shapes`, which a session calls for the shapes that it is
fed. With bounds, everything is decided for the largest shapes.

Stages are parts of its graph with lengths that become known while an item runs. Memory is planned
for the largest lengths. A stage begins when the lengths that it reads are computed; the first stage
reads lengths of inputs only.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias

from ...devices.device import Device
from ...graph.core.ir import Graph
from ...graph.core.nested import walk_nodes
from ...graph.core.printing import format_bytes, format_count
from ...graph.core.state import restore_variables
from ...graph.operators.item_order import explain_order, is_ordered
from ...graph.passes.pipeline import Applied, Pass
from ...graph.values.tensor import TensorSpec
from ..costs import Costs
from .fetches import Fetches, list_names
from .partition import Decision, Partition, Subgraph
from .placement import Placement, Step
from .regions import MemoryPlan
from .replicas import Groups, count_variants, find_functions, list_devices, name_range
from .request import IoDevices, PassOptions, Pins, PlanRequest

if TYPE_CHECKING:
    from ..profile import Profile
    from ..simulation.simulation import Simulation

Shapes: TypeAlias = Mapping[str, Sequence[int]]
"""The shapes of inputs, by name."""

Bounds: TypeAlias = Mapping[str, tuple[int, int]]
"""The smallest and the largest length of each symbol."""

NO_BOUNDS: Bounds = {}


@dataclass(frozen=True, slots=True)
class ComputedLengths:
    """A node that computes lengths, in buffers of the largest ones."""

    node: str
    tensors: tuple[str, ...]
    """The tensors that it writes, each from the start of its buffer."""
    shapes: str
    """The output of the plan's graph with their shapes, concatenated."""
    ranks: tuple[int, ...]
    """The ranks of `tensors`."""


@dataclass(frozen=True, slots=True)
class PlanStage:
    """A part of a plan's graph with the same symbols."""

    graph: Graph
    """With the largest lengths."""
    template: Graph | None
    """The graph with symbols; None if it has none."""
    computes: tuple[ComputedLengths, ...]
    """The nodes that compute lengths of later stages, or of results."""
    limits: tuple[tuple[str, int, str, tuple[int, int]], ...]
    """Bounds of computed lengths: tensor, axis, symbol, and the smallest and largest length."""
    bounds: Bounds
    """The smallest and largest length of each symbol in the template."""


@dataclass(frozen=True)
class Plan:
    """The device of each node, the memory of each tensor, and the order of steps.

    Attributes
    ----------
    graph : Graph
        The graph that runs for each item; for given shapes, with everything folded that can be
        computed ahead.
    request : PlanRequest
        The arguments of planning.
    partition : Partition
    placement : Placement or None
        None while dimensions are symbolic.
    memory : MemoryPlan or None
        None while dimensions are symbolic.

    Examples
    --------
    >>> import plait as pl
    >>> b = pl.GraphBuilder("relu")
    >>> b.output("y", b.op("Relu", b.input("x", "float32", (2,)), name="relu"))
    >>> plan = pl.plan(b.build(), ["cpu"])
    >>> plan.assignment
    {'relu': 'cpu'}
    >>> plan.is_static, plan.max_in_flight
    (True, 1)
    """

    graph: Graph
    request: PlanRequest
    partition: Partition
    placement: Placement | None
    memory: MemoryPlan | None
    passes: tuple[Pass, ...] = field(repr=False)
    """The passes that simplified the graph."""
    replicas: Groups = ()
    """Groups of replicas. The plan names the first of each; items take turns on all of them."""
    has_automatic_replicas: bool = False
    """True if planning chose the replicas, not the user."""
    beside: Groups = ()
    """The groups of its devices, if the plan is one of several variants."""
    decision: Decision | None = field(repr=False, compare=False, default=None)
    """The candidates, and the reason for the choice."""
    bounds: Bounds = field(default_factory=dict)
    """The smallest and the largest length of each symbol; `graph` has the largest ones."""
    template: Graph | None = field(repr=False, default=None)
    """The graph with symbols, if other lengths run in the memory of this plan."""
    computed: Bounds = field(default_factory=dict)
    """Bounds of a graph in which values decide lengths: sessions plan it in stages."""
    stages: tuple[PlanStage, ...] = field(repr=False, default=())
    """The stages of `graph`, if lengths become known while an item runs."""
    applied: tuple[Applied, ...] = field(repr=False, compare=False, default=())
    """The changes by passes, in order."""
    prologue: Plan | None = field(repr=False, default=None)
    """The plan of nodes that run once, at open; its outputs are prepared tensors here."""
    source: Graph | None = field(repr=False, compare=False, default=None)
    """The graph before all passes, if known."""
    origin: str = field(repr=False, compare=False, default="")
    """The digest of `source`, if the plan was read from a file."""
    dead: Mapping[str, str] = field(repr=False, compare=False, default_factory=dict)
    """The nodes of the caller's graph that were dropped, and why: no output needs them."""
    unneeded: frozenset[str] = frozenset()
    """Inputs that `fetching` removed; feeding them is allowed."""

    def __copy__(self) -> Plan:
        """Return the plan itself: it does not change."""
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Plan:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        """Return the plan as a file's bytes, for `plait.load_plan`.

        Raises PlanError or GraphError as `save`.
        """
        from ..reports.plan_file import dump_plan, load_plan

        return load_plan, (dump_plan(self),)

    def __repr__(self) -> str:
        """Return one line; `report` has the details."""
        size = (
            f"{format_count(len(self.graph.nodes), 'node')} in "
            f"{format_count(len(self.subgraphs), 'subgraph')} on {', '.join(self.device_names)}"
        )
        memory = "memory by shapes"
        if self.memory is not None:
            pools = self.memory.pools.items()
            memory = ", ".join(f"{format_bytes(pool.nbytes)} in {name}" for name, pool in pools)
        return f"<Plan {self.graph.name!r}: {size}, {self.in_flight:,} in flight, {memory}>"

    @property
    def is_static(self) -> bool:
        """True if all shapes, and with them all memory, are known."""
        return self.memory is not None

    @cached_property
    def fed(self) -> Graph:
        """The graph that was planned, with symbols if there are bounds; variables are nodes."""
        return self.whole if self.template is None else self._whole(self.template)

    @property
    def fetchable(self) -> Graph:
        """The graph whose tensors can be fetched: the caller's, if it is known."""
        return self.fed if self.source is None else self.source

    @property
    def whole(self) -> Graph:
        """The graph that runs, including the nodes that run once."""
        return self._whole(self.graph)

    def _whole(self, rest: Graph) -> Graph:
        return restore_variables(
            rest if self.prologue is None else join_prologue(self.prologue.graph, rest)
        )

    @property
    def devices(self) -> tuple[str, ...]:
        """The names of the devices, in order of preference."""
        return self.request.names

    @property
    def prototypes(self) -> Mapping[str, Device]:
        """The devices that were asked what they support; device objects from the user also run."""
        return self.request.devices

    @property
    def pins(self) -> Pins:
        """The device of each node, by name or pattern, that the user chose."""
        return self.request.pins

    @property
    def max_in_flight(self) -> int:
        """The number of items for which memory is planned; with replicas, on each variant."""
        return self.request.max_in_flight

    @property
    def costs(self) -> Costs:
        """The costs of nodes and copies that the plan is based on."""
        return self.request.costs

    @property
    def strategy(self) -> str:
        """The rule that assigned nodes to devices.

        With automatic replicas, plans derived from this one for other shapes use another rule,
        ``request.strategy``: a graph that is whole on one device stays whole.
        """
        return self.request.strategy if self.decision is None else self.decision.strategy

    @property
    def ends(self) -> IoDevices:
        """The devices on which callers pass inputs and take outputs."""
        return self.request.ends

    @property
    def folds(self) -> bool:
        """True if nodes whose results are known ahead become constants."""
        return PassOptions.from_passes(self.passes).folds

    @property
    def variants(self) -> int:
        """The number of device sets on which the plan runs at once: 1 without replicas."""
        return count_variants(self.replicas)

    @property
    def in_flight(self) -> int:
        """The number of items that memory has room for, on all variants together."""
        return self.max_in_flight * self.variants

    @property
    def has_own_devices(self) -> bool:
        """True if replicas share no device with steps: each may run on a thread of its own."""
        groups = self.replicas or self.beside
        variants = count_variants(groups)
        own = {name for names in groups if len({*names}) == variants for name in names}
        return variants > 1 and own.issuperset(step.device for step in self.steps)

    @property
    def every_device(self) -> tuple[str, ...]:
        """The devices that a session opens, replicas included."""
        return list_devices(self.devices, self.replicas)

    @property
    def device_names(self) -> tuple[str, ...]:
        """The devices as users name them: replicas as a range, ``"worker:0..3"``."""
        ranges = {names[0]: name_range(names) for names in self.replicas}
        return tuple(ranges.get(name, name) for name in self.devices)

    @cached_property
    def overlapping_functions(self) -> tuple[str, ...]:
        """The Python functions that replicas may call for several items at once.

        Functions that declare `ordered`, either way, are left out.
        """
        firsts, device, found = {names[0] for names in self.replicas}, None, {}
        for path, graph, node in walk_nodes(self.graph):
            if graph is self.graph or path in self.assignment:  # a called node is where its call is
                device = self.assignment.get(path)
            if device in firsts:
                found[node.op] = node.operator
        functions = find_functions(self.graph).keys() & found.keys()
        return tuple(
            name
            for name, operator in found.items()
            if name in functions and operator.ordered is None and not is_ordered(operator)
        )

    @cached_property
    def ordered_functions(self) -> Mapping[str, str]:
        """The Python functions that are called for one item at a time, with the reason."""
        if not self.request.overlaps:
            return {}
        operators = find_functions(self.graph)
        return {name: explain_order(one) for name, one in operators.items() if is_ordered(one)}

    @property
    def inputs(self) -> Mapping[str, TensorSpec]:
        """The specs of the inputs, by name."""
        return {name: self.graph.tensors[name] for name in self.graph.inputs}

    @property
    def outputs(self) -> Mapping[str, TensorSpec]:
        """The specs of the outputs, by name."""
        return {name: self.graph.tensors[name] for name in self.graph.outputs}

    @property
    def assignment(self) -> Mapping[str, str]:
        """The device of every node, by name."""
        return self.partition.assignment

    @property
    def reasons(self) -> Mapping[str, str]:
        """The reason for the device of every node, by name."""
        return self.partition.reasons

    @property
    def subgraphs(self) -> tuple[Subgraph, ...]:
        """The subgraphs, in a topological order."""
        return self.partition.subgraphs

    @property
    def steps(self) -> tuple[Step, ...]:
        """The runs and transfers; empty while dimensions are symbolic."""
        return self.placement.steps if self.placement is not None else ()

    @cached_property
    def bodies(self) -> Mapping[str, Plan]:
        """The plans of graphs that run rows in batches, by the queue in which rows wait."""
        from ..planner.replanning import plan_bodies

        return plan_bodies(self)

    def for_shapes(self, shapes: Shapes, max_in_flight: int | None = None) -> Plan:
        """Return the plan for inputs of exactly these shapes, with memory of its own.

        `max_in_flight` defaults to that of this plan. Shapes that depend on values are still
        unknown: see `sync_points`.

        Raises
        ------
        FeedError
            If a shape does not fit its input.
        ShapeError
            If shapes do not fit together inside the graph.
        """
        from ..planner.replanning import replan_for_shapes

        return replan_for_shapes(self, shapes, max_in_flight)

    def fetching(self, *fetches: Fetches) -> Plan:
        """Return the plan that computes some tensors of the graph, with only the nodes they need.

        They are named as in ``fetches`` of `Session.run`: alone, or in lists, tuples and mappings.
        All tensors of the graph that was planned can be named, even if passes removed them; for a
        plan from a file, only those that passes left. If all nodes are needed, it is the same plan.

        Raises
        ------
        FetchError
            If there is no such tensor, or no tensor is named.
        PlanError, DeviceError
            As `plait.plan`.
        """
        from ..planner.replanning import plan_fetching

        return plan_fetching(self, list_names(fetches))

    def replan(self, max_in_flight: int | None = None) -> Plan:
        """Return the plan of this graph and its bounds for `max_in_flight` items in flight."""
        from ..planner.replanning import replan

        return replan(self, max_in_flight)

    def report(self, *, nodes: bool = False) -> str:
        """Return the plan as text: subgraphs, transfers, memory and reasons.

        With `nodes`, every node is listed with its device and the reason for it.
        """
        from ..reports.report import report

        return report(self, nodes=nodes)

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as plain values, for JSON."""
        from ..reports.plain import to_dict

        return to_dict(self)

    def to_json(self) -> str:
        """Return the plan as JSON, in the form that docs/plans.md describes."""
        from ..reports.plain import to_json

        return to_json(self)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the plan to file `path`, which `plait.load_plan` reads without planning again.

        An existing file is replaced atomically.

        Raises
        ------
        PlanError
            If the plan was made with user-defined passes.
        GraphError
            If something in the graph cannot be written, or the file cannot.
        """
        from ..reports.plan_file import save_plan

        save_plan(self, path)

    def save_html(
        self,
        path: str | os.PathLike[str],
        *,
        profile: Profile | None = None,
        simulation: Simulation | None = None,
    ) -> None:
        """Write a report for a browser to `path`: graph, predicted timeline, memory and reasons.

        The report is one file and needs no network. With a `profile`, it shows measured times
        beside the predictions; a `simulation` replaces the predictions for the plan's own devices.

        Raises
        ------
        PlanError
            If the file cannot be written.
        """
        from ..reports.html import write_html

        write_html(path, self, profile, simulation)

    def _repr_html_(self) -> str:
        from ..reports.html import render_frame

        return render_frame(self)

    @staticmethod
    def load(path: str | os.PathLike[str], devices: Iterable[Device] = ()) -> Plan:
        """Read a plan from `path`, for other `devices` if given, as `plait.load_plan` does."""
        from ..reports.plan_file import load_plan

        return load_plan(path, devices)

    def __str__(self) -> str:
        return self.report()


def join_prologue(prologue: Graph, rest: Graph) -> Graph:
    """Return the graph before the split: nodes of `prologue`, which run once, then the `rest`."""
    return replace(
        rest,
        nodes=(*prologue.nodes, *rest.nodes),
        tensors={**prologue.tensors, **rest.tensors},
        constants={**prologue.constants, **rest.constants},
        precisions={**prologue.precisions, **rest.precisions},
        prepared=rest.prepared - set(prologue.outputs),
    )
