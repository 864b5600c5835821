"""Attention in one kernel: a tile of queries by a tile of keys at a time, in shared memory.

Tiles of keys are visited in order. For each query the kernel keeps the greatest score so far and
the sums of exponentials, alone and times the values, relative to that score. A greater score
rescales both sums (Milakov and Gimelshein, 2018; Dao and others, 2022).
"""

from __future__ import annotations

from typing import NamedTuple

from ...graph.core.operator import Call, Specs
from ...graph.operators.attention import (
    MASK,
    PAST_KEY,
    USED,
    get_scale,
    get_window,
    infer_attention,
)
from .indexing import broadcast_strides, choose_index_type
from .reduction import declare_input, declare_output
from .registry import THREADS, Code, Kernel, generates
from .types import load, load_factor, store, to_computed_type, write_literal

LANES = 8
"""Threads that share a row."""
ROWS = THREADS // LANES
"""Queries in a tile."""
SHARED_BYTES = 32 << 10
"""The shared memory of a group on every OpenCL device; CUDA has 48 KiB by default."""

_NBYTES = {"f32": 4, "f64": 8}
BY_HEADS = 4
"""The rank of inputs with an axis of heads."""


def _refuse(call: Call) -> str | None:
    if call.n_outputs > 1:
        return "scores and states are not written by the generated kernel"
    if call.has(PAST_KEY) or call.has(USED):
        return "states are not read by the generated kernel"
    dtypes = {call.spec(index).dtype for index in (0, 1, 2)}
    if len(dtypes) > 1:
        return "values are of another dtype than keys"
    c, asked = to_computed_type(call.spec(0).dtype), call.attributes["softmax_precision"]
    if asked == "float64" and c != "f64":
        return "the distribution is asked for in float64"
    _, key, value, _ = infer_attention(call)
    if key.shape is None or value.shape is None:
        return None
    depth, width = key.shape[3], value.shape[3]
    if not isinstance(depth, int) or not isinstance(width, int):
        return None
    if not depth or not _count_tile_keys(depth, width, c):
        return f"queries of {depth} elements and values of {width} do not fit into a group"
    return None


def _count_tile_keys(depth: int, width: int, c: str) -> int:
    """Return how many keys of `depth` and values of `width` fit in a tile of type `c`: up to 32."""
    for keys in (32, 16, LANES):
        # Queries, keys, values, weights. Rows are padded by one number, so that threads that go
        # down a column access different banks.
        numbers = (ROWS + keys) * (depth + 1) + keys * width + ROWS * (keys + 1)
        if numbers * _NBYTES[c] <= SHARED_BYTES:
            return keys
    return 0


class AttentionShape(NamedTuple):
    """The lengths of an attention, and the strides of (batch, heads, rows) in q, k, v and y.

    `group` heads of queries share one of keys.
    """

    batch: int
    heads: int
    queries: int
    keys: int
    depth: int
    width: int
    group: int
    q: tuple[int, int, int]
    k: tuple[int, int, int]
    v: tuple[int, int, int]
    y: tuple[int, int, int]


