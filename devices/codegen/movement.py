"""Generators that move, repeat and join elements: copies between strided layouts.

Each takes a `call` and the specs of its `outputs`, and returns the `Code`. Borders and triangles
are filled with values that are not in x.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from ...graph.core.operator import Call, Specs
from ...graph.operators.inputs import read_integers
from ...graph.operators.movement import to_axis_pads
from ...graph.operators.slicing import list_slices, split_sizes
from ...graph.values.dims import normalize_axis, slice_range
from ...graph.values.tensor import TensorSpec
from .cells import declare_numbers, declare_words, make_cell_kernel
from .copying import Layout, copy
from .indexing import broadcast_strides, make_strides, write_offset
from .registry import Code, generates


@generates("Transpose")
def transpose(call: Call, outputs: Specs) -> Code:
    shape = call.spec(0).static_shape
    order = call.attributes["perm"] or range(len(shape))[::-1]
    return permute("transpose", call, shape, order)


@generates("Expand")
def expand(call: Call, outputs: Specs) -> Code:
    x, shape = call.spec(0), outputs[0].static_shape
    source = Layout(broadcast_strides(x.static_shape, shape))
    return Code((copy("expand", x.dtype.itemsize, shape, source),))


@generates("Tile")
def tile(call: Call, outputs: Specs) -> Code:
    x, shape = call.spec(0).static_shape, outputs[0].static_shape
    # Nothing stays nothing, however often.
    times = [big // max(small, 1) for big, small in zip(shape, x, strict=True)]
    return repeat_axes("tile", call, [*zip(times, x, strict=True)])


def repeat_axes(title: str, call: Call, axes: Sequence[tuple[int, int]]) -> Code:
    """Return code `title` for `call` that repeats x by a broadcast to `axes`, as (times, length).

    The axes are those of x, or others in which its elements may be counted.
    """
    strides = make_strides([length for _, length in axes])
    layout = Layout(tuple(stride for own in strides for stride in (0, own)))
    lengths = [length for pair in axes for length in pair]
    return Code((copy(title, call.spec(0).dtype.itemsize, lengths, layout),))


@generates("Slice")
def slice_(call: Call, outputs: Specs) -> Code:
    x = call.spec(0)
    starts, ends, axes, steps = (read_integers(call, index, "") for index in range(1, 5))
    taken = [range(length) for length in x.static_shape]
    for axis, bounds in list_slices(len(taken), starts or (), ends or (), axes, steps).items():
        taken[axis] = slice_range(len(taken[axis]), *bounds)
    return copy_part("slice", x, taken)


def copy_part(title: str, x: TensorSpec, taken: Sequence[range]) -> Code:
    """Return code that copies `x` at the places `taken` along each axis; `title` names a kernel."""
    shape, strides = tuple(map(len, taken)), make_strides(x.static_shape)
    if not prod(shape):
        return Code(())
    places = list(zip(taken, strides, strict=True))
    # Where the first element is: at the end of axes that are walked backwards.
    base = sum(each[0] * stride for each, stride in places)
    source = Layout(tuple(each.step * stride for each, stride in places), base)
    return Code((copy(title, x.dtype.itemsize, shape, source),))


@generates("Split")
def split(call: Call, outputs: Specs) -> Code:
    """Return code for `call` and `outputs`: a kernel for each part of x that is not absent."""
    x = call.spec(0)
    shape, strides = x.static_shape, make_strides(x.static_shape)
    axis = normalize_axis(call.attributes["axis"], len(shape))
    kernels, begin = [], 0
    lengths = split_sizes(shape[axis], read_integers(call, 1, "split"), call.n_outputs)
    for index, length in enumerate(map(int, lengths)):
        part = (*shape[:axis], length, *shape[axis + 1 :])
        source = Layout(strides, begin * strides[axis])
        kernels.append(copy("split", x.dtype.itemsize, part, source, written=index))
        begin += length
    return Code(tuple(kernels))


@generates("Concat")
def concat(call: Call, outputs: Specs) -> Code:
    y = outputs[0]
    strides = make_strides(y.static_shape)
    axis = normalize_axis(call.attributes["axis"], len(strides))
    kernels, begin = [], 0
    for index in range(len(call.inputs)):
        shape = call.spec(index).static_shape
        source, target = Layout(make_strides(shape)), Layout(strides, begin * strides[axis])
        kernels.append(copy("concat", y.dtype.itemsize, shape, source, target, read=index))
        begin += shape[axis]
    return Code(tuple(kernels))


@generates("DepthToSpace")
def depth_to_space(call: Call, outputs: Specs) -> Code:
    batch, channels, height, width = outputs[0].static_shape
    size = call.attributes["blocksize"]
    cells = (height // size, width // size)
    if call.attributes["mode"] == "DCR":
        shape, order = (batch, size, size, channels, *cells), (0, 3, 4, 1, 5, 2)
    else:
        shape, order = (batch, channels, size, size, *cells), (0, 1, 4, 2, 5, 3)
    return permute("depth_to_space", call, shape, order)


@generates("SpaceToDepth")
def space_to_depth(call: Call, outputs: Specs) -> Code:
    batch, channels, height, width = call.spec(0).static_shape
    size = call.attributes["blocksize"]
    shape = (batch, channels, height // size, size, width // size, size)
    order = (0, 3, 5, 1, 2, 4) if call.attributes["mode"] == "DCR" else (0, 1, 3, 5, 2, 4)
    return permute("space_to_depth", call, shape, order)


def permute(title: str, call: Call, shape: Sequence[int], order: Sequence[int]) -> Code:
    strides = make_strides(shape)
    lengths = [shape[axis] for axis in order]
    source = Layout(tuple(strides[axis] for axis in order))
    return Code((copy(title, call.spec(0).dtype.itemsize, lengths, source),))


@generates("Pad")
def pad(call: Call, outputs: Specs) -> Code:
    x, y = call.spec(0), outputs[0]
    pads = to_axis_pads(
        len(y.static_shape), read_integers(call, 1, "pads") or (), read_integers(call, 3, "")
    )
    parameters = [declare_words("x", x, "input")]
    if call.has(2):
        parameters.append(declare_words("value", x, "input", 2))
    constant = call.attributes["mode"] == "constant"
    statements, inside = [], []
    for axis, (length, both) in enumerate(zip(x.static_shape, pads, strict=True)):
        statements += _declare_source(call.attributes["mode"], axis, length, *both)
        if constant and (both[0] > 0 or both[1] > 0):
            inside.append(f"s{axis} >= 0 && s{axis} < {length}")
    found = f"x[{write_offset(make_strides(x.static_shape), 's')}]"
    if inside:
        found = f"{' && '.join(inside)} ? {found} : {'value[0]' if call.has(2) else '0'}"
    statements.append(f"y[i] = {found};")
    parameters.append(declare_words("y", y, "output"))
    return Code((make_cell_kernel("pad", y.static_shape, parameters, statements, [x.size]),))


def _declare_source(mode: str, axis: int, length: int, before: int, after: int) -> list[str]:
    """Return the statements that declare which element along an `axis` of `length` is copied.

    `mode` is Pad's; `before` and `after` are its pads, and modes repeat the part that negative pads
    leave.
    """
    name, cut = f"s{axis}", max(-before, 0)
    count = length - cut + min(after, 0)
    shifted = f"k{axis} - ({before})"
    if mode == "constant" or (before <= 0 and after <= 0):
        return [f"index {name} = {shifted};"]
    position = f"p{axis}"
    statements = [f"const index {position} = {shifted} - {cut};"]
    if mode == "edge" or count == 1:
        value = f"{position} < 0 ? 0 : {position} < {count} ? {position} : {count - 1}"
    elif mode == "wrap":
        # C's remainder is negative for a negative dividend.
        value = f"({position} % {count} + {count}) % {count}"
    else:
        # To one end and back, neither of them twice, it begins anew.
        period = 2 * (count - 1)
        statements.append(f"const index m{axis} = ({position} % {period} + {period}) % {period};")
        value = f"m{axis} < {count} ? m{axis} : {period} - m{axis}"
    return [*statements, f"index {name} = {cut} + ({value});"]


@generates("Trilu")
def triangle(call: Call, outputs: Specs) -> Code:
    x = call.spec(0)
    rank, given = len(x.static_shape), call.value(1)
    parameters = [declare_words("x", x, "input")]
    k = "0"
    if given is not None:  # as a buffer it could not be beyond an index
        k = str(min(max(int(given.reshape(-1)[0]), -(2**31)), 2**31 - 1))
    elif call.has(1):
        parameters.append(declare_numbers("k", call.spec(1), "input", 1))
        k = "k[0]"
    kept = ">=" if call.attributes["upper"] else "<="
    distance = f"(i64)k{rank - 1} - k{rank - 2}"
    statement = f"y[i] = {distance} {kept} {k} ? x[i] : 0;"
    parameters.append(declare_words("y", x, "output"))
    return Code((make_cell_kernel("trilu", x.static_shape, parameters, [statement]),))
