"""Damaged plan files: a PlaitError or a sound plan, in little time and memory."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import msgpack
import numpy as np
import plait as pl
import pytest
from damage import exchange_bytes, refusal
from fake_devices import PrivateDevice
from hypothesis import given, settings
from hypothesis import strategies as st
from plait.graph.formats.container import PLANS
from plait.graph.values.errors import ParseError
from plait.scheduler.planner.memory.verify import verify_memory
from plait.scheduler.plans.placement import Transfer
from plait.scheduler.plans.plan import Plan
from plait.scheduler.plans.regions import MemoryPlan, Pool
from plait.scheduler.reports.plan_file import dump_plan, read_plan

PREFIX = struct.Struct("<8sIIQ")
LENGTH = struct.Struct("<Q")
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-2, 300)
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=4)
    | st.sampled_from(["cpu", "npu", "host", "memory of npu", "items", "x", "y", "first"])
)


def npu() -> PrivateDevice:
    return PrivateDevice("npu", lacks=["Add"])


@cache
def sound_plan() -> Plan:
    b = pl.GraphBuilder("sound")
    h = b.op("Relu", b.input("x", "float32", (16,)), name="first")
    h = b.op("Add", h, np.arange(16, dtype="float32"), name="second")
    b.output("y", b.op("Neg", b.op("Relu", h, name="third"), name="fourth"))
    return pl.plan(b.build(), [npu(), "cpu"], max_in_flight=2, strategy="preference")


@cache
def sound() -> bytes:
    return dump_plan(sound_plan())


def header_of(data: bytes) -> bytes:
    return data[PREFIX.size : PREFIX.size + PREFIX.unpack_from(data)[3]]


def with_header(header: bytes) -> bytes:
    """Return the sound file with another header and the right checksum."""
    blob = sound()[-(-(PREFIX.size + len(header_of(sound()))) // 64) * 64 :]
    prefix = PREFIX.pack(PLANS.magic, 1, zlib.crc32(header), len(header))
    return prefix + header + bytes(-(PREFIX.size + len(header)) % 64) + blob


def section_of(header: bytes) -> bytes:
    """Return what follows the graph in a header."""
    return header[LENGTH.size + LENGTH.unpack_from(header)[0] :]


def with_section(section: bytes) -> bytes:
    header = header_of(sound())
    return with_header(header[: len(header) - len(section_of(header))] + section)


def load_guarded(data: bytes) -> None:
    """Load and verify, within memory of a small multiple of the file's size."""

    def read() -> None:
        verify_memory(read_plan(data, "damaged.plan", {"npu": npu()}))

    refused = refusal(read, 2_000_000 + 100 * len(data))
    assert refused is None or (refused.what and refused.fix)


@settings(max_examples=60)
@given(st.data())
def test_changed_bytes_raise_or_load_a_sound_plan(data: st.DataObject) -> None:
    load_guarded(exchange_bytes(data, sound(), 4))


@settings(max_examples=150)
@given(st.data())
def test_changed_sections_raise_or_load_a_sound_plan(data: st.DataObject) -> None:
    load_guarded(with_section(exchange_bytes(data, section_of(header_of(sound())), 3)))


@settings(max_examples=300)
@given(st.data())
def test_changed_scalars_raise_or_load_a_sound_plan(data: st.DataObject) -> None:
    unpacker = msgpack.Unpacker()
    unpacker.feed(section_of(header_of(sound())))
    scalars: list[Any] = list(unpacker)
    for _ in range(data.draw(st.integers(1, 2))):
        scalars[data.draw(st.integers(0, len(scalars) - 1))] = data.draw(SCALARS)

    load_guarded(with_section(b"".join(map(msgpack.packb, scalars))))


def test_every_truncation_raises() -> None:
    data = sound()
    for length in range(0, len(data), 7):
        with pytest.raises(ParseError):
            read_plan(data[:length], "cut.plan", {"npu": npu()})


@pytest.mark.parametrize("nbytes", [2**20, 2**63, 2**64 - 1])
def test_a_graph_longer_than_the_header_raises(nbytes: int) -> None:
    header = header_of(sound())
    with pytest.raises(ParseError, match="is not in it"):
        read_plan(with_header(LENGTH.pack(nbytes) + header[LENGTH.size :]), "bytes", {})


def with_memory(change: Callable[[MemoryPlan], MemoryPlan], plan: Plan | None = None) -> bytes:
    plan = plan or sound_plan()
    assert plan.memory is not None
    return dump_plan(replace(plan, memory=change(plan.memory)))


def moved(plan: MemoryPlan, where: str, **changed: Any) -> MemoryPlan:
    """Return a memory plan with all that lies in a memory located elsewhere."""
    locations = {
        placed: replace(one, **changed) if one.memory == where else one
        for placed, one in plan.locations.items()
    }
    return replace(plan, locations=locations)


