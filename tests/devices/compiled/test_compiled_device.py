from __future__ import annotations

import subprocess
import sys

import numpy as np
import plait as pl
import pytest
from patience import WAIT_S
from plait import devices
from plait.devices.compiled import device as module
from plait.graph.values.extras import get_install_command
from small_graphs import unary

NUMBA_MISSING = "needs numba: pip install '.[compiled]'"


def test_without_numba_the_message_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    with pytest.raises(pl.DeviceUnavailableError, match="needs Numba") as caught:
        pl.plan(unary("Relu"), ["compiled"])
    assert get_install_command("compiled") in str(caught.value)


def test_a_device_that_lacks_numba_is_probed_as_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    assert not devices.probe("compiled").found


def test_several_compiled_devices_have_names_of_their_own() -> None:
    pytest.importorskip("numba", reason=NUMBA_MISSING)
    assert devices.find("compiled:left").name == "compiled:left"


def test_a_probe_finds_it() -> None:
    pytest.importorskip("numba", reason=NUMBA_MISSING)
    assert devices.probe("compiled").found


@pytest.mark.parametrize("op", ["HardSwish", "HardSigmoid", "LeakyRelu"])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_an_activation_gives_the_same_bits_as_on_the_cpu(op: str, dtype: str) -> None:
    pytest.importorskip("numba", reason=NUMBA_MISSING)
    x = (np.random.default_rng(1).standard_normal(1001) * 4).astype(dtype)
    x[:3] = np.nan, np.inf, -np.inf
    b = pl.GraphBuilder(op)
    b.output("y", b.op(op, b.input("x", dtype, x.shape)))
    graph = b.build()
    there, here = (pl.run(graph, {"x": x}, devices=[name])["y"] for name in ("compiled", "cpu"))
    np.testing.assert_array_equal(there, here)


def test_constants_may_be_what_an_activation_reads() -> None:
    pytest.importorskip("numba", reason=NUMBA_MISSING)
    b = pl.GraphBuilder("large constant")  # too large to be folded
    large = np.full((1 << 22) + 1, 6, np.float32)
    b.output("y", b.op("Add", b.op("HardSwish", large), b.input("x", "float32", (1,))))
    found = pl.run(b.build(), {"x": np.zeros(1, np.float32)}, devices=["compiled"])["y"]
    assert (found == 6).all()


FIRST_ITEM = """
import sys, numpy as np, plait as pl, trio

b = pl.GraphBuilder("conv")
x = b.input("x", "float32", (1, 3, 8, 8))
b.output("y", b.op("Conv", x, np.ones((4, 3, 3, 3), "float32")))
plan = pl.plan(b.build(), ["compiled"])

async def main():
    async with pl.Session(plan) as session:
        before = set(sys.modules)
        await session.run({"x": np.ones((1, 3, 8, 8), "float32")})
        print(*sorted(set(sys.modules) - before))

trio.run(main)
"""


@pytest.mark.slow
def test_the_first_item_waits_for_no_import() -> None:
    pytest.importorskip("numba", reason=NUMBA_MISSING)
    ran = subprocess.run(
        [sys.executable, "-c", FIRST_ITEM],
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=True,
    )
    assert ran.stdout.split() == []
