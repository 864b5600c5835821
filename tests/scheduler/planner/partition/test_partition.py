from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Literal

import numpy as np
import plait as pl
import pytest
from fake_devices import PrivateDevice
from hypothesis import given
from hypothesis import strategies as st
from plait.graph.core.ir import Graph
from plait.scheduler.planner.partition.cutting import cut_freest, find_components, list_cuts
from random_graphs import graphs


def chain(*ops: str) -> Graph:
    builder = pl.GraphBuilder("chain")
    last = builder.input("x", "float32", (4,))
    for index, op in enumerate(ops):
        last = builder.op(op, last, *([1.0] if op == "Add" else []), name=f"n{index}")
    builder.output("y", last)
    return builder.build()


def alternating(graph: Graph, devices: list[str], seed: int) -> dict[str, str]:
    random = np.random.default_rng(seed)
    return {node.name: devices[random.integers(len(devices))] for node in graph.nodes}


@given(graphs(), st.integers(0, 1 << 30))
def test_every_node_is_in_one_subgraph_of_its_device(graph: Graph, seed: int) -> None:
    pins = alternating(graph, ["a", "b"], seed)
    plan = pl.plan(graph, [PrivateDevice("a"), PrivateDevice("b")], pin=pins)
    placed = [(n.name, s.device) for s in plan.subgraphs for n in s.graph.nodes]
    assert sorted(placed) == sorted((n.name, plan.assignment[n.name]) for n in plan.graph.nodes)
    assert all(pins[name] == device for name, device in placed)


@given(graphs(), st.integers(0, 1 << 30))
def test_no_subgraph_waits_for_itself(graph: Graph, seed: int) -> None:
    pins = alternating(graph, ["a", "b", "c"], seed)
    plan = pl.plan(graph, [PrivateDevice(name) for name in "abc"], pin=pins)
    home = {node.name: s.index for s in plan.subgraphs for node in s.graph.nodes}
    for node in plan.graph.nodes:
        for name in node.inputs:
            if name in plan.graph.producers:
                assert home[plan.graph.producers[name].name] <= home[node.name]


@given(graphs(), st.integers(0, 1 << 30))
def test_parts_of_one_device_in_a_row_are_apart_only_to_wait_for_another(
    graph: Graph, seed: int
) -> None:
    random = np.random.default_rng(seed)
    devices = [int(random.integers(2)) for _ in graph.nodes]
    producers = graph.producer_indices
    for part in find_components(producers, devices):
        read = {producer for node in part for producer in producers[node]} - {*part}
        own = devices[part[0]]
        assert not read or any(devices[producer] != own for producer in read)


def test_weights_go_with_their_first_reader_though_the_sum_of_levels_has_another() -> None:
    # Node 0 is read by node 2, which stands between nodes of the other device, and by node 3.
    producers = [(), (), (0, 1), (0,), (2,)]
    for parts in cut_in_all_ways(producers, [0, 1, 0, 0, 1], following={0}):
        assert [0] not in parts


@given(graphs(), st.integers(0, 1 << 30))
def test_nodes_that_follow_from_constants_go_with_their_first_reader(
    graph: Graph, seed: int
) -> None:
    random = np.random.default_rng(seed)
    producers = graph.producer_indices
    devices = [int(random.integers(2)) for _ in graph.nodes]
    # As if some inputs were constants.
    constants = {name for name in graph.inputs if random.integers(2)} | {*graph.constants}
    following = set[int]()
    for index, one in enumerate(graph.nodes):
        if constants.issuperset(one.inputs):
            following.add(index)
            constants.update(one.outputs)
    for parts in cut_in_all_ways(producers, devices, following):
        home = {node: index for index, part in enumerate(parts) for node in part}
        for weight in following:
            readers = [reader for reader, read in enumerate(producers) if weight in read]
            if readers and all(devices[reader] == devices[weight] for reader in readers):
                assert home[weight] == min(home[reader] for reader in readers)
        for node, reads in enumerate(producers):
            assert all(home[producer] <= home[node] for producer in reads)


