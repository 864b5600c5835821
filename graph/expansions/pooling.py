"""Pooling in others."""

from __future__ import annotations

from typing import Any

from .rules import Draft, expands


@expands("GlobalAveragePool")
def global_average_pool(draft: Draft, x: str) -> str | None:
    """ReduceMean over each plane."""
    return _over_planes(draft, "ReduceMean", x)


@expands("GlobalMaxPool", wide=False)
def global_max_pool(draft: Draft, x: str) -> str | None:
    """ReduceMax over each plane."""
    return _over_planes(draft, "ReduceMax", x)


@expands("GlobalLpPool")
def global_lp_pool(draft: Draft, x: str) -> str | None:
    """ReduceL1 or ReduceL2 over each plane."""
    p = draft.attributes["p"]
    return _over_planes(draft, f"ReduceL{p}", x) if p in (1, 2) else None


@expands("MaxPool", "AveragePool", "LpPool", wide=False)
def with_rows(draft: Draft, x: str) -> str | None:
    """A line is an image of one row."""
    shape = draft.spec(x).shape
    if shape is None or len(shape) != 3 or draft.n_outputs > 1:
        return None
    image = draft("Unsqueeze", x, (2,))
    pooled = draft(draft.node.op, image, **rows(draft.attributes))
    return draft("Squeeze", pooled, (2,))


@expands("LpPool")
def lp_pool(draft: Draft, x: str) -> str | None:
    """The root of sums of squares, as averages times their count."""
    attributes = dict(draft.attributes)
    if attributes.pop("p") != 2 or attributes["ceil_mode"]:
        return None
    count = 1
    for length in attributes["kernel_shape"]:
        count *= length
    mean = draft("AveragePool", draft("Mul", x, x), count_include_pad=True, **attributes)
    return draft("Sqrt", draft("Mul", mean, float(count)))


def rows(attributes: Any) -> dict[str, Any]:
    """Return the attributes of a window along a line for an image of one row."""
    made = dict(attributes)
    for name in ("kernel_shape", "strides", "dilations", "output_padding"):
        if made.get(name):
            made[name] = (0 if name == "output_padding" else 1, *made[name])
    if made.get("pads"):
        begin, end = made["pads"]
        made["pads"] = (0, begin, 0, end)
    return made


def _over_planes(draft: Draft, op: str, x: str) -> str | None:
    rank = draft.spec(x).rank
    return None if rank is None else draft(op, x, tuple(range(2, rank)), keepdims=True)
