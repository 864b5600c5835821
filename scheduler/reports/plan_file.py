"""Plans in files: the decisions, from which the rest is derived when a file is read.

A plan file is a container. Its header holds the length of the graph's header (u64), that header,
then records: requirements, fields of the plan, and subgraphs. Specs of nodes, placement, and with
bounds the graph of the largest shapes are derived again instead of read, and the memory plan is
verified. So a file that was damaged, by accident or on purpose, is refused.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import Any, TypeAlias, get_type_hints

from ...devices.device import Device, is_device
from ...graph.core.check import check
from ...graph.core.state import set_aside
from ...graph.formats.container import GRAPHS, PLANS, ConstantWriter, Data
from ...graph.formats.files import open_file, read_file, replace_file
from ...graph.formats.header import pack_header
from ...graph.formats.native import hash_graph, read_graph
from ...graph.formats.records import describe_layout, put_record, read_record
from ...graph.formats.scalars import ScalarReader, ScalarWriter
from ...graph.passes import OPTIONAL_PASSES, PASSES
from ...graph.passes.pipeline import Pass
from ...graph.values.errors import ParseError
from ...version import VERSION
from ..costs.costs import Costs
from ..costs.costs_file import decode, encode
from ..errors import PlanError
from ..plans.partition import Candidate, Decision, Option
from ..plans.plan import Plan
from ..plans.request import PassOptions, PlanRequest
from .requirements import (
    AGAIN,
    Requirements,
    check_devices,
    check_operators,
    collect_requirements,
    find_devices,
)
from .restore import (
    SavedSubgraph,
    add_prologue,
    restore_ends,
    restore_graph,
    restore_partition,
    restore_placement,
    restore_sections,
    verify_plan,
)

_LENGTH = struct.Struct("<Q")


def save_plan(plan: Plan, path: str | os.PathLike[str]) -> None:
    """Write `plan` to the file `path`, wholly or not at all.

    Raises PlanError if a pass is not one of plait's: files hold names of passes, not their code;
    GraphError if a value of the graph cannot be written, or the file cannot.
    """
    replace_file(path, _write_chunks(plan))


def dump_plan(plan: Plan) -> bytes:
    """Return `plan` as the bytes of a file; raises the errors of `save_plan`."""
    return b"".join(_write_chunks(plan))


def load_plan(path: str | os.PathLike[str] | bytes, devices: Iterable[Device] = ()) -> Plan:
    """Return the plan in a file that `Plan.save` wrote, without planning again.

    Parameters
    ----------
    path : str, path or bytes
        The file, which may be changed, replaced or deleted afterwards, or its content.
    devices : iterable of Device, optional
        Objects to run on instead of the registered devices of the same names.

    Raises
    ------
    ParseError
        If the file is missing, damaged or foreign, or if plait, a device or an operator differs
        from those that the plan was made for; the message names it.
    DeviceUnavailableError
        If this machine lacks one of the devices.
    DoesNotFitError
        If a device has too little memory here.
    PlanError
        If `devices` holds an object that is not a device.

    Examples
    --------
    >>> import tempfile, plait as pl
    >>> b = pl.GraphBuilder("double")
    >>> x = b.input("x", "float32", (4,))
    >>> b.output("y", b.op("Add", x, x))
    >>> plan = pl.plan(b.build())
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     plan.save(folder + "/double.plan")
    ...     pl.load_plan(folder + "/double.plan") == plan
    True
    """
    if not isinstance(path, str | os.PathLike | bytes):
        raise ParseError(
            f"expected a path, got {type(path).__name__}", fix="pass that of a saved plan"
        )
    listed = list(devices) if isinstance(devices, Iterable) else [devices]
    for device in listed:
        if not is_device(device):
            raise PlanError(
                f"{device!r} is not a device object",
                fix="pass objects; what the file names is found by its name",
            )
    given = {device.name: device for device in listed}
    data, at = (path, "bytes") if isinstance(path, bytes) else (read_file(path), os.fspath(path))
    plan = read_plan(data, at, given)
    _ = plan.bodies  # planned now, not when a session opens
    return plan


def is_saved_plan(path: str | os.PathLike[str] | bytes) -> bool:
    """Return whether `path`, a file or its content, starts like a plan; False if it is missing."""
    if isinstance(path, bytes):
        return PLANS.starts(path[: len(PLANS.magic)])
    try:
        with open_file(path) as file:
            return PLANS.starts(file.read(len(PLANS.magic)))
    except ParseError:
        return False


def read_plan(data: Data, at: str, given: Mapping[str, Device]) -> Plan:
    """Read the plan in `data`, from the file `at`. Devices in `given` replace those in the file."""
    if GRAPHS.starts(bytes(memoryview(data)[:8])):
        raise ParseError(
            "this is a graph, not a plan", at=at, fix="plan it: plait.plan(load(path))"
        )
    # The checksum holds after this line: later errors were written on purpose.
    header, blob = PLANS.unpack(data, at)
    graph_header, section = _split(header, at)
    reader = ScalarReader(section, at)
    wanted, values, asked, stored = reader.read(lambda: _read_records(reader, at))
    prototypes, objects = find_devices(wanted, given, at)
    # First of all checks: a missing device must not be reported as damage.
    check_devices(wanted, prototypes, at)
    fed = read_graph(graph_header, blob, at)
    check_operators(wanted, fed, at)
    fed = set_aside(fed, overlaps=asked["overlaps"] and asked["commit"] == "step")
    passes = read_passes(stored, at)
    bounds, once = values["bounds"], None
    if bounds:
        once, fed = restore_sections(fed, stored.prologue, at)
    graph = restore_graph(
        fed, bounds, prototypes, asked["pins"], at, folds=PassOptions.from_passes(passes).folds
    )
    if not bounds:
        once, graph = restore_sections(graph, stored.prologue, at)
    partition = restore_partition(
        graph, stored.assignment, stored.reasons, stored.groups, prototypes, at
    )
    asked["ends"] = ends = restore_ends(graph, asked["ends"], prototypes, at)
    placement = None
    if (memory := values["memory"]) is not None:
        placement = restore_placement(graph, partition, prototypes, ends, memory.added_edges, at)
    plan = Plan(
        graph=graph,
        template=fed if bounds else None,
        partition=partition,
        placement=placement,
        passes=passes,
        request=PlanRequest(
            devices=prototypes, given=objects, costs=read_costs(stored, at), **asked
        ),
        decision=read_decision(stored),
        **values,
    )
    return add_prologue(verify_plan(plan, at), once, stored.prologue, at)


def _write_chunks(plan: Plan) -> Iterator[bytes | memoryview]:
    if plan.source is not None:
        plan = replace(plan, origin=hash_graph(plan.source))
    graph = check(plan.fed)
    constants = ConstantWriter()
    graph_header = pack_header(graph, constants.stored)
    writer = ScalarWriter()
    # Another build may have other fields in these classes.
    writer.put(VERSION, hash_layout())
    put_record(writer, collect_requirements(graph, plan.prototypes))
    for name, kind in list_plan_fields().items():
        put_record(writer, getattr(plan, name), kind)
    for name, kind in list_request_fields().items():
        put_record(writer, getattr(plan.request, name), kind)
    put_record(writer, record_decisions(plan))
    section = b"".join(writer.parts)
    return constants.parts(PLANS.pack(_LENGTH.pack(len(graph_header)) + graph_header + section))


def _split(header: memoryview, at: str) -> tuple[memoryview, memoryview]:
    start = _LENGTH.size
    nbytes = _LENGTH.unpack_from(header)[0] if len(header) >= start else len(header)
    if nbytes > len(header) - start:
        raise ParseError(
            f"the header is damaged: a graph of {nbytes} bytes is not in it", at=at, fix=AGAIN
        )
    return header[start : start + nbytes], header[start + nbytes :]


def _check_version(reader: ScalarReader, at: str) -> None:
    version, written = reader.scalar(), reader.scalar()
    if version != VERSION:
        raise ParseError(
            f"the plan was made by plait {version}, this is {VERSION}", at=at, fix=AGAIN
        )
    if written != hash_layout():
        raise ParseError(f"the plan was made by another build of plait {VERSION}", at=at, fix=AGAIN)


def _read_records(
    reader: ScalarReader, at: str
) -> tuple[Requirements, dict[str, Any], dict[str, Any], Decided]:
    _check_version(reader, at)
    wanted = read_record(reader, Requirements)
    values = {name: read_record(reader, kind) for name, kind in list_plan_fields().items()}
    asked = {name: read_record(reader, kind) for name, kind in list_request_fields().items()}
    return wanted, values, asked, read_record(reader, Decided)


_NO_RECORDS = frozenset(
    {
        "graph",
        "request",
        "partition",
        "placement",
        "passes",
        "decision",
        "template",
        "prologue",
        "source",
        "stages",
    }
)
"""Fields of `Plan` that `Decided` or the requirements replace."""

_FOLLOWING = frozenset({"devices", "given", "costs", "options", "apart", "names"})
"""Fields of `PlanRequest` that follow from the requirements and from other fields."""

Options: TypeAlias = Mapping[str, tuple[Option, ...]]


@dataclass(frozen=True, slots=True)
class Weighed:
    """A `Decision` with its options as values; a `Decision` computes them on demand."""

    strategy: str
    objective: str
    chosen: str
    why: str
    candidates: tuple[Candidate, ...]
    options: Options


@dataclass(frozen=True, slots=True)
class Decided:
    """Stored form of the fields of a `Plan` that are not records themselves."""

    assignment: Mapping[str, str]
    reasons: Mapping[str, str]
    """See `Partition`."""
    groups: tuple[SavedSubgraph, ...]
    """The subgraphs."""
    prologue: Mapping[str, str]
    """Devices of the nodes of the prologue."""
    passes: tuple[str, ...]
    """By name."""
    costs: str
    """Content of a file of costs."""
    factors: Mapping[str, float]
    """Factors of the costs, which that text lacks."""
    decision: Weighed | None


@cache
def list_plan_fields() -> dict[str, Any]:
    return _list_fields(Plan, _NO_RECORDS)


@cache
def list_request_fields() -> dict[str, Any]:
    """Return the types of the stored fields of `PlanRequest`, by name."""
    return _list_fields(PlanRequest, _FOLLOWING)


def _list_fields(record: type[Plan] | type[PlanRequest], but: frozenset[str]) -> dict[str, Any]:
    hints = get_type_hints(record)
    return {one.name: hints[one.name] for one in fields(record) if one.name not in but}


@cache
def hash_layout() -> str:
    """Return a digest of the definitions of all records in a file."""
    stored = {**list_plan_fields(), **list_request_fields()}
    described = map(describe_layout, (*stored.values(), Requirements, Decided))
    return hashlib.sha256(" ".join((*stored, *described)).encode()).hexdigest()[:16]


def record_decisions(plan: Plan) -> Decided:
    """Record the decisions in `plan`; PlanError if a pass is not one of plait's."""
    strange = [
        getattr(one, "__name__", repr(one))
        for one in plan.passes
        if one not in (*PASSES, *OPTIONAL_PASSES)
    ]
    if strange:
        raise PlanError(
            f"the plan was made with passes that are not plait's: {', '.join(strange)}",
            fix="plan(plait.passes.simplify(graph, passes), passes=()), and save that",
        )
    place_of = {node.name: index for index, node in enumerate(plan.graph.nodes)}
    groups = (
        SavedSubgraph(one.name, one.device, tuple(place_of[node.name] for node in one.graph.nodes))
        for one in plan.subgraphs
    )
    names = {one: name for name, one in _list_passes().items()}
    return Decided(
        plan.assignment,
        plan.reasons,
        tuple(groups),
        {} if plan.prologue is None else plan.prologue.assignment,
        tuple(names[one] for one in plan.passes),
        _write_costs(plan.costs),
        plan.costs.factors,
        None if plan.decision is None else _record_decision(plan.decision),
    )


