"""Nodes that move, repeat, cut and join elements, or make them from shapes."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import assume
from hypothesis import strategies as st

from .drawing import (
    ALL,
    ANY,
    FLOATS,
    NUMBERS,
    REALS,
    Draw,
    NodeCase,
    Shape,
    Strategy,
    an_axis,
    broadcast_part,
    choose,
    flag,
    i64,
    index_dtype,
    integer,
    rng_of,
    shape,
    some_axes,
    tensor,
)

FAR = (-(2**63), -(2**31), 2**31 - 1, 2**63 - 1)
"""What exporters write for "from the beginning" and "to the end"."""


def _any(draw: Draw, of: Shape) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    return tensor(draw, choose(draw, ANY), of, ALL)


def reshape(draw: Draw) -> NodeCase:
    of, allowzero = shape(draw), flag(draw)
    parts = [p for n in draw(st.permutations(of)) for p in _factors(draw, n)]
    target = list(parts)
    if not allowzero:
        same = [i < len(of) and of[i] == n for i, n in enumerate(parts)]
        assume(all(n or kept for n, kept in zip(parts, same, strict=True)))
        target = [0 if kept and flag(draw) else n for n, kept in zip(parts, same, strict=True)]
    if math.prod(parts) and parts and flag(draw):
        target[choose(draw, range(len(parts)))] = -1
    return NodeCase([_any(draw, of), i64(target)], {"allowzero": allowzero}, constant={1})


def _factors(draw: Draw, length: int) -> list[int]:
    """Split a length into factors, some of them 1."""
    choices = {4: [[4], [2, 2], [4, 1]], 1: [[1], []]}.get(length, [[length], [1, length]])
    return list(choose(draw, choices))


def flatten(draw: Draw) -> NodeCase:
    of = shape(draw)
    return NodeCase([_any(draw, of)], {"axis": integer(draw, -len(of), len(of))})


def squeeze(draw: Draw) -> NodeCase:
    of = shape(draw, most=2)
    ones = [axis for axis, length in enumerate(of) if length == 1]
    if flag(draw):
        return NodeCase([_any(draw, of)])
    chosen = draw(st.lists(st.sampled_from(ones), unique=True)) if ones else []
    back = len(of) * flag(draw)
    return NodeCase([_any(draw, of), i64([axis - back for axis in chosen])], constant={1})


def unsqueeze(draw: Draw) -> NodeCase:
    of, count = shape(draw, high=3), integer(draw, 0, 2)
    rank = len(of) + count
    axes = draw(st.permutations(range(rank)))[:count]
    back = rank * flag(draw)
    return NodeCase([_any(draw, of), i64([axis - back for axis in axes])], constant={1})


def shape_of(draw: Draw) -> NodeCase:
    bounds = {name: integer(draw, -6, 6) for name in ("start", "end") if flag(draw)}
    return NodeCase([_any(draw, shape(draw))], bounds)


def size_of(draw: Draw) -> NodeCase:
    return NodeCase([_any(draw, shape(draw))])


def concat(draw: Draw) -> NodeCase:
    dtype, of = choose(draw, ANY), list(shape(draw, 1))
    axis = an_axis(draw, len(of))
    inputs = []
    for _ in range(integer(draw, 1, 4)):
        of[axis] = integer(draw, 0, 3)
        inputs.append(tensor(draw, dtype, of))
    return NodeCase(inputs, {"axis": axis})


def expand(draw: Draw) -> NodeCase:
    whole = shape(draw)
    target = [1 if n and integer(draw, 0, 3) == 0 else n for n in whole]
    given = broadcast_part(draw, whole)
    assume(np.broadcast_shapes(given, tuple(target)) is not None)
    return NodeCase([_any(draw, given), i64(target)], constant={1})


def transpose(draw: Draw) -> NodeCase:
    of = shape(draw)
    perm = {"perm": draw(st.permutations(range(len(of))))} if flag(draw) else {}
    return NodeCase([_any(draw, of)], perm)


def tile(draw: Draw) -> NodeCase:
    of = shape(draw, most=3)
    return NodeCase([_any(draw, of), i64([integer(draw, 0, 3) for _ in of])], constant={1})


def pad(draw: Draw) -> NodeCase:
    of, mode = shape(draw), choose(draw, ("constant", "reflect", "edge", "wrap"))
    axes = some_axes(draw, len(of)) if flag(draw) else None
    listed = list(range(len(of))) if axes is None else axes
    pairs = [(integer(draw, -2, 4), integer(draw, -2, 4)) for _ in listed]
    for axis, (before, after) in zip(listed, pairs, strict=True):
        left = of[axis] + min(before, 0) + min(after, 0)
        grows = before > 0 or after > 0
        assume(of[axis] + before + after >= 0)
        assume(left >= (0 if mode == "constant" or not grows else 2 if mode == "reflect" else 1))
    x = _any(draw, of)
    value = tensor(draw, x.dtype, ()) if flag(draw) else None
    pads = [p[0] for p in pairs] + [p[1] for p in pairs]
    given = None if axes is None else np.asarray(axes, index_dtype(draw))
    return NodeCase([x, i64(pads), value, given], {"mode": mode}, constant={1, 3})


def trilu(draw: Draw) -> NodeCase:
    x = _any(draw, shape(draw, 2))
    k = i64(choose(draw, (integer(draw, -5, 5), 2**40, -(2**40)))) if flag(draw) else None
    return NodeCase([x, k], {"upper": flag(draw)}, constant={1} if flag(draw) else ())


def cut(draw: Draw) -> NodeCase:
    """Slice."""
    of, dtype = shape(draw), index_dtype(draw)
    axes = some_axes(draw, len(of)) if flag(draw) else None
    listed = range(integer(draw, 0, len(of))) if axes is None else axes
    far = [n for n in FAR if np.iinfo(dtype).min <= n <= np.iinfo(dtype).max]
    bounds = st.integers(-7, 7) | st.sampled_from(far)
    lists = [[draw(bounds) for _ in listed] for _ in range(2)]
    steps = [choose(draw, (1, 2, 3, -1, -2, 7, far[-1], far[0] + 1)) for _ in listed]
    inputs = [*lists, axes, steps if flag(draw) else None]
    arrays = [None if numbers is None else np.array(numbers, dtype) for numbers in inputs]
    return NodeCase([_any(draw, of), *arrays], constant={1, 2, 3, 4})


def split(draw: Draw) -> NodeCase:
    of = list(shape(draw, 1))
    axis = an_axis(draw, len(of))
    parts, how = integer(draw, 1, 4), choose(draw, ("sizes", "num_outputs", "equal"))
    attributes = {"axis": axis}
    sizes = None
    if how == "sizes":
        sizes = i64([integer(draw, 0, 3) for _ in range(parts)])
        of[axis] = int(sizes.sum())
    elif how == "num_outputs":
        attributes["num_outputs"] = parts
    else:
        of[axis] = parts * integer(draw, 0, 2)
    return NodeCase([_any(draw, tuple(of)), sizes], attributes, parts, {1})


def constant_of_shape(draw: Draw) -> NodeCase:
    dtype = choose(draw, REALS)
    value = tensor(draw, dtype, ()).item()
    return NodeCase([i64(shape(draw))], {"value": value, "dtype": dtype}, constant={0})


def arithmetic_sequence(draw: Draw) -> NodeCase:
    dtype = choose(draw, NUMBERS)
    unit = 4 if dtype in FLOATS else 1
    low = 0 if dtype.startswith("u") else -20
    start, limit = integer(draw, low, 20), integer(draw, low, 20)
    step = choose(draw, (1, 2, 3, 7) if low == 0 else (1, 2, 3, -1, -2, -7))
    numbers = [np.array(n / unit, dtype) for n in (start, limit, step)]
    return NodeCase(numbers, constant={0, 1, 2})


def eye(draw: Draw) -> NodeCase:
    dtype = {"dtype": choose(draw, REALS)} if flag(draw) else {}
    x = tensor(draw, choose(draw, REALS), shape(draw, 2, 2))
    return NodeCase([x], {"k": integer(draw, -5, 5), **dtype})


def blocks(to_depth: bool) -> Strategy:
    def strategy(draw: Draw) -> NodeCase:
        size, (n, c, h, w) = integer(draw, 1, 3), shape(draw, 4, 4, most=2)
        of = (n, c, h * size, w * size) if to_depth else (n, c * size**2, h, w)
        return NodeCase([_any(draw, of)], {"blocksize": size, "mode": choose(draw, ("DCR", "CRD"))})

    return strategy


def reverse_sequence(draw: Draw) -> NodeCase:
    batch, of = integer(draw, 0, 1), shape(draw, 2, least=1)
    lengths = rng_of(draw).integers(1, of[1 - batch] + 1, of[batch])
    return NodeCase([_any(draw, of), lengths], {"batch_axis": batch, "time_axis": 1 - batch})


STRATEGIES: dict[str, Strategy] = {
    "Reshape": reshape,
    "Flatten": flatten,
    "Squeeze": squeeze,
    "Unsqueeze": unsqueeze,
    "Shape": shape_of,
    "Size": size_of,
    "Concat": concat,
    "Expand": expand,
    "Transpose": transpose,
    "Tile": tile,
    "Pad": pad,
    "Trilu": trilu,
    "Slice": cut,
    "Split": split,
    "ConstantOfShape": constant_of_shape,
    "Range": arithmetic_sequence,
    "EyeLike": eye,
    "DepthToSpace": blocks(to_depth=False),
    "SpaceToDepth": blocks(to_depth=True),
    "ReverseSequence": reverse_sequence,
}
