"""Attention through cuDNN, against its definition; it is chosen only where its results agree."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import fake_cudnn
import numpy as np
import plait as pl
import pytest
import trio
from cupy_double import CupyDouble
from fake_cudnn import FakeCudnn
from fake_gpu import SEEDS
from hypothesis import given
from hypothesis import strategies as st
from plait.devices.cuda import attention, choosing
from plait.devices.cuda.cudnn_graphs import is_attention_for_cudnn
from plait.graph.values.tensor import Array

from .rig import Rig
from .test_cuda_attention import (
    TOLERANCE,
    Sizes,
    defined,
    drawn,
    feeds_of,
    found_in,
    graph_of,
    items,
    some_hidden,
)
from .test_cuda_cublas import Library
from .test_cuda_cudnn import folder, told

__all__ = ["folder"]  # a fixture

PLAIN = Sizes(width=16)
LONG = PLAIN._replace(queries=19)
FASTEST = {"cudnn 1": 1.0, "cublas": 2.0, "generated": 3.0}


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have small ones computed by libraries."""
    monkeypatch.setattr(attention, "LEAST", 0)


def zeros(y: Array) -> Array:
    """Return results with zeros where nothing is seen, as cuDNN may give them."""
    return np.nan_to_num(y)


def computed(
    double: CupyDouble,
    s: Sizes,
    dtype: str,
    mask: Array | None = None,
    *,
    mistake: Callable[[Array], Array] = zeros,
    rows: bool = False,
    **attributes: Any,
) -> tuple[Array, Array, set[int]]:
    """Return what a device with cuDNN gives, what is defined, and the engines of its items."""
    fed, library = feeds_of(s, dtype, mask, rows=rows), FakeCudnn(double.gpu)
    library.mistake = mistake
    heads = {"q_num_heads": s.heads, "kv_num_heads": s.shared} if rows else {}
    graph = graph_of(fed, **attributes, **heads)
    device = double.generating(cudnn=lambda: library, tf32=True, graphs=True)
    with Rig(device, graph) as rig:
        library.computed.clear()
        rig.device.compile(graph, rig.views)  # as they are recorded
        found = rig.run(fed)["y"]
    return found, defined(s, fed, attributes), {engine for engine, _ in library.computed}


def masks(s: Sizes, dtype: str) -> dict[str, Array]:
    """Return masks that are added, of several shapes; some hide keys."""
    shapes = (s.queries, s.keys), (s.batch, 1, 1, s.keys), (s.heads, s.queries, s.keys)
    made = {}
    for number, shape in enumerate(shapes):
        mask = drawn(*shape, dtype=dtype, seed=number)
        mask[mask > 1] = -np.inf
        made[str(shape)] = mask
    return made


CASES: dict[str, tuple[Sizes, dict[str, Any]]] = {
    "plain": (PLAIN, {}),
    "scaled": (PLAIN, {"scale": 0.7}),
    "a negative scale": (PLAIN, {"scale": -0.7}),
    "no scale": (PLAIN, {"scale": 0.0}),
    "causal": (LONG, {"is_causal": True}),
    "causal, few keys": (LONG._replace(keys=7), {"is_causal": True}),
    "one query": (PLAIN._replace(queries=1, keys=300), {}),
    "shared keys": (PLAIN._replace(heads=6, shared=2), {"is_causal": True}),
    "one head of keys": (PLAIN._replace(shared=1), {}),
}


@pytest.mark.slow
@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("rows", [False, True], ids=["by head", "by row"])
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("name", CASES)
def test_attention_is_right(
    double: CupyDouble, monkeypatch: pytest.MonkeyPatch, name: str, dtype: str, rows: bool
) -> None:
    (s, attributes), _ = CASES[name], told(monkeypatch, FASTEST)
    found, wanted, engines = computed(double, s, dtype, rows=rows, **attributes)
    near = TOLERANCE[dtype]
    np.testing.assert_allclose(found.astype(np.float64), wanted, rtol=near, atol=near)
    assert engines == {12}


@pytest.mark.slow
@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("name", masks(LONG, "float32"))
def test_masks_are_added(
    double: CupyDouble, monkeypatch: pytest.MonkeyPatch, name: str, dtype: str, causal: bool
) -> None:
    told(monkeypatch, FASTEST)
    mask = masks(LONG, dtype)[name]
    found, wanted, engines = computed(double, LONG, dtype, mask, is_causal=causal)
    near = TOLERANCE[dtype]
    np.testing.assert_allclose(found.astype(np.float64), wanted, rtol=near, atol=near)
    assert engines == {12}


