"""Kernels before and after a signed byte product that a library computes.

Before it, unsigned bytes are lowered by 128 and rows are zero-padded; after it, the terms of the
zero points are subtracted from the sums:

    Σ (a - za)(b - zb) = Σ ab - za Σ b - zb Σ a + K za zb
"""

from __future__ import annotations

from collections.abc import Callable

from ...graph.core.operator import Call, Specs
from .cells import make_cell_kernel
from .copying import WORDS, Layout, copy
from .epilogue import Epilogue
from .folds import make_sum
from .indexing import declare_coordinates
from .integer_products import ElementPlace, NodeScales, to_matrices
from .registry import Code, Parameter
from .sweeps import LineFold, Lines, fold_lines
from .windows import Sliding

SUMS, SUMS_A, SUMS_B, PARTS, PACKED = "sums", "sums_a", "sums_b", "parts_total", "packed"
"""Parameters that are not tensors of the node: sums of products, of rows, and of parts of rows, and
the packed cells of windows."""


def pack(
    number: int, shape: tuple[int, int, int], room: tuple[int, int], turns: bool, lowered: int
) -> Code:
    """Return the code that packs matrices as zero-padded rows of signed bytes.

    Parameters
    ----------
    number : int
        Index of the node's input.
    shape : tuple of int
        The number of matrices, and the rows and depth to write of each.
    room : tuple of int
        Rows and depth with padding; padding rows are undefined.
    turns : bool
        Whether rows are columns of the input.
    lowered : int
        Subtracted from the input's bytes: 128 if they are unsigned.
    """
    (stack, rows, depth), (height, width) = shape, room
    source = Layout((rows * depth, *((1, rows) if turns else (depth, 1))))
    target = Layout((height * width, width, 1))
    packed = copy("pack", 1, shape, source, target, read=number, flips=bool(lowered))
    if width == depth:
        return Code((packed,))
    y = Parameter("y", WORDS[1], "output", 0)
    fill = f"y[k0 * {width} + {depth} + k1] = 0;"
    lines = stack * height, width - depth
    return Code(
        (packed, make_cell_kernel("fill_up", lines, (y,), (fill,), (stack * height * width,)))
    )


def pack_windows(
    number: int,
    zero: int | None,
    stack: int,
    sliding: Sliding,
    depth: int,
    room: tuple[int, int],
    lowered: int,
) -> Code:
    """Return the code that packs the cells of windows, in the layout and to the `room` of `pack`.

    `number` and `zero` are the indices of the inputs with the `stack` images and with their zero
    point, which is read outside of an image; None stands for 0. `sliding` has the windows, with
    `depth` cells of all channels each; `lowered` is subtracted from each byte.
    """
    (height, width), given, c = room, "u8" if lowered else "i8", "index"
    parameters = [Parameter("x", given, "input", number), Parameter("y", "u32", "output", 0)]
    if zero is not None:
        parameters.append(Parameter("zero", given, "input", zero))
    tap, cell = sliding.tap(c), sliding.read("", c)
    planes = depth // sliding.taps
    image = f"x[(k0 * {planes} + k / {sliding.taps}) * {sliding.cells} + {cell.offset}]"
    outside = "0" if zero is None else "zero[0]"
    value = f"{cell.condition} ? {image} : {outside}" if cell.condition else image
    statements = [
        *sliding.place("k1", "", c),
        "u32 word = 0;",
        "#pragma unroll",
        "for (i32 j = 0; j < 4; j++) {",
        "const index k = k2 * 4 + j;",
        f"if (k < {depth}) {{",
        *declare_coordinates(f"(k % {sliding.taps})", sliding.steps, "u", c),
        *tap.statements,
        *cell.statements,
        f"word |= (u32)(u8)(({value}) - {lowered}) << 8 * j;",
        "}}",
        f"y[(k0 * {height} + k1) * {width // 4} + k2] = word;",
    ]
    size = stack * max(height * width, planes * sliding.cells)
    shape = stack, sliding.planes, width // 4
    return Code((make_cell_kernel("pack_windows", shape, parameters, statements, (size,)),))


def sum_up(
    number: int, shape: tuple[int, int, int], height: int, turns: bool, lowered: int
) -> Code:
    """Return code that sums the rows, as `pack` writes them, of input `number`, modulo 2³².

    Each matrix has `height` sums, padding rows included. The input has `shape`: matrices, rows,
    depth; with `turns`, its rows are columns. `lowered` is subtracted from each byte.
    """
    stack, rows, depth = shape
    lines = Lines((stack, depth, rows), (1,)) if turns else Lines((stack, rows, depth), (2,))
    x = Parameter("x", "u8" if lowered else "i8", "input", number)
    at = f"line / {rows} * {height} + line % {rows}"
    return _sum_lines(lines, x, lambda i: f"(i32)x[{i}] - {lowered}", at)


def sum_up_packed(stack: int, room: tuple[int, int]) -> Code:
    height, width = room
    x = Parameter(PACKED, "i8", "input", 0)
    return _sum_lines(Lines((stack * height, width), (1,)), x, lambda i: f"{PACKED}[{i}]", "line")


def _sum_lines(lines: Lines, x: Parameter, element: Callable[[str], str], at: str) -> Code:
    y = Parameter("y", "u32", "output", 0)
    total = LineFold("total", make_sum("u32"), lambda i: f"(u32)({element(i)})")
    return fold_lines("row_sums", lines, (x, y), (total,), once=(f"y[{at}] = total;",))


def finish_product(op: str, call: Call, outputs: Specs, epilogue: Epilogue, row: int) -> Code:
    """Return code for `call` of `op` that turns sums into `outputs`.

    It subtracts zero points from the sums, which lie in rows of `row`, and applies `epilogue`.
    """
    m, scales = to_matrices(op, call, outputs, epilogue), NodeScales(op, call)
    assert m is not None, "checked by the caller"
    depth, around = max(m.left.columns, 1), {side: scales.is_around_zero(side) for side in "ab"}
    of_a, of_b = f"a_start / {depth} + row", f"b_start / {depth} + column"
    place = ElementPlace("row", "column", of_a, of_b)
    sum_b = f"b_start / {m.right.size} * {row} + column"
    zero_a, zero_b = (scales.lowered_zero(side, place) for side in "ab")
    # Computed in u32, which wraps around: modulo 2³² the terms add up to the sum of the definition,
    # however large each is. Integer results are defined modulo 2³²; requantized ones are exact, as
    # `EXACT_DEPTH` keeps their sums within 32 bits.
    total, read = f"(u32){SUMS}[(batch * {m.left.rows} + row) * {row} + column]", [SUMS]
    if not around["a"]:
        total, read = f"{total} - {zero_a} * (u32){SUMS_B}[{sum_b}]", [*read, SUMS_B]
    if not around["b"]:
        total, read = f"{total} - {zero_b} * (u32){SUMS_A}[{of_a}]", [*read, SUMS_A]
    if not any(around.values()):
        total = f"{total} + {depth}U * {zero_a} * {zero_b}"
    statements = [
        "const index batch = k0, row = k1, column = k2;",
        *m.starts(),
        f"const u32 total = {total};",
        *m.finish("row", "column", "total"),
    ]
    given = (Parameter(name, "i32", "input", 0) for name in read)
    size = m.product_shape
    parameters = (*given, *m.parameters[2:])
    sizes = size[0] * size[1] * row, m.left.size * size[0], m.right.size * size[0]
    return Code((make_cell_kernel("finish_product", size, parameters, statements, sizes=sizes),))
