"""Files of costs: what is written is read again, what is damaged is refused."""

from __future__ import annotations

import json
from contextlib import suppress
from copy import deepcopy
from pathlib import Path
from typing import Any

import plait as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from machines import chain
from plait import Costs
from plait.devices.model import DeviceModel
from plait.graph.core.infer import get_cost
from plait.graph.values.errors import ParseError
from plait.scheduler.costs.costs_file import decode, encode
from plait.scheduler.costs.figures import Link, Loop, Measured, Timing
from plait.scheduler.costs.signature import make_digest, make_signature


def some() -> Costs:
    b = pl.GraphBuilder("pool")
    x = b.input("x", "float32", (1, 3, 8, 8))
    b.output("y", b.op("MaxPool", b.op("Cast", x, to="float16"), kernel_shape=[2, 2]))
    graph = b.build()
    nodes = {
        make_signature(graph, n): Measured(Timing(1e-5, 9e-6, 2e-7, 12), get_cost(graph, n))
        for n in graph.nodes
    }
    return Costs(
        models={"cpu": DeviceModel(launch_s=1e-6, operators={"Conv": 0.5})},
        memories={"cpu": "host"},
        links={("host", "sim:a"): Link(1e-5, 1e9)},
        nodes={"cpu": nodes},
        programs={"ort": {make_digest(graph): Timing(0.003, 0.002, 1e-4, 7)}},
        hops={("loop", "cpu"): 3e-5, ("cpu", "cpu"): 1e-5},
        loop=Loop(2e-5, 8e-5, 0.125),
    )


VALID: dict[str, Any] = json.loads(json.dumps(encode(some())))


def test_costs_are_the_same_after_a_trip_through_a_file(tmp_path: Path) -> None:
    some().save(tmp_path / "costs.json")
    assert Costs.load(tmp_path / "costs.json") == some()


def test_costs_of_nobody_know_nothing_of_the_loop(tmp_path: Path) -> None:
    Costs().save(tmp_path / "costs.json")
    assert Costs.load(tmp_path / "costs.json").loop is None


def test_a_plan_reads_a_file_of_costs(tmp_path: Path) -> None:
    some().save(tmp_path / "costs.json")
    plan = pl.plan(chain(2), ["cpu"], costs=tmp_path / "costs.json")
    assert plan.costs.model("cpu").launch_s == 1e-6


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ParseError, match="there is no such file") as caught:
        Costs.load(tmp_path / "none.json")
    assert "none.json" in str(caught.value)


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(pl.PlanError, match=r"cannot write .*costs\.json"):
        some().save(tmp_path / "none" / "costs.json")


BYTES: dict[str, bytes] = {
    "empty": b"",
    "no JSON": b"{",
    "no text": b"\xff\xfe\x00",
    "twice": b'{"format": "plait costs", "format": "plait costs", "version": 1}',
    "infinity": b'{"format": "plait costs", "version": Infinity}',
    "deep": b"[" * 100_000,
    "long number": b'{"version": ' + b"9" * 10_000 + b"}",
}


@pytest.mark.parametrize("data", BYTES.values(), ids=BYTES)
def test_what_is_no_json_is_refused(data: bytes) -> None:
    with pytest.raises(ParseError, match=r"not JSON") as caught:
        decode(data, "costs.json")
    assert caught.value.at == "costs.json"


DAMAGED: dict[str, tuple[tuple[Any, ...], Any, str]] = {
    "format": (("format",), "onnx", "not in the format"),
    "version": (("version",), 2, "has version 2"),
    "section": (("speeds",), {}, "'speeds', which is unknown"),
    "devices": (("devices",), [], "devices: should be an object"),
    "model": (("devices", "cpu", "launch_s"), "1", "devices, 'cpu': launch_s is '1'"),
    "memory": (("memories", "cpu"), 1, "memories, 'cpu': should be text"),
    "link": (("links", "host", "sim:a", "bytes_per_s"), 0, "no speed above 0"),
    "latency": (("links", "host", "sim:a", "latency_s"), -1, "latency_s: should be a number"),
    "link's key": (("links", "host", "sim:a", "speed"), 1, "'speed', which is unknown"),
    "nodes": (("nodes", "cpu"), {}, "nodes, 'cpu': should be a list"),
    "op": (("nodes", "cpu", 0, "op"), None, "number 0, op: should be text"),
    "seconds": (("nodes", "cpu", 0, "seconds"), "x" * 99, "seconds: should be a number"),
    "flops": (("nodes", "cpu", 0, "flops"), 0.5, "flops: should be a whole number"),
    "huge": (("nodes", "cpu", 0, "nbytes"), 1 << 90, "nbytes: should be a whole number"),
    "specs": (("nodes", "cpu", 0, "inputs"), "x", "inputs: should be a list"),
    "hop": (("hops", "loop", "cpu"), -1, "hops, 'loop' to 'cpu': should be a number"),
    "loop": (("loop", "land_s"), None, "loop, land_s: should be a number"),
    "loop's key": (("loop", "speed"), 1, "'speed', which is unknown"),
    "program": (("programs", "ort", "abc"), True, "should be a number"),
}


@pytest.mark.parametrize(("path", "value", "message"), DAMAGED.values(), ids=DAMAGED)
def test_damage_is_refused_with_its_place(path: tuple[Any, ...], value: Any, message: str) -> None:
    damaged = deepcopy(VALID)
    where = damaged
    for key in path[:-1]:
        where = where[key]
    where[path[-1]] = value
    with pytest.raises(ParseError, match=message):
        decode(json.dumps(damaged).encode(), "costs.json")


def test_an_entry_stands_once_only() -> None:
    damaged = deepcopy(VALID)
    damaged["nodes"]["cpu"].append(damaged["nodes"]["cpu"][0])
    with pytest.raises(ParseError, match="repeats an earlier entry"):
        decode(json.dumps(damaged).encode(), "costs.json")


@given(st.binary(max_size=64), st.integers(0, 4000), st.integers(0, 8))
def test_any_damage_is_a_clear_error_or_harmless(junk: bytes, start: int, length: int) -> None:
    data = json.dumps(VALID).encode()
    with suppress(ParseError):
        decode(data[:start] + junk + data[start + length :], "costs.json")