@pytest.mark.extended
@given(
    s=st.builds(
        lambda group, shared, **lengths: Sizes(heads=group * shared, shared=shared, **lengths),
        group=st.integers(1, 3),
        shared=st.integers(1, 3),
        batch=st.integers(1, 2),
        queries=st.integers(1, 9),
        keys=st.integers(1, 40),
        depth=st.sampled_from([8, 16, 24]),
        width=st.sampled_from([8, 32]),
    ),
    dtype=st.sampled_from(list(TOLERANCE)),
    rows=st.booleans(),
    causal=st.booleans(),
    masked=st.booleans(),
    scale=st.sampled_from([0.3, 1.5]),
)
def test_the_operations_are_those_of_attention(
    s: Sizes, dtype: str, rows: bool, causal: bool, masked: bool, scale: float
) -> None:
    """Of any lengths; numpy does what the graph says."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(choosing, "WORTH_MEASURING", 0)
        monkeypatch.setenv("PLAIT_KERNEL_CACHE", "off")
        monkeypatch.delenv("PLAIT_FIGURES", raising=False)
        told(monkeypatch, FASTEST)
        mask = drawn(s.batch, 1, s.queries, s.keys, dtype=dtype) if masked else None
        attributes: dict[str, Any] = {"is_causal": causal, "scale": scale}
        found, wanted, engines = computed(CupyDouble(0), s, dtype, mask, rows=rows, **attributes)
    near = TOLERANCE[dtype]
    np.testing.assert_allclose(found.astype(np.float64), wanted, rtol=near, atol=2 * near)
    assert engines == {12}


MISTAKES: dict[str, Callable[[Array], Array]] = {
    "a tenth too much": lambda y: y * 1.1,
    "no number in one place": lambda y: np.where(
        np.arange(y.size).reshape(y.shape) == 9, np.nan, y
    ),
    "nothing": lambda y: np.zeros_like(y),
    "other heads": lambda y: y[:, ::-1],
    "other samples": lambda y: y[::-1],
    "other queries": lambda y: np.roll(y, 1, axis=2),
    "one query missing": lambda y: np.where(np.arange(y.shape[2])[:, None] == 4, 0, y),
    "the mean of values": lambda y: np.broadcast_to(y.mean(2, keepdims=True), y.shape),
}


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("name", MISTAKES)
def test_what_gives_wrong_results_is_not_chosen(
    double: CupyDouble, monkeypatch: pytest.MonkeyPatch, name: str, dtype: str
) -> None:
    asked = told(monkeypatch, FASTEST)
    found, wanted, engines = computed(double, PLAIN, dtype, mistake=MISTAKES[name])
    assert (sorted(asked), engines) == (["cublas", "generated"], set())
    near = TOLERANCE[dtype]
    np.testing.assert_allclose(found.astype(np.float64), wanted, rtol=near, atol=near)


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("shape", [(2, 4, 19, 19), (1, 1, 1, 19), (19, 19)])
def test_what_gives_no_numbers_where_nothing_is_seen_has_no_masks(
    double: CupyDouble, monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...]
) -> None:
    """A mask may hide all keys, also where it is one row: then results are zeros."""
    asked = told(monkeypatch, FASTEST)
    mask = np.zeros(shape, np.float16)
    mask[..., :, :] = -np.inf
    found, _, engines = computed(double, LONG, "float16", mask, mistake=lambda y: y)
    assert (sorted(asked), engines) == (["cublas", "generated"], set())
    assert not found.any()


@pytest.mark.parametrize(
    ("sizes", "mask", "attributes"),
    [
        (PLAIN._replace(depth=12), None, {}),
        (PLAIN._replace(width=6), None, {}),
        (LONG, None, {"left_window_size": 4}),
        (LONG, None, {"right_window_size": 4}),
        (PLAIN, None, {"softcap": 0.5}),
        (PLAIN, some_hidden(5, 19), {}),
        (PLAIN, drawn(5, 12, dtype="float16"), {}),
        (PLAIN, drawn(5, 19, dtype="float32"), {}),
    ],
)
def test_other_attention_is_not_for_cudnn(
    sizes: Sizes, mask: Array | None, attributes: dict[str, Any]
) -> None:
    one = found_in(graph_of(feeds_of(sizes, "float16", mask), **attributes))
    assert one is not None
    assert not is_attention_for_cudnn(one)


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("refused", ["a plan", "a kernel", "room", "all"])
def test_what_cudnn_refuses_is_computed_by_others(
    double: CupyDouble, monkeypatch: pytest.MonkeyPatch, refused: str
) -> None:
    fed = feeds_of(PLAIN, "float16")
    refusing = refused in ("a plan", "a kernel")
    library = FakeCudnn(double.gpu, refused={11, 12, 14} if refusing else ())
    if refused == "a kernel":  # that is compiled, but not loaded
        monkeypatch.setattr(fake_cudnn, "NOT_SUPPORTED", 5001)
    if refused == "room":
        monkeypatch.setattr(fake_cudnn, "WORKSPACE", 1 << 30)
    if refused == "all":
        monkeypatch.setattr(fake_cudnn, "ENGINES", {})
        monkeypatch.setattr(fake_cudnn, "FALLBACKS", {})
    asked = told(monkeypatch, FASTEST)
    with Rig(double.generating(cudnn=lambda: library, graphs=True), graph_of(fed)) as rig:
        found = rig.run(fed)["y"]
    assert sorted(asked) == ["cublas", "generated"]
    assert library.calls == 0
    np.testing.assert_allclose(found, defined(PLAIN, fed, {}), rtol=2e-3, atol=2e-3)


@pytest.mark.usefixtures("folder")
def test_what_was_chosen_and_is_refused_later_is_computed_by_cublas(
    double: CupyDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    told(monkeypatch, FASTEST)
    assert computed(double, PLAIN, "float16")[2] == {12}
    fed, library = feeds_of(PLAIN, "float16"), Library(double)
    refusing = FakeCudnn(double.gpu, refused={12})
    device = double.generating(cudnn=lambda: refusing, cublas=library, tf32=True, graphs=True)
    with Rig(device, graph_of(fed)) as rig:
        found = rig.run(fed)["y"]
    assert (refusing.calls, library.cublas.calls > 0) == (0, True)
    np.testing.assert_allclose(found, defined(PLAIN, fed, {}), rtol=2e-3, atol=2e-3)


@pytest.mark.usefixtures("folder")
def test_it_is_compared_once_for_each_shape(
    double: CupyDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    told(monkeypatch, FASTEST)
    b, fed = pl.GraphBuilder("twice"), feeds_of(PLAIN, "float16")
    q, k, v = (b.input(name, x.dtype, x.shape) for name, x in fed.items())
    for name in "ab":
        b.output(name, b.op("Attention", q, b.op("Neg", k) if name == "b" else k, v))
    library = FakeCudnn(double.gpu)
    with Rig(double.generating(cudnn=lambda: library, graphs=True), b.build()) as rig:
        engines = [engine for engine, _ in library.computed]
        assert engines[:3] == [11, 12, 14]  # compared
        assert set(engines[3:]) == {12}  # loaded, and recorded for both
        rig.run(fed)


@pytest.mark.usefixtures("folder")
def test_keys_may_be_constants(double: CupyDouble, monkeypatch: pytest.MonkeyPatch) -> None:
    told(monkeypatch, FASTEST)
    b, fed, library = pl.GraphBuilder("learnt"), feeds_of(PLAIN, "float16"), FakeCudnn(double.gpu)
    q = b.input("q", "float16", fed["q"].shape)
    b.output("y", b.op("Attention", q, b.constant(fed["k"]), b.constant(fed["v"])))
    with Rig(double.generating(cudnn=lambda: library, graphs=True), b.build()) as rig:
        found = rig.run({"q": fed["q"]})["y"]
        assert 12 in {engine for engine, _ in library.computed}
    np.testing.assert_allclose(found, defined(PLAIN, fed, {}), rtol=2e-3, atol=2e-3)


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("seed", SEEDS[:3])
def test_items_in_flight_do_not_meet(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    told(monkeypatch, FASTEST)
    double, s = CupyDouble(seed), PLAIN._replace(depth=16)
    b, first = pl.GraphBuilder("twice"), feeds_of(s, "float16")
    q, k, v = (b.input(name, x.dtype, x.shape) for name, x in first.items())
    b.output("y", b.op("Attention", b.op("Attention", q, k, v), k, v))
    library = FakeCudnn(double.gpu)
    device = double.generating(cudnn=lambda: library)
    plan = pl.plan(b.build(), [device], max_in_flight=2)
    feeds = [{**first, "q": first["q"] * np.float16(number)} for number in range(1, 5)]
    for found, fed in zip(trio.run(items, plan, feeds), feeds, strict=True):
        wanted = defined(s, {**fed, "q": defined(s, fed, {})}, {})
        np.testing.assert_allclose(found, wanted, rtol=4e-3, atol=4e-3)
    gc.collect()
    assert (library.open, library.descriptors) == (0, 0)
    assert library.calls > 0


def test_the_workspace_is_the_one_that_is_planned_for_products() -> None:
    one = found_in(graph_of(feeds_of(PLAIN, "float16")))
    assert one is not None
    assert one.scratch[0].nbytes == one.workspace_nbytes
