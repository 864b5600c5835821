"""Lengths that no memory holds, as constants or fed: refused by name on every device."""

from __future__ import annotations

from typing import Any

import numpy as np
import plait as pl
import pytest
from onnx_models import model, node

FAR = 2**62


def f32(*shape: int) -> Any:
    return np.ones(shape, np.float32)


def i64(*lengths: int) -> Any:
    return np.array(lengths, np.int64)


def scales(factor: float) -> Any:
    return np.array([1, 1, factor, 1], np.float32)


IMAGE = f32(1, 1, 2, 2)
DEPTH = np.int64(FAR)
ZERO, ONE = np.int64(0), np.int64(1)
CASES: dict[str, tuple[str, list[Any], dict[str, Any]]] = {
    "Expand": ("Expand", [f32(1), i64(FAR)], {}),
    "Expand by more than int64": ("Expand", [f32(1), i64(FAR, FAR)], {}),
    "Tile": ("Tile", [f32(2), i64(FAR)], {}),
    "Pad": ("Pad", [f32(2), i64(FAR, 0)], {}),
    "Pad with edges": ("Pad", [f32(2), i64(FAR, FAR)], {"mode": "edge"}),
    "Resize": ("Resize", [IMAGE, None, None, i64(1, 1, FAR, 2)], {}),
    "Resize by scales": ("Resize", [IMAGE, None, scales(1e38)], {}),
    "Resize by infinity": ("Resize", [IMAGE, None, scales(np.inf)], {}),
    "Resize by nan": ("Resize", [IMAGE, None, scales(np.nan)], {}),
    "ConstantOfShape": ("ConstantOfShape", [i64(FAR, FAR)], {}),
    "Range": ("Range", [ZERO, DEPTH, ONE], {}),
    "Range of floats": ("Range", [np.float32(0), np.float32(np.inf), np.float32(1)], {}),
    "OneHot": ("OneHot", [i64(0, 1), DEPTH, f32(2)], {}),
    "Reshape": ("Reshape", [f32(2), i64(FAR)], {}),
    "AffineGrid": ("AffineGrid", [f32(1, 2, 3), i64(1, 1, FAR, 2)], {}),
    "DFT": ("DFT", [f32(1, 4, 1), DEPTH], {}),
    "STFT": ("STFT", [f32(1, 8, 1), np.int64(2), None, DEPTH], {}),
    "MelWeightMatrix": (
        "MelWeightMatrix",
        [np.int64(8), DEPTH, np.int64(8192), np.float32(0), np.float32(4096)],
        {},
    ),
}
REFUSED = (pl.DoesNotFitError, pl.ShapeError)


def compute(name: str, device: str, *, fed: bool) -> Any:
    op, inputs, attributes = CASES[name]
    b = pl.GraphBuilder("far")
    feeds: dict[str, Any] = {}
    named: list[Any] = []
    for i, value in enumerate(inputs):
        if value is None or (i > 0 and not fed):
            named.append(value)
        else:
            named.append(b.input(f"x{i}", value.dtype.name, value.shape))
            feeds[f"x{i}"] = value
    b.output("y", b.op(op, *named, **attributes))
    return pl.run(b.build(), feeds, devices=[device])["y"]


@pytest.mark.parametrize("device", ["cpu", "formal"])
@pytest.mark.parametrize("fed", [True, False])
@pytest.mark.parametrize("name", CASES)
def test_lengths_beyond_memory_are_refused(name: str, fed: bool, device: str) -> None:
    with pytest.raises(REFUSED):
        compute(name, device, fed=fed)


@pytest.mark.parametrize("name", ["Expand", "Range", "Resize by scales", "Pad"])
@pytest.mark.parametrize("fed", [True, False])
def test_lengths_beyond_memory_are_refused_where_onnx_runtime_computes(
    name: str, fed: bool
) -> None:
    with pytest.raises((*REFUSED, pl.UnsupportedOpError)):
        compute(name, "ort", fed=fed)


def test_lengths_beyond_memory_are_refused_where_a_worker_computes() -> None:
    with pytest.raises(REFUSED):
        compute("Expand", "worker:0", fed=True)


@pytest.mark.parametrize("fed", [True, False])
@pytest.mark.parametrize("op", ["HannWindow", "HammingWindow", "BlackmanWindow"])
def test_windows_beyond_memory_are_refused(op: str, fed: bool) -> None:
    size = {"size": np.array(FAR)}
    inputs = {"size": ("int64", ())} if fed else {}
    proto = model([node(op, "size", "y")], inputs, ["y"], {} if fed else size)
    with pytest.raises(REFUSED):
        pl.run(pl.load(proto.SerializeToString()), size if fed else {}, devices=["cpu"])


@pytest.mark.parametrize("device", ["cpu", "formal"])
@pytest.mark.parametrize("fed", [True, False])
@pytest.mark.parametrize("step", [4, 5, 2**40, FAR, 2**63 - 1])
def test_frames_may_be_any_number_of_samples_apart(step: int, fed: bool, device: str) -> None:
    b = pl.GraphBuilder("frames")
    signal, apart = f32(1, 8, 1), np.array(step, np.int64)
    feeds = {"s": signal, **({"step": apart} if fed else {})}
    named = b.input("step", "int64", ()) if fed else apart
    b.output("y", b.op("STFT", b.input("s", "float32", (1, 8, 1)), named, None, np.int64(4)))
    y = pl.run(b.build(), feeds, devices=[device])["y"]
    frames = 2 if step == 4 else 1
    np.testing.assert_allclose(y[0, :, :, 0], [[4, 0, 0]] * frames, atol=1e-6)
