"""Exact generators on boxes: filtering by score, and suppression of overlapping boxes.

A group of threads handles the boxes of a sample. Scores are ranked by counting the better ones, a
step per pair of boxes and a thread per box.
"""

from __future__ import annotations

from ....devices.codegen.cells import declare_numbers, make_cell_kernel
from ....devices.codegen.functions import find_functions
from ....devices.codegen.indexing import choose_index_type
from ....devices.codegen.registry import THREADS, Code, Kernel, Parameter, generates
from ....devices.codegen.types import write_literal
from ....graph.core.operator import Call, Specs
from ....graph.values.tensor import TensorSpec
from ..operators.detection import FIRST_TOO_LARGE

_COUNTED = "const i32 count = min_i32(max_i32(counts[{}], 0), {});"


@generates("cvm.get_valid_counts")
def valid_counts(call: Call, outputs: Specs) -> Code:
    # A scan, block by block, computes the place of each box: see `codegen.reduction`.
    x = call.spec(0)
    samples, boxes, width = x.static_shape
    threshold = write_literal(call.attributes["score_threshold"], "i32")
    given = [declare_numbers("x", x, "input"), declare_numbers("counts", outputs[0], "output")]
    copy, fill = "", ""
    if len(outputs) > 1:
        given.append(declare_numbers("y", outputs[1], "output", 1))
        copy = f"""
    if (taken) for (i32 n = 0; n < {width}; n++)
        y[(first + total + part[THREAD] - 1) * {width} + n] = x[(first + box) * {width} + n];"""
        fill = f"""
for (index n = (index)total * {width} + THREAD; n < {boxes * width}; n += {THREADS})
    y[first * {width} + n] = -1;"""
    body = f"""\
typedef {choose_index_type(x.size + THREADS * width)} index;
SHARED i32 part[{THREADS}];
const index first = (index)GROUP * {boxes};
i32 total = 0;
for (i32 block = 0; block < {boxes}; block += {THREADS}) {{
    const i32 box = block + THREAD;
    i32 taken = 0;
    if (box < {boxes}) taken = x[(first + box) * {width} + 1] > {threshold};
    part[THREAD] = taken;
    for (i32 distance = 1; distance < {THREADS}; distance *= 2) {{
        BARRIER;
        const i32 before = THREAD >= distance ? part[THREAD - distance] : 0;
        BARRIER;
        part[THREAD] += before;
    }}
    BARRIER;{copy}
    total += part[{THREADS - 1}];
    BARRIER;
}}{fill}
if (THREAD == 0) counts[GROUP] = total;"""
    return Code((Kernel("valid_counts", tuple(given), body, samples),))


@generates("cvm.non_max_suppression")
def non_max_suppression(call: Call, outputs: Specs) -> Code:
    x, counts, y = call.spec(0), call.spec(1), outputs[0]
    ranks = x.static_shape[:2]
    scratch = (TensorSpec("int32", ranks), TensorSpec("uint8", ranks))
    given = (
        declare_numbers("x", x, "input"),
        declare_numbers("counts", counts, "input", 1),
        declare_numbers("y", y, "output"),
        *(
            declare_numbers(name, spec, "scratch", n)
            for n, (name, spec) in enumerate(zip(("order", "gone"), scratch, strict=True))
        ),
    )
    return Code((_generate_ranking(x, given), _generate_suppression(call, given)), scratch)


def _generate_ranking(x: TensorSpec, given: tuple[Parameter, ...]) -> Kernel:
    """Return the kernel, with the parameters `given`, that sorts the boxes of `x` by score.

    It also removes boxes without a class.
    """
    samples, boxes, width = x.static_shape
    rival = f"x[(k0 * {boxes} + other) * {width} + 1]"
    statements = [
        f"for (i32 n = 0; n < {width}; n++) y[i * {width} + n] = -1;",
        _COUNTED.format("k0", boxes),
        "if (k1 >= count) return;",
        f"const i32 score = x[i * {width} + 1];",
        "index rank = 0;",
        "for (index other = 0; other < count; other++)",
        f"rank += {rival} > score || ({rival} == score && other < k1);",
        f"order[k0 * {boxes} + rank] = k1;",
        f"gone[k0 * {boxes} + rank] = x[i * {width}] < 0;",
    ]
    return make_cell_kernel("rank_boxes", (samples, boxes), given, statements, [x.size])


def _generate_suppression(call: Call, given: tuple[Parameter, ...]) -> Kernel:
    x, attributes = call.spec(0), call.attributes
    samples, boxes, width = x.static_shape
    top_k, most = (
        f"min_i32(count, {attributes[name]})" if attributes[name] >= 0 else "count"
        for name in ("top_k", "max_output_size")
    )
    rivals = "" if attributes["force_suppress"] else " && rival[0] == best[0]"
    body = f"""\
typedef {choose_index_type(x.size + THREADS * width)} index;
const index first = (index)GROUP * {boxes};
{_COUNTED.format("GROUP", boxes)}
const i32 seen = {top_k}, most = {most};
i32 kept = 0;
for (i32 p = next_left(gone + first, 0, seen); p < seen && kept < most;
     p = next_left(gone + first, p + 1, seen)) {{
    GLOBAL const i32* best = x + (first + order[first + p]) * {width};
    if (THREAD < {width}) y[(first + kept) * {width} + THREAD] = best[THREAD];
    for (i32 q = p + 1 + THREAD; q < seen; q += {THREADS}) {{
        GLOBAL const i32* rival = x + (first + order[first + q]) * {width};
        if (!gone[first + q]{rivals}
                && overlap_percent(best, rival) >= {attributes["iou_threshold"]})
            gone[first + q] = 1;
    }}
    kept++;
    BARRIER;
}}"""
    functions = (*find_functions(_OVERLAP + body), _NEXT_LEFT, _OVERLAP)
    return Kernel("suppress_boxes", given, body, samples, functions=functions)


_NEXT_LEFT = """\
FUNCTION i32 next_left(GLOBAL const u8* gone, i32 p, i32 end) {
    while (p < end && gone[p]) p++;
    return p;
}
"""

_OVERLAP = f"""\
FUNCTION u64 overlap_percent(GLOBAL const i32* a, GLOBAL const i32* b) {{
    const i64 width = (i64)min_i32(a[4], b[4]) - max_i32(a[2], b[2]);
    const i64 height = (i64)min_i32(a[5], b[5]) - max_i32(a[3], b[3]);
    if (width <= 0 || height <= 0) return 0;
    const u64 both = (u64)width * (u64)height;
    const u64 whole = (u64)((i64)a[4] - a[2]) * (u64)((i64)a[5] - a[3]) - both
        + (u64)((i64)b[4] - b[2]) * (u64)((i64)b[5] - b[3]);
    if (both >= {write_literal(FIRST_TOO_LARGE, "u64")}) return both / (whole / 100);
    return 100 * both / whole;
}}
"""
"""Overlapping boxes have positive sides, and a square with sides below 2³² contains their union, so
64 bits suffice."""
