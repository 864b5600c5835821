"""The function that plans: what users ask for, checked, and made a request."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain

from ...devices.device import Device
from ...graph.check import check
from ...graph.ir import Graph
from ...graph.passes import (
    PASSES,
    Pass,
    dead_nodes,
    expand_unsupported,
    fold_constants,
    fuse_chains,
    run_passes,
    selected,
)
from ...graph.randomness import with_random_key
from ..costs import Costs
from ..errors import PlanError
from ..plans.io_devices import On, checked_ends
from ..plans.pins import Pins, check_pins
from ..plans.plan import Plan
from ..plans.replicas import (
    as_named,
    check_in_turn,
    check_no_effects,
    grouped,
    shared_limits,
    variants,
    without_ranges,
)
from ..plans.request import Objective, PlanRequest, Strategy
from ..plans.shapes import NO_BOUNDS, Bounds, Shapes
from ..shapes.bounds import UndecidedError, all_bounds, check_not_fixed, computed_symbols
from ..shapes.specialise import specialised
from . import planner
from .arguments import check_arguments, check_request, costs_of, prototypes_of
from .memory.limits import limits_of
from .mixed_precision import Precision, checked_precision
from .partition.strategies import merging
from .scaling_out import replicate_where_faster


def plan(
    graph: Graph,
    devices: str | Device | Iterable[str | Device] = ("cpu",),
    *,
    pin: Pins | None = None,
    shapes: Shapes | None = None,
    bounds: Mapping[str, int | tuple[int, int]] | None = None,
    max_in_flight: int = 1,
    passes: Sequence[Pass | str] = PASSES,
    strategy: Strategy = "auto",
    objective: Objective = "latency",
    costs: Costs | str | os.PathLike[str] | None = None,
    max_subgraphs: int | None = None,
    memory_limits: Mapping[str, int] | None = None,
    inputs_on: On = None,
    outputs_on: On = None,
    precision: Precision = None,
) -> Plan:
    """Decide who runs what, in which memory.

    Parameters
    ----------
    graph : Graph
    devices : str, Device, or iterable of them, default ("cpu",)
        In order of preference, which decides where costs do not. A range, ``"worker:0..3"``, stands
        for replicas: what is planned for the first runs on all, each item on one of them. ``"ort"``
        may become a range where it has all nodes and a stream is predicted to be faster so.
    pin : Mapping of str to str, optional
        Node name, or pattern such as ``"encoder.*"``, to device name. A name wins over patterns,
        and of patterns the first that matches.
    shapes : Mapping of str to sequence of int, optional
        Shapes of the inputs. Left out, dimensions that are symbolic stay so, and sessions plan for
        each combination of shapes that they are fed.
    bounds : Mapping of str to int, or to (int, int), optional
        For each symbol in the shapes of inputs the largest length, or the smallest and the largest;
        the smallest is 1 if it is left out. The plan is made for the largest shapes, and in its
        memory sessions run what else is fed within bounds, without planning or allocating. Lengths
        that are computed may have bounds, too, from 0 on, by the names in the plan's report: what
        comes after is planned once, for all of them.
    max_in_flight : int, default 1
        For how many items at once memory is planned; replicas have equal shares, rounded up.
    passes : sequence of callable or str, default `plait.graph.passes.PASSES`
        What makes the graph simpler first, functions or names of plait's own: ``["-fold_scale"]``
        is all of them but one. Floats differ by rounding; ``()`` leaves every node as it is.
    strategy : {"auto", "preference", "tengine"}, default "auto"
        ``"auto"`` weighs many ways to share out the nodes by what they are predicted to take, and
        never takes one that is slower than the best device alone. ``"preference"`` gives each node
        to the first device that supports it, as ``"auto"`` does while shapes are unknown.
        ``"tengine"`` is Tengine's rule, for comparison.
    objective : {"latency", "throughput"}, default "latency"
        What ``"auto"`` makes short: the time of one item, or the time per item of a stream with
        `max_in_flight` of them under way.
    costs : Costs or path, optional
        Measured times, in front of the built-in models of the devices.
    max_subgraphs : int, optional
        Into how many subgraphs the graph may be cut at most.
    memory_limits : Mapping of str to int, optional
        Bytes that a device, or a memory, may take, constants included.
    inputs_on, outputs_on : str, or Mapping of str to str, optional
        The device on which callers hand over inputs, or take outputs: for all of them, or by name.
        Arrays of other libraries are read there where they lie, and results are arrays of the
        device; the others are on the host.
    precision : str, or Mapping of str to str, optional
        ``"float16"``: products, and what follows them as far as it is safe, compute in float16, on
        all devices or on those that are named. What is fed and fetched stays as it is.

    Raises
    ------
    PlanError
        If a pin names an unknown node or device, or an argument makes no sense, or no partition
        has so few subgraphs.
    UnsupportedOpError
        If nodes find no device; the message lists all of them.
    DoesNotFitError
        If a device has too little memory.
    ParseError
        If the file of costs is damaged.
    DeviceUnavailableError
        If this machine lacks one of the devices.
    FeedError, ShapeError
        If the shapes do not fit.

    Examples
    --------
    Items go to the workers in turn, whichever is free; a stream restores their order:

    >>> import plait as pl
    >>> b = pl.GraphBuilder("twice")
    >>> x = b.input("x", "float32", (4,))
    >>> h = b.op("Add", x, x, name="heavy/add")
    >>> b.output("y", b.op("Relu", h, name="relu"))
    >>> pins = {"heavy/*": "worker:0..3", "relu": "cpu"}
    >>> made = pl.plan(b.build(), ["cpu", "worker:0..3"], pin=pins, max_in_flight=8)
    >>> made.variants, made.max_in_flight
    (4, 2)
    """
    check_arguments(graph, pin, shapes, max_in_flight, passes)
    graph = with_random_key(check(graph))
    chosen = selected(passes)
    listed, replicas = grouped(devices)
    prototypes, given = prototypes_of(listed)
    pins = without_ranges(pin or {}, replicas)
    check_pins(graph, as_named(prototypes, replicas), pins)
    if not isinstance(memory_limits, Mapping | None):
        raise PlanError(
            f"memory_limits is {memory_limits!r}", fix="map devices or memories to bytes"
        )
    limits = dict(memory_limits or {})
    limits_of(limits, prototypes)  # raises now if one names nothing
    if max_in_flight > 1 or replicas:
        check_in_turn(graph)
    if replicas:
        check_no_effects(graph)
        limits = shared_limits(limits, prototypes, replicas)
    in_turn = frozenset(chain.from_iterable(replicas))
    request = PlanRequest(
        devices=prototypes,
        given=given,
        pins=pins,
        max_in_flight=-(-max_in_flight // variants(replicas)),
        strategy=strategy,
        objective=objective,
        costs=costs_of(costs, prototypes),
        max_subgraphs=max_subgraphs,
        memory_limits=limits,
        ends=checked_ends(graph, inputs_on, outputs_on, prototypes, in_turn),
        precision=checked_precision(precision, prototypes, replicas),
        fuses_chains=fuse_chains in chosen,
        writes_out=expand_unsupported in chosen,
    )
    check_request(request)
    part, folded = specialised(graph, shapes, chosen)
    check_not_fixed(graph, part, bounds)
    checked = NO_BOUNDS if bounds is None else all_bounds(part, bounds)
    made = planned(part, checked, request, chosen)
    applied, dead = (*folded, *made.applied), dead_nodes(graph)
    made = replace(made, passes=chosen, replicas=replicas, applied=applied, source=graph, dead=dead)
    return replicate_where_faster(made)


def planned(
    graph: Graph,
    bounds: Bounds,
    request: PlanRequest,
    passes: tuple[Pass, ...],
) -> Plan:
    """Return the plan of a graph that passes make simpler, for all shapes within bounds if any.

    Where values decide lengths, each stage is planned for all lengths within bounds.
    """
    if bounds and computed_symbols(graph).keys().isdisjoint(bounds):
        template, applied = run_passes(graph, passes, merging(request))
        folds = fold_constants in passes
        with suppress(UndecidedError):
            made = planner.within(template, bounds, request, folds=folds)
            return replace(made, applied=(*applied, *made.applied))
    made = planner.decide(graph, request, passes)
    return replace(made, computed=bounds)