def read_passes(stored: Decided, at: str) -> tuple[Pass, ...]:
    """Look up the passes in `stored`, which must be plait's; errors name the place `at`."""
    known = _list_passes()
    unknown = [name for name in stored.passes if name not in known]
    if unknown:
        raise ParseError(f"there are no passes {', '.join(unknown)}", at=at, fix=AGAIN)
    return tuple(known[name] for name in stored.passes)


def read_costs(stored: Decided, at: str) -> Costs:
    """Parse the costs in `stored`; errors name the place `at`."""
    known = Costs(**vars(decode(stored.costs.encode(), at)))
    for name, factor in stored.factors.items():
        if not 0 < factor < math.inf:
            raise ParseError(f"the factor of {name!r} is {factor}", at=at, fix=AGAIN)
    return replace(known, factors=stored.factors)


def read_decision(stored: Decided) -> Decision | None:
    if (weighed := stored.decision) is None:
        return None
    return Decision(
        weighed.strategy,
        weighed.objective,
        weighed.chosen,
        weighed.why,
        weighed.candidates,
        lambda: weighed.options,
    )


def _record_decision(decision: Decision) -> Weighed:
    parts = decision.strategy, decision.objective, decision.chosen, decision.why
    return Weighed(*parts, decision.candidates, decision.options)


def _write_costs(costs: Costs) -> str:
    """Return `costs` as JSON, without `supports`: devices answer that, not their models."""
    models = {
        name: replace(model, supports=None) if callable(model.supports) else model
        for name, model in costs.models.items()
    }
    return json.dumps(encode(replace(costs, models=models)))


def _list_passes() -> dict[str, Pass]:
    return {one.__name__: one for one in (*PASSES, *OPTIONAL_PASSES)}
