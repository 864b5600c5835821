"""Programs that are bound to other lengths while a worker is at work."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import plait as pl
import pytest
from patience import WAIT_S
from plait.devices.device import is_rebindable
from plait.devices.memory import View
from plait.devices.worker import client as worker_client
from plait.graph.values.tensor import TensorSpec

from . import worker_functions as functions
from .worker_bench import Bench, Bound, Gate, calls, place


def rebound(bound: Bound, views: dict[str, View]) -> Any:
    """Return a program that is bound to other views; None if it has to be compiled."""
    assert is_rebindable(bound.program)
    return bound.program.rebound(views)


def test_a_program_is_bound_to_other_lengths_while_the_worker_is_at_work(
    bench: Bench, gate: Gate
) -> None:
    device = bench.device
    with Bound(device, calls(functions.scale, functions.scale, n=8, by=3.0)) as bound:
        first = bench.submit(functions.wait_for, path=gate.path)
        writer = gate.arrived()
        for length in (5, 2):
            specs = dict.fromkeys(bound.views, TensorSpec("float32", (length,)))
            views = place(device, bound.arena, specs)
            program = rebound(bound, views)
            views["x"].array[...] = np.arange(length)
            event = device.submit(program)
        assert not first.done
        os.close(writer)
        event.wait(WAIT_S)
        np.testing.assert_array_equal(views["y"].array, [0, 9])


@pytest.mark.parametrize(("length", "is_bound"), [(2, False), (4, True)])
def test_lengths_that_a_kernel_sees_take_another_program(
    bench: Bench, length: int, is_bound: bool
) -> None:
    b = pl.GraphBuilder("kernel too")
    scaled = b.call(functions.scale, b.input("x", "float32", (4,)), name="scale", by=3.0)
    b.output("y", scaled)
    b.output("z", b.op("Neg", scaled))
    with Bound(bench.device, b.build()) as bound:
        specs = dict.fromkeys(bound.views, TensorSpec("float32", (length,)))
        program = rebound(bound, place(bench.device, bound.arena, specs))
        assert (program is not None) == is_bound
        if is_bound:
            bound.views["x"].array[...] = np.arange(4)
            bench.device.submit(program).wait(WAIT_S)
            np.testing.assert_array_equal(bound.views["z"].array, -3.0 * np.arange(4))


def test_a_program_is_bound_to_other_lengths_while_somebody_waits_for_one_to_be_compiled(
    bench: Bench, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop binds to other lengths, threads compile: it must not wait with them."""
    device, call, asked = bench.device, worker_client.WorkerClient.call, threading.Event()

    def observed(*arguments: Any) -> None:
        asked.set()
        call(*arguments)

    with Bound(device, calls(functions.scale, n=8, by=3.0)) as bound, ThreadPoolExecutor() as pool:
        first = bench.submit(functions.wait_for, path=gate.path)
        writer = gate.arrived()
        try:
            monkeypatch.setattr(worker_client.WorkerClient, "call", observed)
            other = calls(functions.scale, n=8, by=5.0)
            compiled = pool.submit(device.compile, other, bound.views)
            assert asked.wait(WAIT_S)
            program = pool.submit(rebound, bound, bound.views).result(WAIT_S)
            assert not compiled.done()
            assert not first.done
        finally:
            os.close(writer)
        for each, factor in ((program, 3), (compiled.result(WAIT_S), 5)):
            bound.views["x"].array[...] = np.arange(8)
            device.submit(each).wait(WAIT_S)
            np.testing.assert_array_equal(bound.views["y"].array, np.arange(8) * factor)


def test_whoever_runs_a_program_is_told_why_it_was_not_bound(bench: Bench) -> None:
    with Bound(bench.device, calls(functions.scale)) as bound:
        # No place for the result.
        event = bench.device.submit(rebound(bound, {"x": bound.views["x"]}))
        with pytest.raises(KeyError, match="y"):
            event.wait(WAIT_S)
        bound.run(x=np.float32(1))
