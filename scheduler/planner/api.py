"""The function that plans, from what users ask for to the plan they get."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

from ...devices.device import Device
from ...graph.check import check
from ...graph.ir import Graph
from ...graph.passes import PASSES, Pass, dead_nodes, selected
from ...graph.randomness import with_random_key
from ..costs import Costs
from ..plans.io_devices import On
from ..plans.plan import Plan
from ..plans.request import Objective, Pins, PlanRequest, Strategy
from ..plans.shapes import NO_BOUNDS, Shapes
from ..shapes.bounds import all_bounds, check_not_fixed
from ..shapes.function_results import check_results
from ..shapes.specialise import specialised
from .mixed_precision import Precision
from .planner import plan_within
from .request import check_arguments, make_request
from .scaling_out import replicate_where_faster


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Keep Python's collector of cycles from going over a plan again and again as it grows.

    That takes a fifth of the time for 10,000 nodes, and finds nothing: planning makes no cycles.
    Not so where sessions plan for shapes that they meet: the setting is the whole process's, and
    they plan beside items, of which cycles may be left over.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@_collector_paused()
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
        and ``"cpu"`` become ranges where a stream is predicted to be faster so; Python functions
        may then run for two items at once. ``"cpu:0"``, or a pin, forbids that.
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
        has so few subgraphs, or nothing tells how long what a Python function returns may be.
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
    graph, chosen = with_random_key(check(graph)), selected(passes)
    request, replicas = make_request(
        graph,
        devices,
        chosen,
        pin=pin,
        max_in_flight=max_in_flight,
        strategy=strategy,
        objective=objective,
        costs=costs,
        max_subgraphs=max_subgraphs,
        memory_limits=memory_limits,
        inputs_on=inputs_on,
        outputs_on=outputs_on,
        precision=precision,
    )
    part, folded = specialised(graph, shapes, chosen)
    check_not_fixed(graph, part, bounds)
    lengths = NO_BOUNDS if bounds is None else all_bounds(part, bounds)
    check_results(part, lengths)

    def make(request: PlanRequest) -> Plan:
        made = plan_within(part, lengths, request, chosen)
        applied, dead = (*folded, *made.applied), dead_nodes(graph)
        return replace(made, replicas=replicas, applied=applied, source=graph, dead=dead)

    made = replicate_where_faster(make(request), make)
    _ = made.bodies  # what is wrong there is said now
    return made
