"""Plans in files: what was decided, from which the rest follows when it is read.

A container, its header the length of the graph's header (u64), that header, then the plan as
records: what it depends on, its fields, and how the graph is cut into subgraphs. Neither the nodes'
specs nor placement are taken from the file but derived again, where there are bounds the graph of
the largest shapes too, and the memory plan is verified: a damaged file is refused, whoever damaged
it.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ...devices.device import Device, is_device
from ...graph.check import check
from ...graph.errors import ParseError
from ...graph.formats.constants import ConstantWriter
from ...graph.formats.container import GRAPHS, PLANS, Data
from ...graph.formats.files import read_file, reading, replace_file
from ...graph.formats.header import pack_header
from ...graph.formats.native import read_graph
from ...graph.formats.records import put_record, read_record
from ...graph.formats.scalars import ScalarReader, ScalarWriter
from ...graph.passes import fold_constants
from ...graph.state import set_aside
from ...version import VERSION
from ..errors import PlanError
from ..plans.plan import Plan
from ..plans.request import PlanRequest
from .plan_records import (
    Decided,
    asked_kinds,
    costs_of,
    decided,
    decision_of,
    kinds,
    layout,
    passes_of,
)
from .requirements import (
    AGAIN,
    Requirements,
    check_devices,
    check_operators,
    devices_for,
    requirements,
)
from .restore import (
    restored_ends,
    restored_graph,
    restored_partition,
    restored_placement,
    restored_sections,
    verified,
    with_restored,
)

_LENGTH = struct.Struct("<Q")


def save_plan(plan: Plan, path: str | os.PathLike[str]) -> None:
    """Write a plan to a file, wholly or not at all.

    Raises
    ------
    PlanError
        If passes of the user's own made its graph simpler: files name functions, and hold none.
    GraphError
        If the graph holds what cannot be written, or the file cannot be.
    """
    replace_file(path, _chunks(plan))


def dump_plan(plan: Plan) -> bytes:
    """Return a plan as the bytes of a file.

    Raises
    ------
    PlanError, GraphError
        As `save_plan`.
    """
    return b"".join(_chunks(plan))


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
        If the file is missing, damaged or foreign, or if plait, a device or an operator is not
        what the plan was made for; the message says which.
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
    _ = plan.bodies  # which are planned again, before a session needs them
    return plan


def is_saved_plan(path: str | os.PathLike[str] | bytes) -> bool:
    """True when a file, or what it holds, is a plan, damaged or not; False where there is none."""
    if isinstance(path, bytes):
        return PLANS.starts(path[: len(PLANS.magic)])
    try:
        with reading(path) as file:
            return PLANS.starts(file.read(len(PLANS.magic)))
    except ParseError:
        return False


def read_plan(data: Data, at: str, given: Mapping[str, Device]) -> Plan:
    """Return the plan that the bytes of a file hold.

    Raises
    ------
    PlaitError
        As `load_plan`.
    """
    if GRAPHS.starts(bytes(memoryview(data)[:8])):
        raise ParseError(
            "this is a graph, not a plan", at=at, fix="plan it: plait.plan(load(path))"
        )
    # Magic, checksum and sizes first: from here on, what is wrong was written so.
    header, blob = PLANS.unpack(data, at)
    graph_header, section = _split(header, at)
    reader = ScalarReader(section, at)
    wanted, values, asked, stored = reader.read(lambda: _stored(reader, at))
    prototypes, objects = devices_for(wanted, given, at)
    # Before anything is rebuilt: what is missing here is told as that, and not as damage.
    check_devices(wanted, prototypes, at)
    fed = read_graph(graph_header, blob, at)
    check_operators(wanted, fed, at)
    fed = set_aside(fed)
    passes = passes_of(stored, at)
    bounds, once = values["bounds"], None
    if bounds:
        once, fed = restored_sections(fed, stored.prologue, at)
    graph = restored_graph(
        fed, bounds, prototypes, asked["pins"], at, folds=fold_constants in passes
    )
    if not bounds:
        once, graph = restored_sections(graph, stored.prologue, at)
    partition = restored_partition(
        graph, stored.assignment, stored.reasons, stored.groups, prototypes, at
    )
    asked["ends"] = ends = restored_ends(graph, asked["ends"], prototypes, at)
    placement = None
    if (memory := values["memory"]) is not None:
        placement = restored_placement(graph, partition, prototypes, ends, memory.added_edges, at)
    plan = Plan(
        graph=graph,
        template=fed if bounds else None,
        partition=partition,
        placement=placement,
        passes=passes,
        request=PlanRequest(devices=prototypes, given=objects, costs=costs_of(stored, at), **asked),
        decision=decision_of(stored),
        **values,
    )
    return with_restored(verified(plan, at), once, stored.prologue, at)


def _chunks(plan: Plan) -> Iterator[bytes | memoryview]:
    graph = check(plan.fed)
    constants = ConstantWriter()
    graph_header = pack_header(graph, constants.stored)
    writer = ScalarWriter()
    # The form of what follows is that of these classes: another build may have other fields.
    writer.put(VERSION, layout())
    put_record(writer, requirements(graph, plan.prototypes))
    for name, kind in kinds().items():
        put_record(writer, getattr(plan, name), kind)
    for name, kind in asked_kinds().items():
        put_record(writer, getattr(plan.request, name), kind)
    put_record(writer, decided(plan))
    section = b"".join(writer.parts)
    return constants.parts(PLANS.pack(_LENGTH.pack(len(graph_header)) + graph_header + section))


def _split(header: memoryview, at: str) -> tuple[memoryview, memoryview]:
    """Return the graph's header and what follows it."""
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
    if written != layout():
        raise ParseError(f"the plan was made by another build of plait {VERSION}", at=at, fix=AGAIN)


def _stored(
    reader: ScalarReader, at: str
) -> tuple[Requirements, dict[str, Any], dict[str, Any], Decided]:
    _check_version(reader, at)
    wanted = read_record(reader, Requirements)
    values = {name: read_record(reader, kind) for name, kind in kinds().items()}
    asked = {name: read_record(reader, kind) for name, kind in asked_kinds().items()}
    return wanted, values, asked, read_record(reader, Decided)
