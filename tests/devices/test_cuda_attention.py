"""Attention by products of cuBLAS, against its definition; the library checks what it is given."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import plait as pl
import pytest
import trio
from cupy_double import CupyDouble
from fake_gpu import SEEDS
from plait.devices.cuda import attention, choosing, cublas
from plait.devices.cuda.attention import StaticAttention, match_attention
from plait.graph.core.ir import Graph
from plait.graph.values.dtypes import dtype_of
from plait.graph.values.tensor import Array

from .rig import Rig
from .test_cuda_cublas import Library, answering
from .test_cuda_cudnn import folder, told

__all__ = ["folder"]  # a fixture

TOLERANCE = {"float16": 2e-3, "bfloat16": 2e-2, "float32": 1e-5}
"""Beside float64: two roundings to the dtype, of weights and of results, which are about 1."""


class Sizes(NamedTuple):
    batch: int = 2
    heads: int = 4
    shared: int = 4
    queries: int = 5
    keys: int = 19
    depth: int = 8
    width: int = 6


def drawn(*shape: int, dtype: str = "float64", seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype_of(dtype))


def feeds_of(s: Sizes, dtype: str, mask: Array | None = None, *, rows: bool = False) -> Any:
    """Return queries, keys, values and a mask; with `rows` heads lie side by side in them."""
    lengths = {"q": (s.heads, s.queries, s.depth), "k": (s.shared, s.keys, s.depth)}
    lengths["v"] = s.shared, s.keys, s.width
    fed = {}
    for seed, (name, shape) in enumerate(lengths.items()):
        fed[name] = drawn(s.batch, *shape, dtype=dtype, seed=seed)
        if rows:
            fed[name] = by_row(fed[name])
    return fed if mask is None else {**fed, "mask": mask}


def by_row(x: Array) -> Array:
    return x.transpose(0, 2, 1, 3).reshape(x.shape[0], x.shape[2], x.shape[1] * x.shape[3])


def graph_of(fed: Mapping[str, Array], **attributes: Any) -> Graph:
    b = pl.GraphBuilder("attention")
    inputs = [b.input(name, x.dtype, x.shape) for name, x in fed.items()]
    b.output("y", b.op("Attention", *inputs, **attributes))
    return b.build()


def defined(s: Sizes, fed: Mapping[str, Array], attributes: Mapping[str, Any]) -> Array:
    """Return what ONNX defines, in float64."""
    wide = {name: x.astype(np.float64) for name, x in fed.items() if name != "mask"}
    if fed["q"].ndim == 3:
        heads = {"q": s.heads, "k": s.shared, "v": s.shared}
        for name, x in wide.items():
            parts = x.reshape(s.batch, x.shape[1], heads[name], -1)
            wide[name] = parts.transpose(0, 2, 1, 3)
    k, v = (wide[name].repeat(s.heads // s.shared, axis=1) for name in "kv")
    scores = wide["q"] @ k.swapaxes(2, 3) * attributes.get("scale", s.depth**-0.5)
    if cap := attributes.get("softcap"):
        scores = cap * np.tanh(scores / cap)
    ahead = np.arange(s.keys) - np.arange(s.queries)[:, None]
    if attributes.get("is_causal"):
        scores = np.where(ahead > 0, -np.inf, scores)
    if "left_window_size" in attributes:
        scores = np.where(-ahead > attributes["left_window_size"], -np.inf, scores)
    if "mask" in fed:
        mask = fed["mask"]
        bias = np.where(mask, 0, -np.inf) if mask.dtype == bool else mask.astype(np.float64)
        unseen = [(0, 0)] * (bias.ndim - 1) + [(0, s.keys - bias.shape[-1])]
        scores = scores + np.pad(bias, unseen, constant_values=-np.inf)
    peak = scores.max(-1, keepdims=True)
    powers = np.exp(scores - np.where(np.isinf(peak), 0, peak))
    total = powers.sum(-1, keepdims=True)
    y = powers / np.where(total == 0, 1, total) @ v
    return by_row(y) if fed["q"].ndim == 3 else y


def some_hidden(*shape: int) -> Array:
    """Return a mask of truth values that hides all keys from the first query."""
    mask = drawn(*shape, seed=9) > 0
    mask[..., 0, :] = False
    return mask


PLAIN = Sizes()
CASES: dict[str, tuple[Sizes, Array | None, dict[str, Any]]] = {
    "plain": (PLAIN, None, {}),
    "scaled": (PLAIN, None, {"scale": 0.7}),
    "capped": (PLAIN, None, {"softcap": 0.5}),
    "causal": (PLAIN._replace(queries=19), None, {"is_causal": True}),
    "window": (PLAIN._replace(queries=19), None, {"is_causal": True, "left_window_size": 4}),
    "one query": (PLAIN._replace(queries=1, keys=300), None, {}),
    "many keys": (Sizes(1, 2, 2, 3, 4100, 8, 8), None, {}),
    "few keys": (PLAIN._replace(keys=3), None, {}),
    "hidden": (PLAIN, some_hidden(5, 19), {}),
    "hidden by sample": (PLAIN, some_hidden(2, 1, 5, 19), {}),
    "hidden by head": (PLAIN, some_hidden(4, 5, 19), {}),
    "added to": (PLAIN, drawn(2, 4, 5, 19, dtype="float32", seed=8), {}),
    "a short mask": (PLAIN, drawn(1, 1, 1, 12, dtype="float32", seed=8), {}),
    "shared keys": (PLAIN._replace(heads=6, shared=2), some_hidden(6, 5, 19), {}),
    "one head of keys": (PLAIN._replace(shared=1), None, {"is_causal": True}),
}


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have cuBLAS compute small ones."""
    monkeypatch.setattr(attention, "LEAST", 0)


