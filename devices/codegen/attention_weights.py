"""The softmax of attention scores, for devices on which libraries compute the products."""

from __future__ import annotations

from ...graph.core.operator import Call
from ...graph.operators.attention import MASK
from .dot_attention import AttentionShape, count_visible_keys, write_score
from .indexing import choose_index_type
from .reduction import declare_input
from .registry import THREADS, Kernel, Parameter, count_groups
from .types import store, to_ctype, write_literal

EACH = 8
"""Scores of a row per thread, unless all threads of a group have more."""
MOST_KEYS = 32 * THREADS
"""Longest row that a group keeps in registers."""


def make_attention_weights(
    call: Call, shape: AttentionShape, row: int, first: int, heads: int
) -> Kernel:
    """Return the kernel that turns scores into weights; queries that see no key get zeros.

    It reads its parameter "scores", (heads, queries, `row`) float32, which are scaled but neither
    capped nor masked, and writes "weights" in the queries' dtype at the same places; for float32
    both are one buffer. Scores after the last key are left unchanged. `call` is the Attention,
    `shape` has its lengths. The kernel serves `heads` heads from `first` on, over all samples.
    """
    dtype = call.spec(0).dtype
    lanes = 1 << max(0, min(shape.keys // EACH, THREADS).bit_length() - 1)
    lines = heads * shape.queries
    written = "scores" if dtype.name == "float32" else "weights"
    parameters = [Parameter("scores", "f32", "scratch", 0)]
    if written != "scores":
        parameters.append(Parameter(written, to_ctype(dtype), "scratch", 0))
    if call.has(MASK):
        mask = call.spec(MASK)
        parameters.append(declare_input(mask, "mask", MASK))
        # One mask for all heads: later heads use the same kernel.
        first = first if any(length > 1 for length in mask.static_shape[:-2]) else 0
    else:
        first = 0
    sizes = [spec.size for spec in call.inputs if spec is not None]
    body = _BODY.format(
        index=choose_index_type(*(size + (1 << 16) for size in (*sizes, lines * row))),
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
        seen=count_visible_keys(call, shape),
        lowest=write_literal(float("-inf"), "f32"),
        score="\n    ".join(write_score(call, shape, "f32")),
        write=store(dtype, written, f"line * {row} + key", "total == 0.0f ? 0.0f : own[i] / total"),
    )
    groups = count_groups(lines * lanes)
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
