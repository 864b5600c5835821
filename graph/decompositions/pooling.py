"""Pooling as reductions or other pooling."""

from __future__ import annotations

from typing import Any

from .rules import DecompositionBuilder, decomposition


@decomposition("GlobalAveragePool")
def global_average_pool(builder: DecompositionBuilder, x: str) -> str | None:
    return _reduce_planes(builder, "ReduceMean", x)


@decomposition("GlobalMaxPool", wide=False)
def global_max_pool(builder: DecompositionBuilder, x: str) -> str | None:
    return _reduce_planes(builder, "ReduceMax", x)


@decomposition("GlobalLpPool")
def global_lp_pool(builder: DecompositionBuilder, x: str) -> str | None:
    p = builder.attributes["p"]
    return _reduce_planes(builder, f"ReduceL{p}", x) if p in (1, 2) else None


@decomposition("MaxPool", "AveragePool", "LpPool", wide=False)
def with_rows(builder: DecompositionBuilder, x: str) -> str | None:
    # A line is an image of one row.
    shape = builder.spec(x).shape
    if shape is None or len(shape) != 3 or builder.n_outputs > 1:
        return None
    image = builder("Unsqueeze", x, (2,))
    pooled = builder(builder.node.op, image, **to_rows(builder.attributes))
    return builder("Squeeze", pooled, (2,))


@decomposition("LpPool")
def lp_pool(builder: DecompositionBuilder, x: str) -> str | None:
    # Sums of squares are averages times their count.
    attributes = dict(builder.attributes)
    if attributes.pop("p") != 2 or attributes["ceil_mode"]:
        return None
    count = 1
    for length in attributes["kernel_shape"]:
        count *= length
    mean = builder("AveragePool", builder("Mul", x, x), count_include_pad=True, **attributes)
    return builder("Sqrt", builder("Mul", mean, float(count)))


def to_rows(attributes: Any) -> dict[str, Any]:
    """Return the `attributes` of a window over one axis as those for an image of one row."""
    made = dict(attributes)
    for name in ("kernel_shape", "strides", "dilations", "output_padding"):
        if made.get(name):
            made[name] = (0 if name == "output_padding" else 1, *made[name])
    if made.get("pads"):
        begin, end = made["pads"]
        made["pads"] = (0, begin, 0, end)
    return made


def _reduce_planes(builder: DecompositionBuilder, op: str, x: str) -> str | None:
    rank = builder.spec(x).rank
    return None if rank is None else builder(op, x, tuple(range(2, rank)), keepdims=True)
