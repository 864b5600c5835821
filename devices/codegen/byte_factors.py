"""Kernels around products of bytes with a sign that something else multiplies.

In front, bytes without a sign are lowered by 128, and rows are filled up; behind, sums lose what
zero points have added to them:

    Σ (a - za)(b - zb) = Σ ab - za Σ b - zb Σ a + K za zb
"""

from __future__ import annotations

from collections.abc import Callable

from ...graph.operator import Call, Specs
from .cells import cells
from .copying import WORDS, Layout, copy
from .epilogue import Epilogue
from .folds import sum_of
from .indexing import coordinates
from .integer_products import ElementPlace, NodeScales, byte_matrices
from .kernel import Code, Parameter
from .lines import Lines
from .sweeps import LineFold, line_code
from .windows import Sliding

SUMS, SUMS_A, SUMS_B, PARTS, PACKED = "sums", "sums_a", "sums_b", "parts_total", "packed"
"""Parameters that are no tensors of the node: sums of products, of rows, and of parts of rows, and
what cells of windows were packed into."""


def pack(
    number: int, shape: tuple[int, int, int], room: tuple[int, int], turns: bool, lowered: int
) -> Code:
    """Return the code that writes matrices as rows of bytes with a sign, filled up with zeros.

    Parameters
    ----------
    number : int
        Which input of the node.
    shape : tuple of int
        How many matrices, and what is to be written of each: rows, and their depth.
    room : tuple of int
        Rows and depth with what fills them up; what is in rows behind the last one is undefined.
    turns : bool
        Whether rows are columns of the input.
    lowered : int
        How much the input's bytes are lowered: by 128, if they have no sign.
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
    return Code((packed, cells("fill_up", lines, (y,), (fill,), (stack * height * width,))))


def pack_windows(
    number: int,
    zero: int | None,
    stack: int,
    sliding: Sliding,
    depth: int,
    room: tuple[int, int],
    lowered: int,
) -> Code:
    """Return the code that writes the cells of windows as `pack` writes rows.

    Parameters
    ----------
    number, zero : int
        Which inputs of the node are the images, and their zero point if there is one: that is what
        cells outside of an image are.
    stack : int
        How many images there are.
    depth : int
        Cells of a window, of all channels.
    lowered : int
        As those of `pack`.
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
        *coordinates(f"(k % {sliding.taps})", sliding.steps, "u", c),
        *tap.statements,
        *cell.statements,
        f"word |= (u32)(u8)(({value}) - {lowered}) << 8 * j;",
        "}}",
        f"y[(k0 * {height} + k1) * {width // 4} + k2] = word;",
    ]
    size = stack * max(height * width, planes * sliding.cells)
    shape = stack, sliding.planes, width // 4
    return Code((cells("pack_windows", shape, parameters, statements, (size,)),))


def sum_up(
    number: int, shape: tuple[int, int, int], height: int, turns: bool, lowered: int
) -> Code:
    """Return the code that adds up the rows that `pack` writes, modulo 2³².

    From one matrix to the next there is room for as many sums as for rows: `height`.
    """
    stack, rows, depth = shape
    lines = Lines((stack, depth, rows), (1,)) if turns else Lines((stack, rows, depth), (2,))
    x = Parameter("x", "u8" if lowered else "i8", "input", number)
    at = f"line / {rows} * {height} + line % {rows}"
    return _sums(lines, x, lambda i: f"(i32)x[{i}] - {lowered}", at)


def sum_up_packed(stack: int, room: tuple[int, int]) -> Code:
    """Return the code that adds up the rows that `pack_windows` has written."""
    height, width = room
    x = Parameter(PACKED, "i8", "input", 0)
    return _sums(Lines((stack * height, width), (1,)), x, lambda i: f"{PACKED}[{i}]", "line")


def _sums(lines: Lines, x: Parameter, element: Callable[[str], str], at: str) -> Code:
    y = Parameter("y", "u32", "output", 0)
    total = LineFold("total", sum_of("u32"), lambda i: f"(u32)({element(i)})")
    return line_code("row_sums", lines, (x, y), (total,), once=(f"y[{at}] = total;",))


def finish_product(op: str, call: Call, outputs: Specs, epilogue: Epilogue, row: int) -> Code:
    """Return the code that makes the node's results of sums, which lie in rows of a length."""
    m, scales = byte_matrices(op, call, outputs, epilogue), NodeScales(op, call)
    assert m is not None, "it is multiplied as one"
    depth, around = max(m.left.columns, 1), {side: scales.is_around_zero(side) for side in "ab"}
    of_a, of_b = f"a_start / {depth} + row", f"b_start / {depth} + column"
    place = ElementPlace("row", "column", of_a, of_b)
    sum_b = f"b_start / {m.right.size} * {row} + column"
    zero_a, zero_b = (scales.lowered_zero(side, place) for side in "ab")
    # In u32, which wraps around: modulo 2³² the terms add up to the sum of the definition, however
    # large each is. That is what sums of integers are defined to be; those that are quantized again
    # are whole, as `EXACT_DEPTH` keeps them within 32 bits.
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
    return Code((cells("finish_product", size, parameters, statements, sizes=sizes),))
