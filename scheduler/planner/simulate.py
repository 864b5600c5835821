"""Predicts times, memory and bottlenecks of a plan, without running anything."""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path

from ...graph.core.infer import describe
from ...graph.core.ir import Node
from ...graph.operators.bounded_call import get_called_op
from ...graph.operators.control import waits
from ...graph.operators.each import EACH
from ...graph.operators.fused import FUSED
from ...graph.values.errors import Fix
from ..costs import Costs
from ..dispatch.core_shares import outline_steps
from ..errors import PlanError
from ..plans.placement import Outline, Step, Transfer
from ..plans.plan import Plan
from ..plans.regions import MemoryPlan
from ..plans.variants import make_variant
from ..profile import PlanTimes, Profile, Record
from ..profile.records import RowBatch, RowBatchFigures, rename_steps
from ..profile.timestamps import Timestamps
from ..shapes.bounds import (
    Template,
    find_fed_bounds,
    find_plan_constraints,
    pick_largest,
    suggest_shapes,
)
from ..simulation.engine import run
from ..simulation.lanes import combine_works, describe_host, make_work, merge_lanes
from ..simulation.models import ModelSource, read_models
from ..simulation.simulation import Simulation
from ..simulation.workload import RowCall, RowWork, SimulatedHost, Timeline, Workload
from .bounded_shapes import BoundedShapes
from .joined_stages import join_plan
from .memory.memory_plan import plan_memory
from .placement import place
from .request import check_in_flight

MOST_STEPS = 5_000_000
"""Simulations of more steps would take minutes and gigabytes."""

LATEST_NS = 1 << 62
"""The latest time in a profile of 64-bit integers, with some room."""

YEAR_S = 365 * 24 * 3600

BEGINNING_NS = 1
"""The first time in a profile, in which 0 marks events that did not happen."""


