"""Products of matrices by tiles, for matrix products and convolutions.

A group computes a tile of the product. Step by step along the depth, its threads load a strip of
each factor into shared memory, and each thread adds the products of some rows and columns to sums
in registers, while the next strips are loading. Products with few tiles are split along the depth
too: the sums of the parts go to scratch, where a second kernel adds them in order.

Functions define the elements of the factors and the statements that write a sum.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from ...graph.values.tensor import TensorSpec
from .indexing import choose_index_type
from .registry import GROUPS, THREADS, Code, Kernel, Parameter, count_groups
from .strips import DEPTH, VECTOR, Factor, Strip
from .types import to_dtype_name, write_literal

MOST_SPLITS = 64


class Tile(NamedTuple):
    """Rows and columns of a group and of a thread, and the speed relative to the largest tile."""

    rows: int
    columns: int
    thread_rows: int
    thread_columns: int
    speed: float


TILES = (
    Tile(128, 128, 8, 8, 1.0),
    Tile(64, 128, 4, 8, 0.85),
    Tile(128, 64, 8, 4, 0.85),
    Tile(64, 64, 4, 4, 0.7),
    Tile(32, 128, 4, 4, 0.6),
    Tile(128, 32, 4, 4, 0.6),
    Tile(32, 32, 2, 2, 0.4),
    Tile(16, 128, 2, 4, 0.4),
    Tile(128, 16, 4, 2, 0.4),
    Tile(16, 16, 1, 1, 0.2),
)


@dataclass(frozen=True)
class Product:
    title: str
    parameters: tuple[Parameter, ...]
    batch: int
    rows: int
    columns: int
    depth: int
    left: Factor
    right: Factor
    ctype: str
    """The type of products and sums."""
    finish_column: Callable[[str], list[str]]
    """From the name of a column's index to statements."""
    finish: Callable[[str, str, str], list[str]]
    """From the names of row, column and sum to the statements that write it."""
    begin: tuple[str, ...] = ()
    """Statements that follow the declaration of `batch`."""
    index: str = "i32"
    """The C type of indices."""

    @property
    def size(self) -> int:
        return self.batch * self.rows * self.columns

    def code(self) -> Code:
        tile, splits = choose(self)
        if splits == 1:
            return Code((_Tiled(self, tile).kernel(),))
        return _split(self, tile, splits)


