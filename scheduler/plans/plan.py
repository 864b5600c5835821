"""The plan: everything decided before the first run, in one frozen value.

A graph with symbolic dimensions is partitioned as it is; memories, transfers and offsets follow
when the shapes are known, by `Plan.for_shapes`, which a session calls for the shapes that it is
fed. With bounds, everything is decided for the largest shapes.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ...devices.device import Device
from ...graph.ir import Graph
from ...graph.item_order import explain_order, is_ordered
from ...graph.nested import all_nodes
from ...graph.passes import Applied, Pass, fold_constants
from ...graph.printing import bytes_text, counted
from ...graph.state import taken_back
from ...graph.tensor import TensorSpec
from ..costs import Costs
from .fetches import Fetches, names_in
from .partition import Decision, Partition, Subgraph
from .placement import Placement, Step
from .regions import MemoryPlan
from .replicas import Groups, as_range, every_device, find_functions, variants
from .request import IoDevices, Pins, PlanRequest
from .shapes import Bounds, Shapes
from .stages import PlanStage

if TYPE_CHECKING:
    from ..profile import Profile
    from ..simulation.simulation import Simulation


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
    """What made the graph simpler."""
    replicas: Groups = ()
    """The devices that the first of each group stands for: items take turns there."""
    has_automatic_replicas: bool = False
    """Whether planning chose the replicas, not the user."""
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
    stages: tuple[PlanStage, ...] = field(repr=False, default=())
    """What of `graph` is of which lengths, where some are known only when others have run."""
    applied: tuple[Applied, ...] = field(repr=False, compare=False, default=())
    """What the passes did, one after the other."""
    prologue: Plan | None = field(repr=False, default=None)
    """What is computed when it is opened, as a plan for one item; its outputs are prepared here."""
    source: Graph | None = field(repr=False, compare=False, default=None)
    """The graph as it was before all passes, where that is known."""
    dead: Mapping[str, str] = field(repr=False, compare=False, default_factory=dict)
    """The nodes of the caller's graph that no output needs, and why: they are dropped."""
    unneeded: frozenset[str] = frozenset()
    """Inputs that the plan was rid of by `fetching`; they may be fed all the same."""

    def __copy__(self) -> Plan:
        """Return the plan itself: it does not change."""
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Plan:
        """Return the plan itself."""
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        """Return its file, to be loaded by `plait.load_plan`, as any that was saved.

        Raises
        ------
        PlanError, GraphError
            As `save`.
        """
        from ..reports.plan_file import dump_plan, load_plan

        return load_plan, (dump_plan(self),)

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
        """True if all shapes, and with them all memory, are known."""
        return self.memory is not None

    @cached_property
    def fed(self) -> Graph:
        """The graph that was planned: with all its nodes, and with symbols if there are bounds.

        Variables are nodes in it.
        """
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
        return taken_back(
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
        """The rule by which nodes were assigned to devices.

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
        return fold_constants in self.passes

    @property
    def variants(self) -> int:
        """The number of device sets on which the plan runs at once: 1 without replicas."""
        return variants(self.replicas)

    @property
    def in_flight(self) -> int:
        """The number of items that memory has room for, on all variants together."""
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

    @cached_property
    def overlapping_functions(self) -> tuple[str, ...]:
        """The Python functions that may run for several items at once, as replicas call them.

        Not those that are declared to be ordered, or not to be.
        """
        firsts = {names[0] for names in self.replicas}
        found = {
            node.op: node.operator
            for path, _, node in all_nodes(self.graph)
            if self.assignment.get(path) in firsts
        }
        functions = find_functions(self.graph).keys() & found.keys()
        return tuple(
            name
            for name, operator in found.items()
            if name in functions and operator.ordered is None and not is_ordered(operator)
        )

    @cached_property
    def ordered_functions(self) -> Mapping[str, str]:
        """The Python functions that are called for one item after the other, and why."""
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
        """The plans of graphs whose rows run in batches, by the queue in which the rows wait."""
        from ..planner.replanning import plan_bodies

        return plan_bodies(self)

    def for_shapes(self, shapes: Shapes, max_in_flight: int | None = None) -> Plan:
        """Return the plan for inputs of exactly these shapes, with its own memory.

        Shapes that depend on values are still unknown in it: see `sync_points`.

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
        """Return the plan for some tensors of the graph: only the nodes and feeds that they need.

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
        from ..planner.replanning import fetching

        return fetching(self, names_in(fetches))

    def replan(self, max_in_flight: int | None = None) -> Plan:
        """Return the plan of the same graph and bounds, for another number of items in flight."""
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
        """Write the plan to a file, which `plait.load_plan` reads without planning again.

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
        """Write a report for a browser: graph, predicted timeline, memory, and reasons.

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
        """Return the page of `save_html`, for notebooks."""
        from ..reports.html import render_frame

        return render_frame(self)

    @staticmethod
    def load(path: str | os.PathLike[str], devices: Iterable[Device] = ()) -> Plan:
        """Return the plan in a file: the same as `plait.load_plan`."""
        from ..reports.plan_file import load_plan

        return load_plan(path, devices)

    def __str__(self) -> str:
        return self.report()


def join_prologue(prologue: Graph, rest: Graph) -> Graph:
    """Return the graph that was split, the nodes that run once first."""
    return replace(
        rest,
        nodes=(*prologue.nodes, *rest.nodes),
        tensors={**prologue.tensors, **rest.tensors},
        constants={**prologue.constants, **rest.constants},
        precisions={**prologue.precisions, **rest.precisions},
        prepared=rest.prepared - set(prologue.outputs),
    )