def found_in(graph: Graph, *, tf32: bool = False) -> StaticAttention | None:
    (node,) = graph.nodes
    return match_attention(node, graph.call(node), graph.output_specs(node), tf32=tf32)


@pytest.mark.parametrize("rows", [False, True], ids=["by head", "by row"])
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("name", CASES)
def test_attention_is_right(double: CupyDouble, name: str, dtype: str, rows: bool) -> None:
    s, mask, attributes = CASES[name]
    fed = feeds_of(s, dtype, mask, rows=rows)
    heads = {"q_num_heads": s.heads, "kv_num_heads": s.shared} if rows else {}
    graph, library = graph_of(fed, **attributes, **heads), Library(double)
    with Rig(double.generating(cublas=library, tf32=True), graph) as rig:
        found = rig.run(fed)["y"]
    wanted, near = defined(s, fed, attributes), TOLERANCE[dtype]
    np.testing.assert_allclose(found.astype(np.float64), wanted, rtol=near, atol=near)
    assert library.cublas.calls > 0


def room_for(monkeypatch: pytest.MonkeyPatch, heads: int, nbytes_of_one: int) -> None:
    monkeypatch.setattr(attention, "MOST_NBYTES", heads * nbytes_of_one)


@pytest.mark.parametrize("rows", [False, True], ids=["by head", "by row"])
@pytest.mark.parametrize("room", [1, 2, 3, 4, 5, 8])
@pytest.mark.parametrize("shared", [4, 2, 1])
def test_scores_of_some_heads_at_a_time_give_the_same(
    double: CupyDouble, monkeypatch: pytest.MonkeyPatch, room: int, rows: bool, shared: int
) -> None:
    s = PLAIN._replace(shared=shared)
    fed = feeds_of(s, "float16", some_hidden(2, 4, 5, 19), rows=rows)
    heads = {"q_num_heads": s.heads, "kv_num_heads": s.shared} if rows else {}
    graph = graph_of(fed, **heads)
    room_for(monkeypatch, room, 5 * 24 * (4 + 2))
    one = found_in(graph)
    if one is None:  # heads that are one matrix, and too large together
        assert not rows
        assert room < s.heads // shared
        return
    assert one.at_once <= room
    assert sum(spec.nbytes for spec in one.scratch[1:]) <= attention.MOST_NBYTES
    with Rig(double.generating(), graph) as rig:
        found = rig.run(fed)["y"]
    np.testing.assert_allclose(found, defined(s, fed, {}), rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize(
    ("sizes", "dtype", "why"),
    [
        (PLAIN, "float32", "exact"),
        (PLAIN, "float64", "no tensor cores"),
        (PLAIN._replace(keys=8200), "float16", "not in the registers of a group"),
        (PLAIN._replace(queries=0), "float16", "nothing to do"),
        (Sizes(65, 1, 1), "float16", "a product for each sample"),
    ],
)
def test_other_attention_is_generated(sizes: Sizes, dtype: str, why: str) -> None:
    fed = feeds_of(sizes, dtype, rows=True)
    graph = graph_of(fed, q_num_heads=sizes.heads, kv_num_heads=sizes.shared)
    assert found_in(graph) is None, why


def test_attention_is_generated_where_it_is_small_or_its_scores_are_large(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    graph = graph_of(feeds_of(PLAIN, "float16"))
    sums = 2 * 4 * 5 * 19 * (8 + 6)
    for least, taken in ((2 * sums, True), (2 * sums + 1, False)):
        monkeypatch.setattr(attention, "LEAST", least)
        assert (found_in(graph) is not None) is taken
    monkeypatch.setattr(attention, "LEAST", 0)
    for nbytes, taken in ((5 * 24 * 6, True), (5 * 24 * 6 - 1, False)):
        monkeypatch.setattr(attention, "MOST_NBYTES", nbytes)
        assert (found_in(graph) is not None) is taken


@pytest.mark.parametrize(("tf32", "computed"), [(True, {77}), (False, set())])
def test_float32_is_rounded_only_when_that_is_asked_for(
    double: CupyDouble, tf32: bool, computed: set[int]
) -> None:
    fed, library = feeds_of(PLAIN, "float32"), Library(double)
    with Rig(double.generating(cublas=library, tf32=tf32), graph_of(fed)) as rig:
        rig.run(fed)
    assert library.cublas.computed == computed


def test_attention_that_is_written_out_is_put_together_and_computed_so(double: CupyDouble) -> None:
    b, s, fed = pl.GraphBuilder("written out"), PLAIN, feeds_of(PLAIN, "float32")
    q, k, v = (b.input(name, x.dtype, x.shape) for name, x in fed.items())
    scores = b.op("MatMul", q, b.op("Transpose", k, perm=(0, 1, 3, 2)))
    weights = b.op("Softmax", b.op("Mul", scores, np.float32(0.7)))
    b.output("y", b.op("MatMul", weights, v))
    library = Library(double)
    plan = pl.plan(b.build(), [double.generating(cublas=library, tf32=True)])
    assert [node.op for node in plan.graph.nodes] == ["Attention"]
    (found,) = trio.run(items, plan, [fed])
    np.testing.assert_allclose(found, defined(s, fed, {"scale": 0.7}), rtol=1e-5, atol=1e-5)
    assert library.cublas.computed == {77}


async def items(plan: pl.Plan, feeds: list[dict[str, Array]]) -> list[Array]:
    async with pl.Session(plan) as session:
        async with session.stream(feeds) as results:
            return [item["y"] async for item in results]


@pytest.mark.parametrize("seed", SEEDS[:3])
def test_items_in_flight_do_not_meet(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    room_for(monkeypatch, 2, 5 * 24 * 6)
    b, first = pl.GraphBuilder("twice"), feeds_of(PLAIN._replace(width=8), "float16")
    q, k, v = (b.input(name, x.dtype, x.shape) for name, x in first.items())
    b.output("y", b.op("Attention", b.op("Attention", q, k, v), k, v))
    plan = pl.plan(b.build(), [CupyDouble(seed).generating()], max_in_flight=2)
    feeds = [{**first, "q": first["q"] * np.float16(number)} for number in range(1, 5)]
    wide = PLAIN._replace(width=8)
    for found, fed in zip(trio.run(items, plan, feeds), feeds, strict=True):
        wanted = defined(wide, {**fed, "q": defined(wide, fed, {})}, {})
        np.testing.assert_allclose(found, wanted, rtol=4e-3, atol=4e-3)


def test_what_cublas_refuses_is_generated(
    double: CupyDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    answering(15, monkeypatch)
    fed = feeds_of(PLAIN, "float16")
    with Rig(double.generating(graphs=False), graph_of(fed)) as rig:
        before = double.cuda.driver.launches
        found = rig.run(fed)["y"]
        assert double.cuda.driver.launches == before + 1
    np.testing.assert_allclose(found, defined(PLAIN, fed, {}), rtol=2e-3, atol=2e-3)


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(("products", "calls"), [(1.0, 2), (3.0, 0)])
def test_the_fastest_computes(
    double: CupyDouble, monkeypatch: pytest.MonkeyPatch, products: float, calls: int
) -> None:
    fed, asked = (
        feeds_of(PLAIN, "float16"),
        told(monkeypatch, {"cublas": products, "generated": 2.0}),
    )
    library = Library(double)
    monkeypatch.setattr(choosing, "WORTH_MEASURING", 0)
    with Rig(double.generating(cublas=library, graphs=True), graph_of(fed)) as rig:
        assert sorted(asked) == ["cublas", "generated"]
        before = library.cublas.calls
        rig.device.compile(rig.graph, rig.views)
        assert len(asked) == 2, "measured again"
        assert library.cublas.calls - before == calls  # as they are recorded
        rig.run(fed)


@pytest.mark.usefixtures("folder")
def test_what_is_measured_is_right(double: CupyDouble) -> None:
    fed = feeds_of(PLAIN, "float16", some_hidden(4, 5, 19))
    with Rig(double.generating(), graph_of(fed)) as rig:
        found = rig.run(fed)["y"]
    np.testing.assert_allclose(found, defined(PLAIN, fed, {}), rtol=2e-3, atol=2e-3)


def test_scores_and_weights_are_planned_as_scratch_buffers(double: CupyDouble) -> None:
    graph = graph_of(feeds_of(PLAIN, "float16"))
    (node,), device = graph.nodes, double.generating()
    scratch = device.scratch(node, graph.call(node), graph.output_specs(node))
    room = 2 * 4 * 5, 24  # rows of a multiple of eight
    assert [spec.nbytes for spec in scratch] == [64 << 10, 4 * np.prod(room), 2 * np.prod(room)]


def test_heads_that_lie_side_by_side_are_read_in_place() -> None:
    """A product for each sample, and one kernel between: nothing is turned or copied."""
    fed = feeds_of(PLAIN, "float16", rows=True)
    one = found_in(graph_of(fed, q_num_heads=4, kv_num_heads=4))
    assert one is not None
    assert [block.head for block in one.blocks()] == [0, 4]
    assert (one.scores.batch, one.scores.a.row, one.scores.a.stride) == (4, 4 * 8, 8)
    assert one.at_once == 8
    assert (one.scores.alignment, one.values.alignment) == (64, 16)


def test_the_double_finds_addresses_that_cublas_was_not_told_of(
    double: CupyDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the alignment that plait tells of would not be tested."""
    monkeypatch.setattr(cublas, "ALIGNMENTS", ())
    fed, library = feeds_of(PLAIN, "float16", rows=True), Library(double)
    graph = graph_of(fed, q_num_heads=4, kv_num_heads=4)
    with Rig(double.generating(cublas=library, graphs=False), graph) as rig:
        before = library.cublas.calls
        rig.run(fed)
        assert library.cublas.calls == before, "generated instead"
