"""The function `plan`, from a user's arguments to the plan."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from inspect import signature
from typing import Never

from ...devices.automatic import AUTO
from ...devices.device import Device
from ...graph.core.check import check
from ...graph.core.ir import Graph
from ...graph.operators.each import iterate_bodies
from ...graph.passes import PASSES, select_passes
from ...graph.passes.pipeline import Pass
from ...graph.passes.randomness import with_random_key
from ...graph.passes.unneeded import dead_nodes
from ...lazily import pause_collector
from ..costs import Costs
from ..errors import make_keyword_error
from ..plans.plan import NO_BOUNDS, Plan, Shapes
from ..plans.request import Commitment, Objective, On, Pins, PlanRequest, Strategy
from ..shapes.bounds import check_not_fixed, check_results, resolve_bounds
from ..shapes.specialise import specialise_with_passes
from .mixed_precision import Precision
from .planner import plan_within
from .prepare import simplify
from .request import check_arguments, make_request
from .scaling_out import replicate_where_faster


@pause_collector()
def plan(
    graph: Graph | str | os.PathLike[str],
    devices: str | Device | Iterable[str | Device] = AUTO,
    *,
    pin: Pins | None = None,
    shapes: Shapes | None = None,
    bounds: Mapping[str, int | tuple[int, int]] | None = None,
    max_in_flight: int = 1,
    passes: Sequence[Pass | str] | None = None,
    strategy: Strategy = "auto",
    objective: Objective = "latency",
    costs: Costs | str | os.PathLike[str] | None = None,
    max_subgraphs: int | None = None,
    memory_limits: Mapping[str, int] | None = None,
    inputs_on: On = None,
    outputs_on: On = None,
    precision: Precision = None,
    commit: Commitment = "step",
    **unknown: Never,
) -> Plan:
    """Assign nodes to devices and tensors to memory.

    Parameters
    ----------
    graph : Graph or path
        A graph, or the file of a model, as `load` reads it.
    devices : str, Device, or iterable of them, default "auto"
        In order of preference, which decides where costs do not. ``"auto"`` stands for all that are
        installed and compute here: CUDA devices, ``"ort"``, or ``"compiled"`` without ONNX Runtime,
        and ``"cpu"``; the environment's ``PLAIT_DEVICES`` lists others, by commas. Sessions then
        measure ``"openvino"`` on real items, and later plans use it where it was faster;
        ``"frozen"`` does so without measuring more. ``"exact"`` is ``"cpu"``, numpy alone, whose
        results differ least between machines. A range,
        ``"worker:0..3"``, stands for replicas: the plan for the first device runs on all of them,
        each item on one. ``"ort"`` and ``"cpu"`` become ranges if a stream is predicted to gain;
        Python functions may then run for two items at once. ``"cpu:0"``, or a pin, prevents that.
    pin : Mapping of str to str, optional
        Node name, or pattern such as ``"encoder.*"``, to device name. A name takes precedence over
        patterns, and the first matching pattern over the others.
    shapes : Mapping of str to sequence of int, optional
        Shapes of the inputs. By default, symbolic dimensions stay symbolic, and sessions plan for
        each combination of shapes that they are fed.
    bounds : Mapping of str to int, or to (int, int), optional
        For each symbol in the shapes of inputs the largest length, or the smallest and the largest;
        the smallest is 1 by default. The plan is made for the largest shapes, and sessions run all
        other shapes within bounds in its memory, without planning or allocating. Computed lengths
        may have bounds too, from 0 on, by the names in the plan's report: the nodes after them are
        planned once, for all lengths.
    max_in_flight : int, default 1
        The number of items for which memory is planned; replicas have equal shares, rounded up.
    passes : sequence of callable or str, optional
        Functions that simplify the graph first, or names of plait's own passes, all by default:
        ``["-fold_scale"]`` means all of these except one. Passes may change how floats are rounded;
        ``()`` leaves every node as it is.
    strategy : {"auto", "preference", "tengine"}, default "auto"
        ``"auto"`` compares many partitions by their predicted times, and never takes one that is
        slower than the best device alone. ``"preference"`` gives each node to the first device that
        supports it, as ``"auto"`` does while shapes are unknown. ``"tengine"`` is Tengine's rule,
        for comparison.
    objective : {"latency", "throughput"}, default "latency"
        What ``"auto"`` minimizes: the time of one item, or the time per item of a stream with
        `max_in_flight` items in flight.
    costs : Costs or path, optional
        Measured times, which take precedence over the built-in models of the devices.
    max_subgraphs : int, optional
        The largest number of subgraphs.
    memory_limits : Mapping of str to int, optional
        Bytes that a device, or a memory, may use, constants included.
    inputs_on, outputs_on : str, or Mapping of str to str, optional
        The device on which callers pass inputs, or take outputs: for all of them, or by name.
        Arrays of other libraries are read in place there, and results are arrays of the device. All
        other inputs and outputs are on the host.
    precision : str, or Mapping of str to str, optional
        ``"float16"``: products, and the nodes after them as far as that is safe, compute in
        float16, on all devices or on the named ones. Feeds and fetched tensors keep their dtypes.
    commit : {"step", "item"}, default "step"
        When the next item gets the value of an assigned variable, where several are in flight:
        after the step that computes it, while all else of the items overlaps, or after the whole
        item, so that items run one at a time.

    Raises
    ------
    PlanError
        If a pin names an unknown node or device, an argument is invalid, no partition has so few
        subgraphs, or the largest length of a Python function's result is unknown.
    UnsupportedOpError
        If no device supports some nodes; the message lists all of them.
    DoesNotFitError
        If a device has too little memory.
    ParseError
        If the costs file is damaged.
    DeviceUnavailableError
        If this machine lacks one of the devices.
    FeedError, ShapeError
        If the shapes do not fit.

    Examples
    --------
    Each item goes to a free worker; a stream restores the order:

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
    if unknown:
        raise make_keyword_error(unknown, "plan", [*signature(plan).parameters][1:-1])
    passes = PASSES if passes is None else passes
    if isinstance(graph, str | os.PathLike):
        from ...graph.formats.graphs import load  # heavy, and planning a graph does without

        graph = load(graph)
    check_arguments(graph, pin, shapes, max_in_flight, passes)
    source, chosen = with_random_key(check(graph)), select_passes(passes)
    request, replicas = make_request(
        source,
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
        commit=commit,
    )
    part, folded = specialise_with_passes(source, shapes, chosen)
    lengths = NO_BOUNDS
    if bounds is not None:
        check_not_fixed(source, part, bounds)
        lengths = resolve_bounds(part, bounds, source)
    part, simplified, lengths = simplify(part, request, chosen, lengths)
    if any(node.operator.function is not None for node in part.nodes):
        check_results(part, lengths)

    def make(request: PlanRequest) -> Plan:
        made = plan_within(part, lengths, request, ())
        return replace(
            made,
            passes=chosen,
            replicas=replicas,
            applied=(*folded, *simplified, *made.applied),
            source=source,
            dead=dead_nodes(source),
        )

    made = make(request)
    if request.max_in_flight > 1:
        made = replicate_where_faster(made, make)
    if any(iterate_bodies(source)):
        _ = made.bodies  # reports errors of bodies now
    return made
