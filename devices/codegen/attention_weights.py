"""The weights of attention from its scores, for devices on which libraries multiply."""

from __future__ import annotations

from ...graph.operator import Call
from ...graph.operators.attention import MASK
from .dot_attention import AttentionShape, score_statements, seen_keys
from .indexing import index_type
from .kernel import THREADS, Kernel, Parameter, groups_of
from .reduction import input_of
from .types import ctype, literal, store

EACH = 8
"""Scores of a row that a thread has, unless all threads of a group have more."""
MOST_KEYS = 32 * THREADS
"""Of a row that a group keeps in its registers."""


def attention_weights(
    call: Call, shape: AttentionShape, row: int, first: int, heads: int
) -> Kernel:
    """Return the kernel that makes a distribution of each query's scores; of none, zeros.

    It reads `scores`, (heads, queries, row) float32, which are scaled, but neither capped nor
    masked, and writes `weights` of the dtype of queries, in the same places; with float32 there is
    one buffer, `scores`. What lies behind the keys of a row stays as it is.

    Parameters
    ----------
    call : Call
        Of an Attention of static shapes.
    row : int
        Elements from one row to the next, at least one for each key.
    first, heads : int
        Number of the first head, counted through all samples, and how many there are.
    """
    dtype = call.spec(0).dtype
    lanes = 1 << max(0, min(shape.keys // EACH, THREADS).bit_length() - 1)
    lines = heads * shape.queries
    written = "scores" if dtype.name == "float32" else "weights"
    parameters = [Parameter("scores", "f32", "scratch", 0)]
    if written != "scores":
        parameters.append(Parameter(written, ctype(dtype), "scratch", 0))
    if call.has(MASK):
        mask = call.spec(MASK)
        parameters.append(input_of(mask, "mask", MASK))
        # One mask for all heads: the kernel is the same for those that come later.
        first = first if any(length > 1 for length in mask.static_shape[:-2]) else 0
    else:
        first = 0
    sizes = [spec.size for spec in call.inputs if spec is not None]
    body = _BODY.format(
        index=index_type(*(size + (1 << 16) for size in (*sizes, lines * row))),
        threads=THREADS,
        lanes=lanes,
        held=THREADS // lanes,
        each=-(-shape.keys // lanes),
        lines=lines,
        last=lines - 1,
        first=first,
        heads=shape.heads,
        queries=shape.queries,
        keys=shape.keys,
        row=row,
        seen=seen_keys(call, shape),
        lowest=literal(float("-inf"), "f32"),
        score="\n    ".join(score_statements(call, shape, "f32")),
        write=store(dtype, written, f"line * {row} + key", "total == 0.0f ? 0.0f : own[i] / total"),
    )
    groups = groups_of(lines * lanes)
    return Kernel("attention_weights", tuple(parameters), body, groups)


_BODY = """\
typedef {index} index;
SHARED f32 shared[{threads}];
const i32 lane = THREAD % {lanes};
const index wanted = (index)GROUP * {held} + THREAD / {lanes};
const index line = wanted < {lines} ? wanted : {last};
const index query = line % {queries}, unit = line / {queries} + {first};
const index batch = unit / {heads}, head = unit % {heads}, end = {seen};
f32 own[{each}], peak = {lowest}, total = 0.0f;
#pragma unroll
for (i32 i = 0; i < {each}; i++) {{
    const index key = lane + i * {lanes};
    f32 score = key < {keys} ? scores[line * {row} + key] : {lowest};
    {score}
    own[i] = score;
    peak = fmax(peak, score);
}}
shared[THREAD] = peak;
BARRIER;
for (i32 width = {lanes} / 2; width > 0; width /= 2) {{
    if (lane < width) shared[THREAD] = fmax(shared[THREAD], shared[THREAD + width]);
    BARRIER;
}}
peak = shared[THREAD - lane];
BARRIER;
const f32 shift = peak == {lowest} ? 0.0f : peak;
#pragma unroll
for (i32 i = 0; i < {each}; i++) {{
    own[i] = exp(own[i] - shift);
    total += own[i];
}}
shared[THREAD] = total;
BARRIER;
for (i32 width = {lanes} / 2; width > 0; width /= 2) {{
    if (lane < width) shared[THREAD] += shared[THREAD + width];
    BARRIER;
}}
total = shared[THREAD - lane];
#pragma unroll
for (i32 i = 0; i < {each}; i++) {{
    const index key = lane + i * {lanes};
    if (wanted < {lines} && key < {keys}) {{
        {write}
    }}
}}"""