def simulate(
    plan: Plan,
    devices: Mapping[str, ModelSource] | None = None,
    *,
    items: int = 1,
    max_in_flight: int | None = None,
    costs: Costs | str | Path | None = None,
    faster: Mapping[str, float] | None = None,
    host: SimulatedHost | None = None,
    keys: int | Sequence[Hashable] | None = None,
) -> Simulation:
    """Predict the run of a stream of items through a plan.

    The code that runs plans also decides the order of events here, on a clock that jumps from one
    event to the next; only the durations come from a model or from measurements.

    Parameters
    ----------
    plan : Plan
        With known shapes, or with bounds of all lengths, including those that functions compute on
        devices of this process; the prediction is then for the largest lengths.
    devices : Mapping of str to DeviceModel or path, optional
        What if: other hardware for a device of the plan, or for a range of replicas; a path names a
        JSON file of a model.
    items : int, default 1
        The number of items; all of them are available at the start.
    max_in_flight : int, optional
        The number of items in flight, on all replicas together; memory is planned again if it
        differs from the plan's.
    costs : Costs or path, optional
        Measured times, which take precedence over the plan's costs.
    faster : Mapping of str to float, optional
        What if: by how many times operators, nodes, steps (as reports name them) or all nodes that
        match a pattern such as ``"net/*"`` become faster.
    host : SimulatedHost, optional
        The cores that devices share, and the costs of the scheduler itself; this machine's by
        default. ``SimulatedHost()`` costs nothing.
    keys : int or sequence, optional
        The number of keys in turn, or the key of each item, for streams with a state for each key.

    Returns
    -------
    Simulation

    Raises
    ------
    PlanError
        If the plan's shapes are not known, or an argument is invalid.
    DoesNotFitError
        If that many items do not fit into a memory.
    ParseError
        If a file does not hold a model, or costs.

    Examples
    --------
    >>> import plait as pl
    >>> builder = pl.GraphBuilder("doubled")
    >>> x = builder.input("x", "float32", (1000,))
    >>> builder.output("y", builder.op("Add", x, x))
    >>> plan = pl.plan(builder.build())
    >>> once = pl.simulate(plan)
    >>> pl.simulate(plan, faster={"Add": 2}).makespan_s < once.makespan_s
    True
    """
    given, plan = plan, _check(plan, devices, items, max_in_flight, faster)
    of_items = _list_keys(keys, items)
    count = plan.in_flight if max_in_flight is None else max_in_flight
    # Memory is planned for each variant, which has its share of the items.
    plan = plan_items_in_flight(plan, -(-count // plan.variants))
    assert plan.memory is not None
    priced = _make_costs(plan, devices or {}, costs, faster or {})
    with_costs = replace(plan, request=replace(plan.request, costs=priced))
    variants = [make_variant(with_costs, index) for index in range(plan.variants)]
    bodies = make_priced_bodies(given, priced)
    work, rows = with_rows(variants, bodies)
    host = host or describe_host(plan.graph, priced, plan.ends, one_by_one=count == 1)
    regions = plan.memory.regions
    timeline = run(
        work, items=items, max_in_flight=count, regions=regions, host=host, rows=rows, keys=of_items
    )
    # Times are 64-bit numbers of nanoseconds in records.
    if max(timeline.landed) > LATEST_NS:
        raise PlanError(
            f"by these costs it would take {timeline.makespan_s / YEAR_S:,.0f} years",
            fix="correct the models of the devices, or simulate fewer items",
        )
    profile = _profile(variants, bodies, timeline)
    every = tuple(variants)
    return Simulation(plan, priced, work, host, timeline, profile, count, every, bodies, of_items)


def _check(
    plan: Plan,
    devices: Mapping[str, ModelSource] | None,
    items: int,
    max_in_flight: int | None,
    faster: Mapping[str, float] | None,
) -> Plan:
    if not isinstance(plan, Plan):
        raise PlanError(
            f"expected a plan, got {type(plan).__name__}", fix="simulate what plan() returned"
        )
    if not isinstance(items, int) or items < 1:
        raise PlanError(f"items is {items!r}", fix="use a whole number, 1 or more")
    if max_in_flight is not None:
        check_in_flight(max_in_flight)
    plan = with_known_shapes(plan, max_in_flight)
    if items * max(len(plan.steps), 1) > MOST_STEPS:
        raise PlanError(
            f"{items:,} items of {len(plan.steps):,} steps are too many to simulate",
            fix=f"simulate {MOST_STEPS // max(len(plan.steps), 1):,} items or fewer",
        )
    for what, values in (("devices", devices), ("faster", faster)):
        if not isinstance(values, Mapping | None):
            raise PlanError(f"{what} is {values!r}", fix="map names to models, or to factors")
    for name in devices or {}:
        if name not in plan.device_names:
            raise PlanError(
                f"the plan has no device {name!r}", fix=f"it has: {', '.join(plan.device_names)}"
            )
    return plan


def _list_keys(keys: int | Sequence[Hashable] | None, items: int) -> tuple[Hashable, ...]:
    if isinstance(keys, int) and keys >= 1:
        return tuple(item % keys for item in range(items))
    if keys is None:
        return ()
    if not isinstance(keys, list | tuple) or len(keys) != items:
        raise PlanError(
            f"keys is {keys!r:.60}", fix=f"pass the number of keys, or a list of {items} keys"
        )
    if odd := [key for key in keys if not isinstance(key, Hashable)]:
        raise PlanError(f"a key is a {type(odd[0]).__name__}", fix="use text, numbers or tuples")
    return tuple(keys)


def with_known_shapes(plan: Plan, max_in_flight: int | None = None) -> Plan:
    """Return `plan` for the largest lengths that Python functions compute.

    `max_in_flight` defaults to that of `plan`. Raises PlanError if lengths remain unbounded, or are
    not known in this process.
    """
    if plan.is_static:
        return plan
    count = plan.in_flight if max_in_flight is None else max_in_flight
    joined = join_plan(plan, -(-count // plan.variants))
    if joined is None:
        raise _unknown_shapes_error(plan)
    return joined


def _unknown_shapes_error(plan: Plan) -> PlanError:
    graph, bounds = plan.graph, find_fed_bounds(plan.graph, plan.computed)
    if bounds is None:
        unfixed = [name for name in graph.inputs if not graph.tensors[name].is_static]
        return PlanError(
            "the plan's shapes are not all known, so nothing is known of times and memory",
            at=", ".join(f"input {name!r}: {graph.tensors[name]}" for name in unfixed),
            fix=Fix("plan for the shapes of inputs: ", suggest_shapes(graph, *unfixed)),
        )
    if bounds:
        # Dimensions unknown at the largest lengths are those that values decide: name these.
        template = Template(graph, plan.prototypes, plan.pins, plan.folds)
        graph = template.picked(pick_largest(bounds))
    node = next(
        node
        for node in graph.nodes
        if waits(node)
        or node.operator.bounded is not None
        or not all(spec.is_static for spec in graph.output_specs(node))
    )
    return PlanError(
        f"values decide what {node.name!r} yields, so nothing is known of times and memory "
        "before the run",
        at=describe(node, graph.call(node)),
        fix="measure it: Session.profile(), or plait profile; bounds of computed lengths help for "
        "Python functions on devices of this process alone. What comes before can be predicted "
        "alone: plan.fetching(...), or --fetch",
    )


def plan_items_in_flight(plan: Plan, count: int | None) -> Plan:
    if count is None or count == plan.max_in_flight:
        return plan
    request = replace(plan.request, max_in_flight=count)
    if not plan.is_static:
        return replace(plan, request=request)
    # Placed anew: the plan's waits are for the memory of another number of items.
    placement = place(plan.graph, plan.partition, plan.prototypes, plan.ends)
    memory = plan_memory(
        plan.graph,
        placement,
        plan.prototypes,
        count,
        limits=plan.request.memory_limits,
        costs=plan.costs,
        constraints=find_plan_constraints(plan),
    )
    if memory.added_edges:
        placement = placement.with_waits(memory.added_edges)
    return replace(plan, request=request, placement=placement, memory=memory)


def _make_costs(
    plan: Plan,
    devices: Mapping[str, ModelSource],
    costs: Costs | str | Path | None,
    faster: Mapping[str, float],
) -> Costs:
    priced = plan.costs
    if costs is not None:
        priced = priced.merged(costs if isinstance(costs, Costs) else Costs.load(costs))
    if devices:
        # Users name ranges; costs know a range by its first device.
        first = dict(zip(plan.device_names, plan.devices, strict=True))
        models = read_models(devices)
        priced = priced.with_models({first[name]: model for name, model in models.items()})
    for name, factor in name_nodes(plan, faster).items():
        if not isinstance(factor, int | float) or not 0 < factor < math.inf:
            raise PlanError(
                f"{name!r} is to be {factor!r} times as fast", fix="use a number above 0"
            )
        # Last: a factor applies to the final costs.
        priced = priced.scaled(name, 1 / factor)
    return priced


def name_nodes(plan: Plan, faster: Mapping[str, float]) -> dict[str, float]:
    """Return `faster` with the nodes of steps, and those that match patterns, by their names."""
    operators = {get_called_op(node) for node in plan.graph.nodes}
    known = operators | {node.name for node in plan.graph.nodes}
    plans = {"": plan, **{f"{queue}/": body for queue, body in plan.bodies.items()}}
    steps = {f"{where}{one.name}": one for where in plans for one in plans[where].subgraphs}
    found: dict[str, float] = {}
    for name, factor in faster.items():
        nodes = steps[name].graph.nodes if name in steps else plan.graph.nodes
        every = dict.fromkeys(one.name for node in nodes for one in (node, *_list_members(node)))
        fits = [one for one in every if name in steps or fnmatchcase(one, str(name))]
        if name not in known and not fits:
            raise PlanError(
                f"the plan has no operator, node or step {name!r}",
                fix=f"its steps: {', '.join(steps)}; its operators: {', '.join(sorted(operators))}",
            )
        found.update(dict.fromkeys([name] if name in known else fits, factor))
    return found


def _list_members(node: Node) -> Sequence[Node]:
    return node.attributes["body"].nodes if node.op == FUSED else ()


def _profile(
    variants: Sequence[Plan], bodies: Mapping[str, Sequence[Plan]], timeline: Timeline
) -> Profile:
    known = [(outline_steps(plan), plan.memory) for plan in variants]
    of_rows = {
        queue: [(rename_steps(outline_steps(plan), queue), plan.memory) for plan in plans]
        for queue, plans in bodies.items()
    }
    records = [_record(timeline, item, known) for item in range(timeline.items)]
    batches, figures = [], dict[str, RowBatchFigures]()
    for number, batch in enumerate(timeline.batches, timeline.items):
        record = _record(timeline, number, of_rows[batch.queue])
        first, started, ended = (
            ns + BEGINNING_NS for ns in (batch.first_ns, batch.started_ns, timeline.landed[number])
        )
        batches.append(RowBatch(batch.queue, batch.rows, first, started, ended, record))
        one = figures.get(batch.queue, RowBatchFigures())
        figures[batch.queue] = RowBatchFigures(
            one.batches + 1, one.rows + batch.rows, one.waited_s + batch.waited_ns / 1e9
        )
    return Profile(tuple(records), (), batches=tuple(batches), row_batches=figures)


def _record(
    timeline: Timeline, number: int, known: Sequence[tuple[tuple[Outline, ...], MemoryPlan | None]]
) -> Record:
    times, base = array("q"), timeline.base(number)
    steps, memory = known[timeline.variant[number]]
    assert memory is not None, "its shapes are known"
    for entry in range(base, base + len(steps)):
        # Not from 0 on, which marks missing times.
        times.append(timeline.ready[entry] + BEGINNING_NS)
        times.append(timeline.started[entry] + BEGINNING_NS)
        times.append(timeline.ended[entry] + BEGINNING_NS)
    admitted, landed = timeline.admitted[number], timeline.landed[number]
    marks = Timestamps(admitted_ns=admitted + BEGINNING_NS, landed_ns=landed + BEGINNING_NS)
    return Record((PlanTimes(steps, times, memory.pools),), marks, False)


def with_rows(
    variants: Sequence[Plan], bodies: Mapping[str, Sequence[Plan]]
) -> tuple[Workload, dict[str, RowWork]]:
    """Return the work on lanes of all `variants`, and that of batches by queue.

    `bodies` are the plans of full batches by queue, one for each variant.
    """
    works = [make_work(one) for plans in (variants, *bodies.values()) for one in plans]
    # Batches and items compete for the same lanes.
    lanes = merge_lanes(works)

    def on_lanes(plans: Sequence[Plan]) -> Workload:
        work = combine_works([make_work(one) for one in plans], lanes)
        return replace(work, calls=_collect_calls(plans[0].steps, bodies))

    def row_work(plans: Sequence[Plan]) -> RowWork:
        size, fitted = _fit_rows(plans)
        memory = plans[0].memory
        assert memory is not None, "it is planned for a full batch"
        # Cached: there are few sizes and many batches, and fitting shapes is slow.
        at = cache(lambda rows: on_lanes(fitted(rows)))
        return RowWork(size, plans[0].max_in_flight, on_lanes(plans), at, memory.regions)

    return on_lanes(variants), {queue: row_work(plans) for queue, plans in bodies.items()}


def make_priced_bodies(plan: Plan, costs: Costs) -> dict[str, list[Plan]]:
    found = {}
    for queue, body in plan.bodies.items():
        if body.is_static:
            priced = replace(body, request=replace(body.request, costs=costs))
            found[queue] = [make_variant(priced, index) for index in range(body.variants)]
    return found


def _collect_calls(steps: Sequence[Step], queues: Mapping[str, object]) -> dict[int, RowCall]:
    found = {}
    for step in steps:
        if step.awaited is None or isinstance(step.work, Transfer):
            continue
        (node,) = step.work.graph.nodes  # awaited nodes are subgraphs of their own
        if node.op == EACH and (queue := node.attributes["queue"]) in queues:
            rows = step.work.graph.tensors[node.inputs[0]].static_shape[0]
            found[step.index] = RowCall(queue, rows, node.attributes["max_delay_s"])
    return found


def _fit_rows(plans: Sequence[Plan]) -> tuple[int, Callable[[int], Sequence[Plan]]]:
    first = plans[0]
    template = first.template
    if template is None:  # a row at a time, of known shapes
        return 1, lambda _: plans
    rows = str((template.tensors[template.inputs[0]].shape or ())[0])
    longest = {symbol: most for symbol, (_, most) in first.bounds.items()}
    fits = [BoundedShapes(one) for one in plans]

    def fitted(count: int) -> Sequence[Plan]:
        lengths = {**longest, rows: count}
        shapes = {
            name: tuple(
                lengths[dim] if isinstance(dim, str) else dim
                for dim in template.tensors[name].shape or ()
            )
            for name in template.inputs
        }
        return [fit.fit(shapes) or plan for fit, plan in zip(fits, plans, strict=True)]

    return longest[rows], fitted


MOST_PREDICTED = 100_000
"""Steps of a stream: longer ones are not simulated, since reports and plans have to be quick."""

ROUNDS = 4
"""Length of the simulated stream, in multiples of the items in flight."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """Predicted times of a plan."""

    seconds: float
    """Time of one item."""
    items_per_s: float
    """Rate of a stream with `plan.in_flight` items in flight."""


def predict(plan: Plan, costs: Costs | None = None) -> Prediction | None:
    """Simulate `plan`, by default with its own costs; return None while shapes are open."""
    if not plan.is_static:
        return None
    seconds, items = simulate(plan, costs=costs).makespan_s, ROUNDS * plan.in_flight
    if plan.in_flight == 1 or items * len(plan.steps) > MOST_PREDICTED:
        return Prediction(seconds, 1 / seconds if seconds else 0.0)
    return Prediction(seconds, simulate(plan, items=items, costs=costs).items_per_s)
