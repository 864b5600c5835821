"""``plait pack``: offsets for the blocks of a CSV file."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ..graph.formats.files import read_file, replace_file
from ..graph.values.errors import escape_unprintable
from .help import Command
from .options import EXIT_FAILED, PATH
from .output import check_writable, print_json, print_text
from .parsing import CommandError

if TYPE_CHECKING:
    from ..scheduler.packing.packing import Solver
    from ..scheduler.packing.relation import Packing

EXAMPLES = """
plait pack buffers.csv --capacity 1048576
plait pack buffers.csv --deadline 60 --output offsets.csv
"""


@click.command(cls=Command, examples=EXAMPLES)
@click.argument("file", type=PATH)
@click.option(
    "--capacity",
    type=click.IntRange(min=0),
    metavar="N",
    help="Stop at the first packing within N bytes. Exit code 1 if none is found.",
)
@click.option(
    "--deadline",
    type=click.FloatRange(min=0),
    default=10.0,
    show_default=True,
    metavar="SECONDS",
    help="Return the best packing found by then.",
)
@click.option("--output", type=PATH, metavar="FILE", help="Write to a file instead of stdout.")
@click.option(
    "--solver",
    type=click.Choice(["auto", "python", "compiled"]),
    default="auto",
    show_default=True,
    help="Implementation of the exact search, which runs if no heuristic is good enough.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON on stdout.")
def pack(
    file: Path,
    capacity: int | None,
    deadline: float,
    output: Path | None,
    solver: Solver,
    as_json: bool,
) -> None:
    """Assign an offset to every block in FILE, in as few bytes as possible.

    FILE is CSV with the columns id, lower, upper and size, as MiniMalloc reads it: a block of that
    size is alive from lower to just before upper. It is printed with a column offset; a summary
    goes to stderr.
    """
    from ..scheduler.packing import check
    from ..scheduler.packing import pack as pack_blocks
    from ..scheduler.packing.table import read_table

    check_writable(output)
    table = read_table(_read(file), str(file))
    packing = pack_blocks(
        table.blocks, table.lives, capacity=capacity, deadline_s=deadline, solver=solver
    )
    check(table.blocks, table.lives, packing)
    fits = capacity is None or packing.nbytes <= capacity
    text = table.with_offsets(packing.offsets)
    if output is not None:
        replace_file(output, [text.encode()], CommandError)
    elif not as_json:
        shown = escape_unprintable(text) if sys.stdout.isatty() else text
        click.echo(shown.encode(), nl=False)
    if as_json:
        print_json({**_to_dict(packing), "capacity": capacity, "fits": fits})
    else:
        print_text(_describe(packing), to_stderr=True)
    if not fits:
        print_text(f"error: no packing inside {capacity:,} bytes was found", to_stderr=True)
        click.get_current_context().exit(EXIT_FAILED)


def _read(file: Path) -> str:
    try:
        return bytes(read_file(file, CommandError)).decode()
    except UnicodeDecodeError as error:
        raise CommandError(f"{file} is not text", fix="name a CSV file in UTF-8") from error


def _to_dict(packing: Packing) -> dict[str, object]:
    keys = ("offsets", "nbytes", "lower_bound", "is_optimal", "algorithm", "seconds")
    return {key: getattr(packing, key) for key in keys}


def _describe(packing: Packing) -> str:
    gap = "optimal" if packing.is_optimal else f"lower bound {packing.lower_bound:,}"
    how = packing.algorithm or "no blocks"
    return f"{packing.nbytes:,} bytes ({gap}), {how}, {packing.seconds:.2f} s"
