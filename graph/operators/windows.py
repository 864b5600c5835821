"""Windows that slide over spatial axes, for convolution and pooling.

Sources of the formulas: ONNX Conv-22, ConvTranspose-22, AveragePool-22. With the *extent* of a
kernel e = (k - 1)·dilation + 1 and the total padding p = begin + end, along each axis

    explicit padding     out = ⌊(in + p - e) / stride⌋ + 1
    VALID                the same with p = 0
    SAME_UPPER, _LOWER   out = ⌈in / stride⌉,  p = max(0, (out - 1)·stride + e - in), halved; an odd
                         cell goes to the end (UPPER) or to the beginning (LOWER)
    ceil_mode            ⌈ ⌉ in place of ⌊ ⌋, but a window must start in the input or in the padding
                         before it: out ≤ ⌈(in + begin) / stride⌉
    transposed           out = (in - 1)·stride + e + output_padding - p
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from ..core.attribute import Attribute, Attributes, Kind
from ..values.dims import add, ceildiv, floordiv, mul
from ..values.errors import ShapeError
from ..values.tensor import Dim, Shape

WINDOW_ATTRIBUTES: dict[str, Attribute] = {
    "auto_pad": Attribute(
        Kind.STRING, "NOTSET", choices=("NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID")
    ),
    "dilations": Attribute(Kind.INTS, None, minimum=1),
    "kernel_shape": Attribute(Kind.INTS, None, minimum=1),
    "pads": Attribute(Kind.INTS, None, minimum=0),
    "strides": Attribute(Kind.INTS, None, minimum=1),
}
"""The attributes that every windowed operator has; where one is absent, None."""

KEPT = 4096
"""Windows of different shapes that are remembered: those of several networks."""


@dataclass(frozen=True, slots=True)
class Window:
    """A window and how it moves: one number per spatial axis in each field."""

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads_begin: tuple[int, ...]
    pads_end: tuple[int, ...]
    """Cells of padding before and after the input. In `ceil_mode` the last window may read beyond
    the end padding: see `span`."""

    @property
    def extents(self) -> tuple[int, ...]:
        """How many cells the window reaches over, dilation included."""
        return tuple(
            (size - 1) * dilation + 1
            for size, dilation in zip(self.kernel, self.dilations, strict=True)
        )

    def span(self, outputs: Sequence[int]) -> tuple[int, ...]:
        """Return how many cells, from the begin padding on, `outputs` windows reach over."""
        steps = zip(outputs, self.strides, self.extents, strict=True)
        return tuple((count - 1) * stride + reach for count, stride, reach in steps)


class _Axis(NamedTuple):
    """The padding along an axis, None where a symbol decides it, and the output dim."""

    begin: int | None
    end: int | None
    out: Dim


def resolve_window(
    spatial: Sequence[Dim],
    attributes: Attributes,
    kernel: Sequence[Dim],
    *,
    ceil_mode: bool = False,
) -> tuple[Window | None, Shape]:
    """Return the window, or None if the padding depends on a symbol, and the output dims.

    `attributes` has the node's `auto_pad`, `dilations`, `pads` and `strides`; `kernel` has the
    sizes, one per spatial dim; `ceil_mode` (default: False) rounds output dims up, for pooling.
    Raises ShapeError if an attribute has the wrong length, or the window does not fit in the padded
    input.
    """
    steps, pads = (
        _read_steps(attributes, kernel, len(spatial)),
        _read_pads(attributes, len(spatial)),
    )
    # Keys of the cache must be hashable.
    given = tuple(spatial), tuple(kernel), *map(tuple, steps), tuple(pads)  # some are lists
    return _resolve(*given, attributes["auto_pad"], ceil_mode)


@lru_cache(KEPT)
def _resolve(
    spatial: Shape,
    kernel: Shape,
    strides: tuple[int, ...],
    dilations: tuple[int, ...],
    pads: tuple[tuple[int, int], ...],
    auto_pad: str,
    ceil_mode: bool,
) -> tuple[Window | None, Shape]:
    axes = []
    for dim, size, stride, dilation, pad in zip(
        spatial, kernel, strides, dilations, pads, strict=True
    ):
        reach = compute_extent(size, dilation)
        # Here outputs do not depend on the padding: with a symbol that alone is unknown.
        if auto_pad.startswith("SAME"):
            axes.append(_pad_same(dim, ceildiv(dim, stride), stride, reach, auto_pad))
        else:
            axes.append(_Axis(*pad, _count(dim, reach, stride, *pad, ceil_mode)))
    return _make_window(kernel, strides, dilations, axes)


def resolve_transposed_window(
    spatial: Sequence[Dim], attributes: Attributes, kernel: Sequence[Dim]
) -> tuple[Window | None, Shape]:
    """Return the window and the spatial output dims of a transposed convolution with `kernel`.

    The output is the sum of one window per input cell, cropped by `pads_begin`, then cut, or filled
    up with cells that no window reaches, to the output dims. Besides the attributes that
    `resolve_window` reads, there are `output_padding` and `output_shape`, which replaces `pads`.
    Raises ShapeError if an attribute has the wrong length, or nothing is left of the output.
    """
    rank = len(spatial)
    strides, dilations = _read_steps(attributes, kernel, rank)
    pads, extra = (
        _read_pads(attributes, rank),
        _read_per_axis(attributes, "output_padding", rank, 0),
    )
    same = attributes["auto_pad"].startswith("SAME")
    # SAME is about lengths here too: strides times those of the input. The padding follows.
    wanted: Shape | None = tuple(map(mul, spatial, strides)) if same else None
    if attributes["output_shape"] is not None:
        wanted = _check_length(attributes, "output_shape", rank)
    axes = []
    for d, (dim, stride) in enumerate(zip(spatial, strides, strict=True)):
        # The last window reaches as far beyond the place where the next one would begin.
        beyond = add(compute_extent(kernel[d], dilations[d]), extra[d] - stride)
        if wanted is not None:
            full = add(mul(dim, stride), beyond)
            axes.append(_crop(full, wanted[d], attributes["auto_pad"]))
        else:
            axes.append(_Axis(*pads[d], add(mul(dim, stride), add(beyond, -sum(pads[d])))))
    _check_left(axes)
    return _make_window(kernel, strides, dilations, axes)


def compute_extent(kernel: Dim, dilation: int) -> Dim:
    return add(mul(add(kernel, -1), dilation), 1)


def _count(dim: Dim, reach: Dim, stride: int, begin: int, end: int, ceil_mode: bool) -> Dim:
    if isinstance(dim, int) and isinstance(reach, int) and dim + begin + end < reach:
        raise ShapeError(
            f"a window over {reach} cells does not fit in {dim} cells padded by {begin} and {end}",
            fix="use a smaller kernel or dilation, more padding, or a larger input",
        )
    # Numbers first, so that symbols meet one sum: equal lengths have to have equal texts.
    margin = begin + end + stride
    room = add(dim, margin - reach) if isinstance(reach, int) else f"({add(dim, margin)}-{reach})"
    if not ceil_mode:
        return floordiv(room, stride)
    rounded, limit = ceildiv(room, stride), ceildiv(add(dim, begin), stride)
    if isinstance(rounded, int) and isinstance(limit, int):
        return min(rounded, limit)
    # The last window starts at most stride - 1 cells after the last fitting start.
    # Then it starts in the input or its begin padding, and the limit need not be written.
    safe = isinstance(reach, int) and end + stride <= reach
    return rounded if safe else f"min({rounded},{limit})"


def _pad_same(dim: Dim, out: Dim, stride: int, reach: Dim, auto_pad: str) -> _Axis:
    if not (isinstance(dim, int) and isinstance(out, int) and isinstance(reach, int)):
        return _Axis(None, None, out)
    return _halve(max(0, (out - 1) * stride + reach - dim), out, auto_pad)


def _crop(full: Dim, out: Dim, auto_pad: str) -> _Axis:
    if not (isinstance(full, int) and isinstance(out, int)):
        return _Axis(None, None, out)
    return _halve(max(0, full - out), out, auto_pad)


def _halve(total: int, out: int, auto_pad: str) -> _Axis:
    """Split the padding `total`; without `auto_pad` an odd cell goes where SAME_LOWER puts it."""
    half = total // 2
    return (
        _Axis(half, total - half, out)
        if auto_pad == "SAME_UPPER"
        else _Axis(total - half, half, out)
    )


def _check_left(axes: Sequence[_Axis]) -> None:
    for begin, end, out in axes:
        if isinstance(out, int) and out < 1:
            raise ShapeError(
                f"pads {begin} and {end} leave nothing of the output", fix="use smaller pads"
            )


def _read_steps(
    attributes: Attributes, kernel: Sequence[Dim], rank: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    if len(kernel) != rank:
        raise ShapeError(
            f"kernel {list(kernel)} has {len(kernel)} dimensions, the input {rank} spatial ones",
            fix="give one kernel size per spatial dimension",
        )
    if 0 in kernel:
        raise ShapeError(f"a window of {list(kernel)} has no cells", fix="use sizes of at least 1")
    return _read_per_axis(attributes, "strides", rank, 1), _read_per_axis(
        attributes, "dilations", rank, 1
    )


def _read_pads(attributes: Attributes, rank: int) -> tuple[tuple[int, int], ...]:
    """Return (begin, end) in `attributes` for each of `rank` axes; `auto_pad` overrides `pads`."""
    if attributes["auto_pad"] != "NOTSET" or attributes["pads"] is None:
        return ((0, 0),) * rank
    pads = _check_length(attributes, "pads", 2 * rank)
    return tuple(zip(pads[:rank], pads[rank:], strict=True))


def _read_per_axis(attributes: Attributes, name: str, rank: int, default: int) -> tuple[int, ...]:
    return (
        (default,) * rank if attributes.get(name) is None else _check_length(attributes, name, rank)
    )


def _check_length(attributes: Attributes, name: str, wanted: int) -> tuple[int, ...]:
    values: tuple[int, ...] = attributes[name]
    if len(values) != wanted:
        raise ShapeError(
            f"{name} {list(values)} has {len(values)} numbers, {wanted} are needed",
            fix="give a begin and an end per spatial dimension: [begin..., end...]"
            if name == "pads"
            else "give one per spatial dimension",
        )
    return values


def _make_window(
    kernel: Sequence[Dim],
    strides: tuple[int, ...],
    dilations: tuple[int, ...],
    axes: Sequence[_Axis],
) -> tuple[Window | None, Shape]:
    outputs = tuple(axis.out for axis in axes)
    sizes = tuple(size for size in kernel if isinstance(size, int))
    begins = tuple(axis.begin for axis in axes if axis.begin is not None)
    ends = tuple(axis.end for axis in axes if axis.end is not None)
    # One axis that is not known is enough: kernels take all of a window, or none.
    if not len(sizes) == len(begins) == len(ends) == len(axes):
        return None, outputs
    return Window(sizes, strides, dilations, begins, ends), outputs