def with_regions(memory: MemoryPlan, **changed: Any) -> MemoryPlan:
    def pool(one: Pool) -> Pool:
        regions = {name: replace(region, **changed) for name, region in one.regions.items()}
        return replace(one, regions=regions)

    return replace(memory, pools={name: pool(one) for name, one in memory.pools.items()})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: moved(m, "host", offset=-64), "lies where no tensor"),
        (lambda m: moved(m, "host", offset=1 << 40), "lies where no tensor"),
        (lambda m: moved(m, "host", offset=4), "lies where no tensor"),
        (lambda m: moved(m, "host", region="nowhere"), "lies where no tensor"),
        (lambda m: moved(m, "host", memory="memory of npu"), "lies where no tensor"),
        (lambda m: replace(m, locations={}), "not of the plan's tensors"),
        (lambda m: replace(m, added_edges=((1, 0),)), "step 0 waits for step 1"),
        (lambda m: replace(m, added_edges=((0, 99),)), "step 99 waits for step 0"),
        (lambda m: with_regions(m, nbytes=1 << 50), "larger than all it holds"),
        (lambda m: with_regions(m, nbytes=-1), "makes no sense"),
        (lambda m: with_regions(m, copies=0), "makes no sense"),
        (lambda m: with_regions(m, copies=1 << 40), "makes no sense"),
        (lambda m: with_regions(m, claims=(99,)), "makes no sense"),
        (lambda m: with_regions(m, releases=(-2,)), "makes no sense"),
        (lambda m: with_regions(m, releases=(-1,)), "touched after 'items' is released"),
        (lambda m: with_regions(m, claims=()), "items could meet"),
    ],
)
def test_a_memory_plan_that_is_unsound_is_refused(
    change: Callable[[MemoryPlan], MemoryPlan], message: str
) -> None:
    data = with_memory(change)
    with pytest.raises(ParseError, match=message):
        read_plan(data, "bytes", {"npu": npu()})


def test_tensors_that_are_needed_at_once_may_not_overlap() -> None:
    b = pl.GraphBuilder("both")
    x = b.input("x", "float32", (16,))
    b.output("y", b.op("Add", b.op("Relu", x), b.op("Neg", x)))
    data = with_memory(lambda m: moved(m, "host", offset=0), pl.plan(b.build()))
    with pytest.raises(ParseError, match="overlap while both are needed"):
        read_plan(data, "bytes", {})


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"max_in_flight": 0}, "for 0 items in flight"),
        ({"max_in_flight": 9}, "something else"),
        ({"pins": {"first": "tpu"}}, "make no sense"),
    ],
)
def test_fields_that_contradict_each_other_are_refused(
    changed: dict[str, Any], message: str
) -> None:
    plan = sound_plan()
    data = dump_plan(replace(plan, request=replace(plan.request, **changed)))
    with pytest.raises(ParseError, match=message):
        read_plan(data, "bytes", {"npu": npu()})


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ({"first": "tpu"}, "is on 'tpu'"),
        ({"first": "cpu"}, "cannot be in subgraph"),
        ({"second": "npu"}, "npu does not run"),
        ({"fifth": "cpu"}, "not of the graph's nodes"),
    ],
)
def test_an_assignment_that_cannot_be_is_refused(assignment: dict[str, str], message: str) -> None:
    plan = sound_plan()
    changed = replace(plan.partition, assignment={**plan.assignment, **assignment})
    with pytest.raises(ParseError, match=message):
        read_plan(dump_plan(replace(plan, partition=changed)), "bytes", {"npu": npu()})


@pytest.mark.parametrize("order", [[1, 0, 2], [0, 1], [0, 0, 1, 2]])
def test_subgraphs_that_are_no_partition_are_refused(order: list[int]) -> None:
    plan = sound_plan()
    subgraphs = tuple(plan.subgraphs[index] for index in order)
    changed = replace(plan.partition, subgraphs=subgraphs)
    with pytest.raises(ParseError, match="the plan is damaged"):
        read_plan(dump_plan(replace(plan, partition=changed)), "bytes", {"npu": npu()})


def test_a_subgraph_that_takes_the_name_of_a_transfer_is_refused() -> None:
    plan = sound_plan()
    transfer = next(step.name for step in plan.steps if isinstance(step.work, Transfer))
    first, *others = plan.subgraphs
    renamed = replace(first, graph=replace(first.graph, name=transfer))
    changed = replace(plan.partition, subgraphs=(renamed, *others))
    with pytest.raises(ParseError, match="two steps have one name"):
        read_plan(dump_plan(replace(plan, partition=changed)), "bytes", {"npu": npu()})


def test_more_items_in_flight_than_can_be_are_refused() -> None:
    b = pl.GraphBuilder("any length")
    b.output("y", b.op("Relu", b.input("x", "float32", ("n",))))
    plan = pl.plan(b.build())
    plan = replace(plan, request=replace(plan.request, max_in_flight=10**9))
    with pytest.raises(ParseError, match="damaged: it is for 1000000000 items in flight"):
        read_plan(dump_plan(plan), "p.plan", {})


@pytest.mark.parametrize("factor", [0.0, -1.0, float("inf"), float("nan")])
def test_factors_of_costs_that_are_none_are_refused(factor: float) -> None:
    plan = sound_plan()
    costs = replace(plan.costs, factors={"Relu": factor})
    plan = replace(plan, request=replace(plan.request, costs=costs))
    with pytest.raises(ParseError, match="the factor of 'Relu'"):
        read_plan(dump_plan(plan), "p.plan", {"npu": npu()})