def infer_attention_shape(call: Call) -> AttentionShape:
    """Return lengths and strides of `call`, an Attention of static shapes."""
    _, key, value, scores = infer_attention(call)
    batch, heads, queries, keys = scores.static_shape
    shared, depth, width = key.static_shape[1], key.static_shape[3], value.static_shape[3]
    by_heads = call.spec(0).rank == BY_HEADS

    def strides(count: int, length: int, elements: int) -> tuple[int, int, int]:
        whole = count * length * elements
        return (
            (whole, length * elements, elements)
            if by_heads
            else (whole, elements, whole // max(length, 1))
        )

    return AttentionShape(
        batch,
        heads,
        queries,
        keys,
        depth,
        width,
        heads // max(shared, 1),
        strides(heads, queries, depth),
        strides(shared, keys, depth),
        strides(shared, keys, width),
        strides(heads, queries, width),
    )


@generates("Attention", unless=_refuse)
def attention(call: Call, outputs: Specs) -> Code:
    """Return code for `call` and `outputs`; queries without keys yield 0."""
    s, c, y = infer_attention_shape(call), to_computed_type(call.spec(0).dtype), outputs[0]
    if not y.size:
        return Code(())
    specs = [spec for spec in (*call.inputs, y) if spec is not None]
    parameters = [declare_input(call.spec(i), name, i) for i, name in enumerate("qkv")]
    if call.has(MASK):
        parameters.append(declare_input(call.spec(MASK), "mask", MASK))
    # A group for each tile of queries of each head, which loops over the keys.
    tiles = -(-s.queries // ROWS)
    body = _BODY.format(
        index=choose_index_type(*(spec.size + (1 << 16) for spec in specs)),
        c=c,
        rows=ROWS,
        lanes=LANES,
        threads=THREADS,
        tile=_count_tile_keys(s.depth, s.width, c),
        tiles=tiles,
        heads=s.heads,
        group=s.group,
        queries=s.queries,
        keys=s.keys,
        depth=s.depth,
        width=s.width,
        each=-(-s.width // LANES),
        zero=write_literal(0, c),
        lowest=write_literal(float("-inf"), c),
        starts="\n".join(_declare_starts(s)),
        range="\n".join(_declare_range(call, s)),
        read_q=f"{load_factor(call.spec(0).dtype, 'q', f'q_start + (first + row) * {s.q[2]} + d')}"
        f" * {write_literal(get_scale(call.attributes, s.depth), c)}",
        read_k=load_factor(call.spec(1).dtype, "k", f"k_start + (start + row) * {s.k[2]} + d"),
        read_v=load_factor(call.spec(2).dtype, "v", f"v_start + (start + row) * {s.v[2]} + d"),
        score="\n            ".join(write_score(call, s, c)),
        write=store(
            y.dtype,
            "y",
            f"y_start + (first + row) * {s.y[2]} + column",
            f"total == {write_literal(0, c)} ? {write_literal(0, c)} : sums[i] / total",
        ),
    )
    parameters.append(declare_output(y))
    groups = tiles * s.heads * s.batch
    return Code((Kernel("attention", tuple(parameters), body, groups),))


def _declare_starts(s: AttentionShape) -> list[str]:
    """Return the statements that declare the offsets of a group's heads; `s` has the lengths."""
    return [
        f"const index {name}_start = batch * {strides[0]} + {head} * {strides[1]};"
        for name, head, strides in (
            ("q", "head", s.q),
            ("k", f"(head / {s.group})", s.k),
            ("v", f"(head / {s.group})", s.v),
            ("y", "head", s.y),
        )
    ]


def count_visible_keys(call: Call, s: AttentionShape) -> int:
    """Return how many keys `call`, of lengths `s`, shows: ONNX hides those beyond a mask."""
    return min(s.keys, call.spec(MASK).static_shape[-1]) if call.has(MASK) else s.keys


def _declare_range(call: Call, s: AttentionShape) -> list[str]:
    left, right = get_window(call.attributes)
    seen = count_visible_keys(call, s)
    end = str(seen)
    if right is not None:
        # For the last query of the tile; `write_score` hides keys from the others.
        after = f"first + {ROWS + right}"
        end = f"({after} < {seen} ? {after} : {seen})"
    begin = "0" if left is None else f"(first > {left} ? first - {left} : 0)"
    return [f"const index begin = {begin};", f"const index end = {end};"]


def write_score(call: Call, s: AttentionShape, c: str) -> list[str]:
    """Return statements that turn the variable score from a product into a masked score.

    `call` is the Attention, `s` has its lengths. They compute in the C type `c`, and read the
    variables batch, head, query, key, end, and mask if there is one.
    """
    statements, cap = [], call.attributes["softcap"]
    left, right = get_window(call.attributes)
    if cap:
        number = write_literal(cap, c)
        statements.append(f"score = {number} * tanh(score / {number});")
    unseen = ["key >= end"]
    if call.has(MASK):
        mask = call.spec(MASK)
        lengths = (s.batch, s.heads, s.queries, mask.static_shape[-1])
        strides = broadcast_strides(mask.static_shape, lengths)
        at = " + ".join(
            f"{name} * {stride}"
            for name, stride in zip(("batch", "head", "query", "key"), strides, strict=True)
        )
        value = load(mask.dtype, "mask", at)
        inside = f"query < {s.queries} && key < end"
        if mask.dtype == bool:
            unseen.append(f"!({inside} && {value})")
        else:
            statements.append(f"if ({inside}) score += ({c})({value});")
    if right is not None:
        unseen.append(f"key > query + {right}")
    if left is not None:
        unseen.append(f"key < query - {left}")
    # Last, so that neither a mask's numbers nor a cap make hidden keys visible.
    statements.append(f"if ({' || '.join(unseen)}) score = {write_literal(float('-inf'), c)};")
    return statements


_BODY = """\
typedef {index} index;
SHARED {c} queries[{rows} * ({depth} + 1)];
SHARED {c} keys[{tile} * ({depth} + 1)];
SHARED {c} values[{tile} * {width} + 1];
SHARED {c} weights[{rows} * ({tile} + 1)];
const index batch = GROUP / {tiles} / {heads}, head = GROUP / {tiles} % {heads};
const index first = (index)(GROUP % {tiles}) * {rows};
{starts}
{range}
for (i32 at = THREAD; at < {rows} * {depth}; at += {threads}) {{
    const index row = at / {depth}, d = at % {depth};
    queries[row * ({depth} + 1) + d] = first + row < {queries} ? {read_q} : {zero};
}}
const i32 row = THREAD / {lanes}, lane = THREAD % {lanes};
const index query = first + row;
{c} peak = {lowest}, total = {zero}, sums[{each}], own[{tile} / {lanes}];
for (i32 i = 0; i < {each}; i++) sums[i] = {zero};
for (index start = begin; start < end; start += {tile}) {{
    BARRIER;
    for (i32 at = THREAD; at < {tile} * {depth}; at += {threads}) {{
        const index row = at / {depth}, d = at % {depth};
        keys[row * ({depth} + 1) + d] = start + row < end ? {read_k} : {zero};
    }}
    for (i32 at = THREAD; at < {tile} * {width}; at += {threads}) {{
        const index row = at / {width}, d = at % {width};
        values[at] = start + row < end ? {read_v} : {zero};
    }}
    BARRIER;
    for (i32 i = 0; i < {tile} / {lanes}; i++) own[i] = {zero};
    for (i32 d = 0; d < {depth}; d++) {{
        const {c} factor = queries[row * ({depth} + 1) + d];
        for (i32 i = 0; i < {tile} / {lanes}; i++)
            own[i] += factor * keys[(lane + i * {lanes}) * ({depth} + 1) + d];
    }}
    for (i32 i = 0; i < {tile} / {lanes}; i++) {{
        const index key = start + lane + i * {lanes};
        {c} score = own[i];
            {score}
        own[i] = score;
        weights[row * ({tile} + 1) + lane + i * {lanes}] = score;
    }}
    BARRIER;
    {c} best = peak;
    for (i32 i = 0; i < {tile}; i++) best = fmax(best, weights[row * ({tile} + 1) + i]);
    const {c} shift = best == {lowest} ? {zero} : best, shrunk = exp(peak - shift);
    peak = best;
    BARRIER;
    for (i32 i = 0; i < {tile} / {lanes}; i++)
        weights[row * ({tile} + 1) + lane + i * {lanes}] = exp(own[i] - shift);
    BARRIER;
    total *= shrunk;
    for (i32 i = 0; i < {each}; i++) sums[i] *= shrunk;
    for (i32 j = 0; j < {tile}; j++) {{
        const {c} weight = weights[row * ({tile} + 1) + j];
        total += weight;
        for (i32 i = 0; i < {each}; i++) {{
            const i32 column = lane + i * {lanes};
            if (column < {width}) sums[i] += weight * values[j * {width} + column];
        }}
    }}
}}
for (i32 i = 0; i < {each}; i++) {{
    const i32 column = lane + i * {lanes};
    if (query < {queries} && column < {width}) {{
        {write}
    }}
}}"""