def choose(product: Product) -> tuple[Tile, int]:
    """Return the tile with which `product` should be fastest, and the parts along the depth."""
    is_short = product.ctype in ("f32", "u32")
    tiles = TILES if is_short else TILES[3:]  # there are only so many registers
    # Each part has at least eight strips, or else loading the first one and storing the sums
    # dominate.
    most = max(1, min(MOST_SPLITS, product.depth // (8 * DEPTH)))

    def groups(tile: Tile) -> int:
        across = -(-product.rows // tile.rows) * -(-product.columns // tile.columns)
        return max(1, product.batch * across)

    def speed(tile: Tile) -> float:
        # The share of a tile's work inside the edges, times the speed of such tiles, times the
        # share of the device that is busy with the depth split as far as possible.
        used = product.size / (groups(tile) * tile.rows * tile.columns)
        return used * tile.speed * min(1.0, groups(tile) * most / GROUPS)

    best = max(tiles, key=speed)
    splits = min(most, max(1, GROUPS // groups(best)))
    return best, splits


def _split(product: Product, tile: Tile, splits: int) -> Code:
    c, index = product.ctype, choose_index_type(splits * product.size)
    parts = Parameter("parts", c, "scratch", 0)
    first = _Tiled(product, tile, splits, index).kernel(parts)
    rows, columns = product.rows, product.columns
    body = [
        f"const {index} i = ({index})GROUP * {THREADS} + THREAD;",
        f"if (i >= {product.size}) return;",
        f"const {product.index} batch = i / {rows * columns};",
        f"const {product.index} row = i / {columns} % {rows}, column = i % {columns};",
        f"{c} sum = {write_literal(0, c)};",
        # In the order of the parts, whichever is ready first: the same bits in every run.
        f"for ({index} s = 0; s < {splits}; s++) sum = sum + parts[s * {product.size} + i];",
        *product.begin,
        *product.finish_column("column"),
        *product.finish("row", "column", "sum"),
    ]
    taken = (*product.parameters, parts)
    last = Kernel(
        f"{product.title}_sum", taken, "\n".join(body), count_groups(product.size), THREADS
    )
    return Code((first, last), (TensorSpec(to_dtype_name(c), (splits, product.size)),))


class _Tiled:
    def __init__(
        self, product: Product, tile: Tile, splits: int = 1, parts_index: str = "i32"
    ) -> None:
        self._of, self._tile = product, tile
        self._splits, self._parts_index = splits, parts_index
        self._across = tile.columns // tile.thread_columns
        self._threads = self._across * (tile.rows // tile.thread_rows)
        strips = -(-product.depth // DEPTH)
        self._share = -(-strips // splits) * DEPTH

    def kernel(self, parts: Parameter | None = None) -> Kernel:
        of, tile = self._of, self._tile
        rows, columns = -(-of.rows // tile.rows), -(-of.columns // tile.columns)
        types = (of.ctype, of.index)
        left = Strip("left", of.left, tile.rows, of.rows, self._threads, *types)
        right = Strip("right", of.right, tile.columns, of.columns, self._threads, *types)
        body = [
            left.room(),
            right.room(),
            f"const i32 unit = GROUP / {rows * columns};",
            f"const {of.index} batch = unit % {of.batch};",
            f"const {of.index} left_first = GROUP / {columns} % {rows} * {tile.rows};",
            f"const {of.index} right_first = GROUP % {columns} * {tile.columns};",
            f"const {of.index} start = unit / {of.batch} * {self._share};",
            f"const {of.index} stop = {self._stop()};",
            *of.begin,
            *left.declare(),
            *right.declare(),
            *self._sums(),
            # Loaded into registers, where they wait until all threads are done with the strips in
            # shared memory.
            *left.fetch("start"),
            *right.fetch("start"),
            f"for ({of.index} from = start; from < stop; from += {DEPTH}) {{",
            *left.put(),
            *right.put(),
            "BARRIER;",
            f"const {of.index} next = from + {DEPTH};",
            "if (next < stop) {",
            # Loads are issued before the products, which hide the latency of memory.
            *left.fetch("next"),
            *right.fetch("next"),
            "}",
            *self._multiply(left.pitch, right.pitch),
            "BARRIER;",
            "}",
            *self._finish(parts),
        ]
        taken = of.parameters if parts is None else (*of.parameters, parts)
        groups = self._splits * of.batch * rows * columns
        return Kernel(of.title, taken, "\n".join(body), groups, self._threads)

    def _stop(self) -> str:
        if self._splits == 1:
            return str(self._of.depth)
        depth, share = self._of.depth, self._share
        return f"start + {share} < {depth} ? start + {share} : {depth}"

    def _sums(self) -> list[str]:
        c, tile = self._of.ctype, self._tile
        return [
            f"const i32 across = THREAD % {self._across}, down = THREAD / {self._across};",
            f"{c} sums[{tile.thread_rows}][{tile.thread_columns}];",
            *self._over("i", tile.thread_rows),
            *self._over("j", tile.thread_columns),
            f"sums[i][j] = {write_literal(0, c)};",
        ]

    def _over(self, name: str, count: int) -> list[str]:
        return ["#pragma unroll", f"for (i32 {name} = 0; {name} < {count}; {name}++)"]

    def _multiply(self, left: int, right: int) -> list[str]:
        c, tile = self._of.ctype, self._tile
        # Explicit, since contraction is off: other formulas must give the same bits everywhere.
        added = "fma(a[i], b[j], sums[i][j])" if c in _FLOATS else "sums[i][j] + a[i] * b[j]"
        return [
            "#pragma unroll 4",
            f"for (i32 d = 0; d < {DEPTH}; d++) {{",
            f"{c} a[{tile.thread_rows}], b[{tile.thread_columns}];",
            *self._over("i", tile.thread_rows),
            f"a[i] = left_strip[d * {left} + {self._row()}];",
            *self._over("j", tile.thread_columns),
            f"b[j] = right_strip[d * {right} + {self._column()}];",
            *self._over("i", tile.thread_rows),
            *self._over("j", tile.thread_columns),
            f"sums[i][j] = {added};",
            "}",
        ]

    def _row(self) -> str:
        """Return a thread's i-th row, in runs, which compilers read from a strip at once."""
        run, threads = min(VECTOR, self._tile.thread_rows), self._threads // self._across
        return f"(i / {run} * {threads} + down) * {run} + i % {run}"

    def _column(self) -> str:
        """Return a thread's j-th column, in pairs, so that neighbours still write neighbours."""
        run = min(2, self._tile.thread_columns)
        return f"(j / {run} * {self._across} + across) * {run} + j % {run}"

    def _finish(self, parts: Parameter | None) -> list[str]:
        of, tile = self._of, self._tile
        write, column = of.finish("row", "column", "sums[i][j]"), of.finish_column("column")
        if parts is not None:
            at = f"(({self._parts_index})unit * {of.rows} + row) * {of.columns} + column"
            write, column = [f"parts[{at}] = sums[i][j];"], []
        return [
            *self._over("j", tile.thread_columns),
            "{",
            f"const {of.index} column = right_first + {self._column()};",
            f"if (column < {of.columns}) {{",
            *column,
            *self._over("i", tile.thread_rows),
            "{",
            f"const {of.index} row = left_first + {self._row()};",
            f"if (row < {of.rows}) {{",
            *write,
            "}",
            "}",
            "}",
            "}",
        ]


_FLOATS = ("f32", "f64")