def cut_in_all_ways(
    producers: Sequence[Sequence[int]], devices: Sequence[int], following: Collection[int]
) -> list[list[list[int]]]:
    return [
        find_components(producers, devices, following),
        cut_freest(producers, devices, following),
        *list_cuts(producers, devices, following),
    ]


@given(graphs(), st.integers(0, 1 << 30))
def test_however_it_is_cut_parts_are_connected_and_come_in_a_topological_order(
    graph: Graph, seed: int
) -> None:
    random = np.random.default_rng(seed)
    devices = ["ab"[int(random.integers(2))] for _ in graph.nodes]
    producers = graph.producer_indices
    for parts in list_cuts(producers, devices, graph.constant_indices):
        home = {node: index for index, part in enumerate(parts) for node in part}
        assert sorted(home) == list(range(len(devices))), "each node is in one part"
        for node, reads in enumerate(producers):
            assert all(home[producer] <= home[node] for producer in reads)
        for part in parts:
            assert len({devices[node] for node in part}) == 1
            together = {part[0]}
            for _ in part:
                together |= {
                    node
                    for node in part
                    if together & {*producers[node]}
                    or any(node in producers[other] for other in together)
                }
            assert together == {*part}


def test_a_chain_on_one_device_is_one_subgraph() -> None:
    assert len(pl.plan(chain("Relu", "Add", "Relu"), ["cpu"]).subgraphs) == 1


def test_unconnected_branches_are_subgraphs_of_their_own() -> None:
    builder = pl.GraphBuilder("branches")
    for index in range(3):
        builder.output(f"y{index}", builder.op("Relu", builder.input(f"x{index}", "float32", (2,))))
    assert len(pl.plan(builder.build(), ["cpu"]).subgraphs) == 3


def test_a_node_goes_to_the_first_device_that_supports_it() -> None:
    devices: list[str | PrivateDevice] = [PrivateDevice("npu", lacks=["Add"]), "cpu"]
    plan = pl.plan(chain("Relu", "Add"), devices, strategy="preference")
    assert plan.assignment == {"n0": "npu", "n1": "cpu"}


def test_the_reason_names_the_devices_that_refused() -> None:
    devices: list[str | PrivateDevice] = [PrivateDevice("npu", lacks=["Add"]), "cpu"]
    plan = pl.plan(chain("Relu", "Add"), devices, strategy="preference")
    assert "not on npu: no kernel for 'Add'" in plan.reasons["n1"]
    assert "first choice" in plan.reasons["n0"]


def test_pins_win_over_the_order_of_devices() -> None:
    devices: list[str | PrivateDevice] = ["cpu", PrivateDevice("npu")]
    plan = pl.plan(chain("Relu", "Add"), devices, pin={"n1": "npu"}, strategy="preference")
    assert plan.assignment == {"n0": "cpu", "n1": "npu"}
    assert plan.reasons["n1"] == "pinned by 'n1'"


def test_a_name_wins_over_a_pattern_and_the_first_pattern_over_the_next() -> None:
    pins = {"n*": "npu", "n?": "cpu", "n1": "cpu"}
    plan = pl.plan(chain("Relu", "Relu", "Relu"), ["cpu", PrivateDevice("npu")], pin=pins)
    assert plan.assignment == {"n0": "npu", "n1": "cpu", "n2": "npu"}


def test_all_unsupported_nodes_are_listed_with_the_reasons() -> None:
    with pytest.raises(pl.UnsupportedOpError) as caught:
        pl.plan(chain("Relu", "Add", "Add"), PrivateDevice("npu", lacks=["Add"]))
    message = str(caught.value)
    assert "2 of 3 nodes" in message
    assert "    'n1', 'n2' (Add): npu: no kernel for 'Add' on this device\n" in message
    assert "fix: add a device that supports them ('cpu')" in message


def test_nodes_that_lack_the_same_are_one_line() -> None:
    with pytest.raises(pl.UnsupportedOpError) as caught:
        pl.plan(chain("Relu", *["Add"] * 30), PrivateDevice("npu", lacks=["Add", "Relu", "Max"]))
    lines = caught.value.what.splitlines()
    assert [line.strip().split(": ")[0] for line in lines[1:]] == [
        "'n0' (Relu)",
        "'n1', 'n2', 'n3' and 27 more (Add)",
    ]


