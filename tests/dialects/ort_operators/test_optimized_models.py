"""Models as ONNX Runtime writes them when it has optimized them: full of operators of its own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
import plait as pl
import pytest
from command_line import plait, plait_process
from plait.graph.values.tensor import Array

WIDTH = 16
LEVELS = {
    "extended": onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
    "all": onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL,
}


def weights(*shape: int) -> Array:
    return np.random.default_rng(sum(shape)).standard_normal(shape, np.float32) / 4


def encoder() -> pl.Graph:
    """Return a layer of a transformer, of any number of items and any length."""
    b = pl.GraphBuilder("encoder")
    x = b.input("x", "float32", ("n", "length", WIDTH))

    def dense(x: str, *shape: int) -> str:
        return str(b.op("Add", b.op("MatMul", x, weights(*shape)), weights(shape[1])))

    def normalized(x: str, name: str) -> str:
        scale, bias = weights(WIDTH) + np.float32(1), weights(WIDTH)
        return str(b.op("LayerNormalization", x, scale, bias, name=name))

    query, key, value = (dense(x, WIDTH, WIDTH) for _ in range(3))
    scores = b.op("MatMul", query, b.op("Transpose", key, perm=(0, 2, 1)))
    mixed = b.op("MatMul", b.op("Softmax", b.op("Mul", scores, 0.25)), value)
    h = normalized(b.op("Add", dense(mixed, WIDTH, WIDTH), x), "attended")
    wide = dense(h, WIDTH, 4 * WIDTH)
    erf = b.op("Erf", b.op("Div", wide, float(np.sqrt(2))))
    gelu = b.op("Mul", b.op("Mul", wide, b.op("Add", erf, 1.0)), 0.5)
    b.output("y", normalized(b.op("Add", dense(gelu, 4 * WIDTH, WIDTH), h), "fed_forward"))
    return b.build()


def convolutions() -> pl.Graph:
    """Return a network of convolutions, which are computed in blocks of channels."""
    b = pl.GraphBuilder("convolutions")
    x = b.input("x", "float32", ("n", 3, 12, 12))
    h = b.op("Relu", b.op("Conv", x, weights(32, 3, 3, 3), weights(32), pads=(1, 1, 1, 1)))
    h = b.op("MaxPool", h, kernel_shape=(2, 2), strides=(2, 2))
    h = b.op("Add", b.op("Conv", h, weights(32, 32, 3, 3), pads=(1, 1, 1, 1)), h)
    b.output("y", b.op("GlobalAveragePool", b.op("HardSigmoid", h)))
    return b.build()


SHAPES = {
    "encoder": ((2, 5, WIDTH), (1, 9, WIDTH)),
    "convolutions": ((2, 3, 12, 12), (5, 3, 12, 12)),
}


@pytest.fixture(params=["encoder", "convolutions"])
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=LEVELS)
def path(name: str, request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Return an optimized model."""
    pl.save(encoder() if name == "encoder" else convolutions(), tmp_path / "plain.onnx")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # it says that such models are of one kind of processor
    options.graph_optimization_level = LEVELS[request.param]
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    onnxruntime.InferenceSession(
        tmp_path / "plain.onnx", options, providers=["CPUExecutionProvider"]
    )
    return tmp_path / "optimized.onnx"


def items(name: str) -> list[dict[str, Array]]:
    random = np.random.default_rng(0)
    return [{"x": random.standard_normal(shape, np.float32)} for shape in SHAPES[name] * 2]


def by_onnxruntime(path: Path, fed: dict[str, Array]) -> Array:
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, fed)[0])


@pytest.mark.slow
@pytest.mark.parametrize("devices", [["ort"], ["cpu", "ort"], ["worker:0", "ort"]])
def test_they_stream_items_of_any_length(path: Path, name: str, devices: list[str]) -> None:
    graph = pl.load(path)
    assert any("com.microsoft." in node.op for node in graph.nodes)
    pins = {} if len(devices) == 1 else {"*": devices[0]}
    own = {node.name: "ort" for node in graph.nodes if "com.microsoft." in node.op}
    plan = pl.plan(graph, devices, pin={**own, **pins} if pins else {}, max_in_flight=2)
    fed = items(name)
    with pl.BlockingSession(plan) as session:
        found = [item["y"].copy() for item in session.stream(fed)]
    for one, y in zip(fed, found, strict=True):
        np.testing.assert_allclose(y, by_onnxruntime(path, one), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("suffix", [".onnx", ".plait"])
def test_files_hold_them(path: Path, name: str, suffix: str, tmp_path: Path) -> None:
    fed = items(name)[0]
    pl.save(pl.load(path), tmp_path / f"again{suffix}")
    found = pl.run(pl.load(tmp_path / f"again{suffix}"), fed, devices=["ort"])["y"]
    np.testing.assert_allclose(found, by_onnxruntime(path, fed), rtol=1e-4, atol=1e-5)


def commands(path: Path, name: str) -> tuple[list[str], list[str]]:
    """Return what plans a model and what runs it."""
    shape = f"x={','.join(map(str, SHAPES[name][0]))}"
    planned = ["plan", path.name, "--devices", "cpu,ort", "--shape", shape]
    return planned, ["run", path.name, "--devices", "ort", "--input", "x=random", "--shape", shape]


def test_the_command_line_plans_and_runs_them(path: Path, name: str) -> None:
    for arguments in commands(path, name):
        done = plait(path.parent, *arguments)
        assert done.exit_code == 0, done.stderr
    assert "float32" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(("name", "path"), [("encoder", "extended")], indirect=True)
def test_a_process_that_knows_no_operators_yet_plans_and_runs_them(path: Path, name: str) -> None:
    for arguments in commands(path, name):
        done = plait_process(path.parent, *arguments)
        assert done.returncode == 0, done.stderr
    assert "float32" in done.stdout
