"""Names of what was weighed: they say which pins would make it."""

from __future__ import annotations

import re

import numpy as np
import plait as pl
import pytest


def two_towers(layers: int) -> pl.Graph:
    b = pl.GraphBuilder("towers")
    x = b.input("x", "float32", (64, 64))
    ends = []
    for name in ("left", "right"):
        h = x
        for layer in range(layers):
            w = np.full((64, 64), 0.01, "float32")
            h = b.op("MatMul", h, w, name=f"{name}{layer}")
        ends.append(h)
    b.output("y", b.op("Add", *ends, name="join"))
    return b.build()


def pins_in(name: str) -> dict[str, str]:
    """Return the pins that the name of a candidate says; none where it counts nodes."""
    parts = [part.rpartition(" on ") for part in re.split(r"(?<= on (?:d0|d1)), ", name)]
    pins: dict[str, str] = {}
    for nodes, _, device in parts:
        if re.fullmatch(r"\d+ nodes?", nodes):
            return {}
        pins |= dict.fromkeys(["*"] if nodes == "the rest" else nodes.split(", "), device)
    return pins


@pytest.mark.parametrize("layers", [1, 2, 12])
def test_a_split_is_named_after_the_pins_that_make_it(layers: int) -> None:
    model = pl.DeviceModel(flops_per_s=1e9)
    devices = [pl.modelled_device(name, model) for name in ("d0", "d1")]
    graph = two_towers(layers)
    plan = pl.plan(graph, devices, passes=())
    assert plan.decision is not None
    splits = [one for one in plan.decision.candidates if len(one.devices) > 1]
    assert splits
    for split in splits:
        name = re.sub(r", way \d+$", "", split.name)
        assert re.search(r"the rest on d[01]$", name)
        pins = pins_in(name)
        if pins:
            pinned = pl.plan(graph, devices, pin=pins, passes=())
            assert set(pinned.assignment.values()) == set(split.devices)
            assert len(pinned.subgraphs) == split.subgraphs
            if split.name == plan.decision.chosen:
                assert pinned.assignment == plan.assignment