@pytest.mark.parametrize("strategy", ["auto", "preference"])
def test_a_pin_is_to_be_changed_where_that_helps(strategy: Literal["auto", "preference"]) -> None:
    devices: list[str | PrivateDevice] = [PrivateDevice("npu", lacks=["Add"]), "cpu"]
    with pytest.raises(pl.UnsupportedOpError) as caught:
        pl.plan(chain("Relu", "Add", "Add"), devices, pin={"n*": "npu"}, strategy=strategy)
    assert caught.value.fix == "change the pin 'n*': 'cpu' runs them"


def test_a_device_that_is_there_is_not_recommended() -> None:
    b = pl.GraphBuilder("g")
    b.output("y", b.op("Erf", b.input("x", "float32", (2,))))
    with pytest.raises(pl.UnsupportedOpError) as caught:
        pl.plan(b.build(), PrivateDevice("cpu:1", lacks=["Erf"]))
    assert caught.value.fix == "register kernels for them, or change the graph"


def test_a_pin_to_a_device_that_lacks_the_operator_is_refused() -> None:
    devices: list[str | PrivateDevice] = ["cpu", PrivateDevice("npu", lacks=["Add"])]
    with pytest.raises(pl.UnsupportedOpError, match="pinned to npu by 'n1': no kernel for 'Add'"):
        pl.plan(chain("Relu", "Add"), devices, pin={"n1": "npu"})


def test_a_pin_that_matches_no_node_names_close_ones() -> None:
    with pytest.raises(pl.PlanError, match=r"matches no node(.|\n)*did you mean 'n1'"):
        pl.plan(chain("Relu", "Add"), pin={"n11": "cpu"})


def in_folders(*names: str) -> pl.Graph:
    b = pl.GraphBuilder("folders")
    h = b.input("x", "float32", (2,))
    for name in names:
        h = b.op("Relu", h, name=name)
    b.output("y", h)
    return b.build()


@pytest.mark.parametrize(
    ("names", "pin", "fix"),
    [
        (("net/a", "net/b/c", "decode"), "zzz", "its nodes are: net/*, decode"),
        (("/m/one/a", "/m/one/b", "/m/two/c"), "zzz", "its nodes are: /m/one/*, /m/two/*"),
        (("net/a", "net/b"), "zzz", "its nodes are: net/a, net/b"),
        (("net/a", "decode"), "nett/*", "did you mean 'net/*' or 'net/a'?"),
        (("a/*", "a/*/b"), "zzz", "its nodes are: a/*"),
    ],
)
def test_a_pin_that_matches_no_node_names_folders(names: list[str], pin: str, fix: str) -> None:
    with pytest.raises(pl.PlanError) as caught:
        pl.plan(in_folders(*names), pin={pin: "cpu"})
    assert caught.value.fix == fix


def test_a_pin_to_a_device_outside_the_plan_is_refused() -> None:
    with pytest.raises(pl.PlanError, match=r"plan's devices(.|\n)*pin to one of cpu"):
        pl.plan(chain("Relu"), ["cpu"], pin={"n0": "worker:7"})
    with pytest.raises(pl.PlanError, match=r"did you mean 'worker:0\.\.1'"):
        pl.plan(chain("Relu"), ["worker:0..1", "cpu"], pin={"n0": "worker:0.1"})


def test_an_unknown_device_is_named_with_what_there_is() -> None:
    with pytest.raises(pl.DeviceUnavailableError, match=r"no device 'tpu'(.|\n)*cpu"):
        pl.plan(chain("Relu"), ["tpu"])


def test_a_device_may_be_named_once_only() -> None:
    with pytest.raises(pl.PlanError, match="each once"):
        pl.plan(chain("Relu"), ["cpu", "cpu"])


def test_at_least_one_device_is_needed() -> None:
    with pytest.raises(pl.PlanError, match="none"):
        pl.plan(chain("Relu"), [])


def test_what_is_no_device_is_refused() -> None:
    with pytest.raises(pl.PlanError, match="0 is not a device"):
        pl.plan(chain("Relu"), [0])  # type: ignore[list-item]
