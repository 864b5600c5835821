"""Operators of ONNX Runtime's own domains: as it computes them when it runs the model itself."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnxruntime
import plait as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ort_cases import CASES, Case
from plait.graph.core.ir import Graph
from plait.graph.formats import unknown_operators
from plait.graph.formats.onnx.load import read_model
from plait.graph.formats.onnx.writer import to_onnx
from plait.graph.values.errors import OperatorError
from plait.graph.values.extras import get_install_command
from plait.graph.values.tensor import Array

each_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.op)


def graph_of(case: Case) -> Graph:
    return read_model(case.model(), "model.onnx")


def by_onnxruntime(case: Case, fed: Array) -> Array:
    session = onnxruntime.InferenceSession(
        case.model().SerializeToString(), providers=["CPUExecutionProvider"]
    )
    (found,) = session.run(["y"], {"x": fed})
    return np.asarray(found)


def check(found: Array, wanted: Array) -> None:
    assert found.dtype == wanted.dtype
    np.testing.assert_allclose(found, wanted, 1e-6, 1e-6)


@each_case
def test_it_is_what_onnxruntime_computes(case: Case) -> None:
    found = pl.run(graph_of(case), {"x": case.fed}, devices=["ort"])["y"]
    check(found, by_onnxruntime(case, case.fed))


@each_case
def test_lengths_change_from_item_to_item_between_nodes_on_cpu(case: Case) -> None:
    graph = graph_of(case)
    pins = {node.name: "cpu" for node in graph.nodes if node.name != "own"}
    plan = pl.plan(graph, ["cpu", "ort"], pin=pins)
    items = [case.fed, case.fed[:1], case.fed[::-1].copy()]
    with pl.BlockingSession(plan) as session:
        results = [session.run({"x": item})["y"] for item in items]
    for item, found in zip(items, results, strict=True):
        check(found, by_onnxruntime(case, item))


@each_case
@pytest.mark.parametrize("suffix", [".onnx", ".plait"])
def test_files_hold_it(case: Case, suffix: str, tmp_path: Path) -> None:
    graph = graph_of(case)
    pl.save(graph, tmp_path / f"model{suffix}")
    again = pl.load(tmp_path / f"model{suffix}")
    assert [node.attributes for node in again.nodes] == [node.attributes for node in graph.nodes]
    check(pl.run(again, {"x": case.fed}, devices=["ort"])["y"], by_onnxruntime(case, case.fed))


@pl.operator(lambda x: x)
def double(x: Array) -> Array:
    return x + x


def test_it_streams_between_python_functions() -> None:
    case = CASES[0]
    b = pl.GraphBuilder("mixed")
    x = b.input("x", "float32", ("n", 4))
    doubled = b.call(double, x)
    own = b.op("com.microsoft.FusedMatMul", doubled, case.constants["b"], transB=1, alpha=0.5)
    b.output("y", b.call(double, own))
    items = [case.fed[: n % 3 + 1] for n in range(7)]
    with pl.BlockingSession(pl.plan(b.build(), ["cpu", "ort"], max_in_flight=2)) as session:
        found = [item["y"].copy() for item in session.stream({"x": item} for item in items)]
    for item, y in zip(items, found, strict=True):
        np.testing.assert_allclose(y, 2 * item @ case.constants["b"].T, 1e-5, 1e-5)


def test_the_report_says_which_node_binds_the_model_to_ort() -> None:
    graph = graph_of(CASES[0])
    text = pl.plan(graph, ["cpu", "ort"], shapes={"x": (3, 4)}).report(nodes=True)
    assert "no kernel for 'com.microsoft.FusedMatMul' on 'cpu' devices" in text
    bound = "bound to 'ort' devices by 1 node of ONNX Runtime's own: 1 com.microsoft.FusedMatMul"
    for devices in (["ort"], ["cpu", "ort"]):
        assert bound in pl.plan(graph, devices).report()


def test_devices_other_than_ort_are_refused_before_anything_runs() -> None:
    with pytest.raises(pl.PlaitError, match=r"com\.microsoft\.FusedMatMul") as caught:
        pl.plan(graph_of(CASES[0]), ["cpu"])
    assert "add 'ort'" in str(caught.value.fix)


def test_it_is_not_computed_ahead() -> None:
    b = pl.GraphBuilder("constants")
    values = np.ones((2, 2), np.float32)
    b.output("y", b.op("com.microsoft.FusedMatMul", values, values))
    plan = pl.plan(b.build(), ["cpu", "ort"])
    nodes = [node.op for part in (plan, plan.prologue) if part for node in part.graph.nodes]
    assert nodes == ["com.microsoft.FusedMatMul"]


@pytest.mark.parametrize(
    "op", ["com.microsoft.NeverHeardOf", "com.microsoft.BeamSearch", "com.microsoft.EPContext"]
)
def test_what_onnxruntime_lacks_too_is_named(op: str) -> None:
    domain, _, name = op.rpartition(".")
    model = CASES[0]._replace(op=name, domain=domain, attributes={}).model()
    with pytest.raises(pl.UnknownOperatorError, match=op) as caught:
        read_model(model, "model.onnx")
    assert onnxruntime.__version__ in str(caught.value.fix)
    assert "beam searches" in str(caught.value.fix)


def test_without_onnxruntime_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    advice = unknown_operators.advise(["com.microsoft.BiasGelu"], "wait")
    assert advice == f"com.microsoft needs ONNX Runtime: {get_install_command('ort')}; or wait"
    assert unknown_operators.advise(["acme.Fetch"], "wait") == "wait"


def test_a_broken_onnxruntime_is_not_said_to_lack_operators(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "onnxruntime.py").write_text("raise OSError('libonnxruntime.so: no such file')")
    monkeypatch.delitem(sys.modules, "onnxruntime")
    monkeypatch.syspath_prepend(tmp_path)
    advice = unknown_operators.advise(["com.microsoft.BiasGelu"], "wait")
    assert "is installed, but does not load: OSError: libonnxruntime.so: no such file" in advice


@settings(max_examples=20, deadline=None)
@given(data=st.data(), bits=st.sampled_from([4, 8]), has_zeros=st.booleans())
def test_products_with_packed_weights_are_written_out_on_cpu(
    data: st.DataObject, bits: int, has_zeros: bool
) -> None:
    size, k, n = 16, data.draw(st.integers(1, 48), "K"), data.draw(st.integers(1, 5), "N")
    count, rng = -(-k // size), np.random.default_rng(data.draw(st.integers(0, 9), "seed"))
    constants = {
        "b": rng.integers(0, 256, (n, count, size * bits // 8), np.uint8),
        "scales": rng.standard_normal(n * count, np.float32),
    }
    if has_zeros:
        constants["zeros"] = rng.integers(0, 256, n * -(-count * bits // 8), np.uint8)
    attributes = {"K": k, "N": n, "bits": bits, "block_size": size}
    fed = rng.standard_normal((2, k), np.float32)
    case = Case("MatMulNBits", "com.microsoft", fed, constants, attributes)
    graph = graph_of(case)
    plan = pl.plan(graph, ["cpu"])
    kept = sum(value.nbytes for value in plan.graph.constants.values() if value.ndim > 1)
    assert kept <= n * (k + 5 * count)  # a byte for each weight, and scales
    found = pl.run(graph, {"x": fed}, devices=["cpu"])["y"]
    np.testing.assert_allclose(found, by_onnxruntime(case, fed), 1e-3, 1e-3)


def test_refusals_of_onnxruntime_name_the_node() -> None:
    b = pl.GraphBuilder("wrong")
    x = b.input("x", "float32", (2, 3))
    with pytest.raises(OperatorError, match=r"refuses com\.microsoft\.FusedMatMul"):
        b.op("com.microsoft.FusedMatMul", x, x)


def test_attention_over_groups_fills_its_cache_as_onnxruntime_does() -> None:
    rng = np.random.default_rng(1)
    shapes = {"q": (1, 3, 16), "k": (1, 3, 8), "v": (1, 3, 8), "pk": (1, 1, 4, 8)}
    fed = {name: rng.standard_normal(shape, np.float32) for name, shape in shapes.items()}
    b = pl.GraphBuilder("attention")
    q, k, v, past = (b.input(name, "float32", shape) for name, shape in shapes.items())
    lengths = np.array([2], np.int32), np.array(3, np.int32)
    made = b.op(
        "com.microsoft.GroupQueryAttention", q, k, v, past, past, *lengths,
        outputs=3, num_heads=2, kv_num_heads=1,
    )  # fmt: skip
    for name, tensor in zip(("y", "keys", "values"), made, strict=True):
        b.output(name, tensor)
    graph = b.build()
    session = onnxruntime.InferenceSession(
        to_onnx(graph).SerializeToString(), providers=["CPUExecutionProvider"]
    )
    wanted = dict(zip(graph.outputs, session.run(list(graph.outputs), fed), strict=True))
    found = pl.run(graph, fed, devices=["cpu", "ort"])
    for name, value in wanted.items():
        check(found[name], np.asarray(value))


def test_lengths_that_values_decide_are_found_where_these_are_few_else_they_are_refused() -> None:
    b = pl.GraphBuilder("distinct")
    b.output("y", b.op("com.microsoft.Unique", b.input("x", "float32", ("n",)), outputs=3)[0])
    graph = b.build()
    for values in ([3, 1, 3], [2, 2, 2], [0, 1, 2, 3, 4]):
        found = pl.run(graph, {"x": np.array(values, np.float32)}, devices=["ort"])["y"]
        assert found.tolist() == list(dict.fromkeys(values))
    with pytest.raises(pl.PlanError, match="is not known before the run"):
        pl.run(graph, {"x": np.arange(100, dtype=np.float32)}, devices=["ort"])
