"""Output of the command line: tables, summaries, progress, files."""

from __future__ import annotations

import json
import math
import re
import sys
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from shlex import quote
from typing import Any, BinaryIO
from urllib.parse import quote as percent_encode
from urllib.parse import unquote

import click
import numpy as np

from ..graph.formats.files import open_draft
from ..graph.values.dtypes import TEXT, hold_object, is_extension, name_of
from ..graph.values.errors import Argument, PlaitError, escape_unprintable
from ..graph.values.tensor import Array, spec_of
from .parsing import CommandError

LISTED = 1000
"""The largest size of an array with values in JSON summaries."""

_ESCAPED = re.compile("%[0-9A-F]{2}")


def summarize(arrays: Mapping[str, Array], *, most: int | None = LISTED) -> list[dict[str, Any]]:
    """Return the name, spec, minimum, maximum and mean of `arrays`; the last three may be None.

    Arrays of at most `most` values, or of any number if that is None, also have `values`.
    """
    return [
        {
            "name": name,
            **_summarize_array(array),
            **({} if most is not None and array.size > most else {"values": _to_json(array)}),
        }
        for name, array in _hold_objects(arrays).items()
    ]


def print_summary(arrays: Mapping[str, Array]) -> None:
    """Print the summaries of `arrays` as a table, with their first and last values."""
    arrays = _hold_objects(arrays)
    rows = [
        (
            name,
            str(spec_of(array)),
            *(_format_number(summary[key]) for key in ("min", "max", "mean")),
            _shorten_values(array),
        )
        for (name, array), summary in zip(arrays.items(), summarize(arrays, most=0), strict=True)
    ]
    columns = ("output", "spec", "min", "max", "mean", "values")
    print_table(columns, rows, right=("min", "max", "mean"))


def _hold_objects(results: Mapping[str, Any]) -> dict[str, Array]:
    return {n: one if hasattr(one, "dtype") else hold_object(one) for n, one in results.items()}


def _shorten_values(array: Array) -> str:
    is_long = array.size > LISTED
    with np.printoptions(threshold=8, edgeitems=3, precision=4, linewidth=1 << 20):
        return " ".join(str(array.ravel() if is_long else array).split())


def _to_json(array: Array) -> Any:
    if is_extension(array.dtype):
        return array.astype(np.float32).tolist()
    return (array.astype(str) if array.dtype.kind in "cO" else array).tolist()


def print_text(text: str, *, to_stderr: bool = False) -> None:
    """Print `text` with control characters escaped, since names may come from files.

    With `to_stderr` it goes to stderr.
    """
    click.echo(escape_unprintable(text), err=to_stderr)


def print_table(
    columns: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[str] = ()
) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        table.add_column(column, justify="right" if column in right else "left", overflow="fold")
    for row in rows:
        table.add_row(*map(escape_unprintable, row))
    watched = sys.stdout is not None and sys.stdout.isatty()
    console = Console(width=None if watched else 400, markup=False, highlight=False)
    with console.capture() as printed:
        console.print(table)
    lines = (line.rstrip() for line in printed.get().splitlines())
    print_text("\n".join(line for line in lines if line))


def print_json(value: Any) -> None:
    """Print `value` as JSON on stdout; infinities and NaN become null, as JSON has neither."""
    click.echo(json.dumps(_replace_nonfinite(value), indent=2, allow_nan=False))


def print_note(text: str) -> None:
    print_text(f"note: {text}", to_stderr=True)


def print_error(error: BaseException, where: str = "") -> None:
    notes = [f"  {note}" for note in getattr(error, "__notes__", ())]
    text = error.spelled(to_option) if isinstance(error, PlaitError) else str(error)
    print_text("\n".join([f"error: {where}{text}", *notes]), to_stderr=True)


_OPTIONS = {"bounds": ("--bound", ":"), "shapes": ("--shape", ",")}
"""The option of an argument of `plan`, and the separator of its numbers."""


def to_option(argument: Argument) -> str:
    """Return the options of the command line that say the same as `argument` of `plan`."""
    option, between = _OPTIONS[argument.name]
    texts = {
        name: between.join(map(str, lengths)) if isinstance(lengths, tuple) else str(lengths)
        for name, lengths in argument.value.items()
    }
    return " ".join(f"{option} {quote(f'{name}={text}')}" for name, text in texts.items())


def write_arrays(file: Path, arrays: Mapping[str, Array]) -> None:
    """Write `arrays` to the .npz `file`, with names that are safe to unpack into a folder.

    Text has the width of the longest string, since arrays of objects would be pickled. Raises
    CommandError if the file cannot be written.
    """
    # numpy.savez takes names as keyword arguments, and fails for an array called "file".
    with (
        open_draft(file, CommandError) as opened,
        zipfile.ZipFile(opened, "w", zipfile.ZIP_STORED) as archive,
    ):
        for name, array in arrays.items():
            with archive.open(f"{to_member_name(name)}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, _to_saved(array), allow_pickle=False)


def write_npy(file: BinaryIO, arrays: Mapping[str, Array]) -> None:
    if len(arrays) != 1:
        raise CommandError(
            f"--output - writes one output as .npy, and there are {len(arrays)}",
            fix=f"--fetch one of {', '.join(arrays)}, or --json for all",
        )
    (array,) = arrays.values()
    np.lib.format.write_array(file, _to_saved(array), allow_pickle=False)
    file.flush()


def _to_saved(array: Array) -> Array:
    saved = np.asanyarray(array)
    if saved.dtype.kind == "O" and not hasattr(array, "dtype"):
        raise CommandError(
            "a result is a Python object, which files of arrays do not hold",
            fix="--fetch others, or run it from Python: pipe.run(value)",
        )
    return saved.astype(str) if saved.dtype == TEXT else saved


@contextmanager
def convert_write_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise CommandError(
            f"cannot write {path}: {error.strerror or error}", fix="choose another place"
        ) from error


def make_folder(folder: Path) -> None:
    with convert_write_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)


def check_writable(path: Path | None) -> None:
    """Raise CommandError if the file `path` cannot be made, before any work; None always passes."""
    if path is None:
        return
    if not path.parent.is_dir():
        raise CommandError(f"there is no folder {str(path.parent)!r}", fix="make it first")
    if path.is_dir():
        raise CommandError(f"{str(path)!r} is a folder", fix="name a file in it")


@contextmanager
def show_progress(label: str, total: int | None, done: int = 0) -> Iterator[Callable[..., None]]:
    """Show a bar with `label` on stderr if that is a terminal, with `done` of `total` items done.

    Yields a function that advances it. The function takes a note, which is printed as a line if
    stderr is not a terminal, and the number of items that are done, by default one more.
    """
    if not sys.stderr.isatty():
        yield lambda note="", done=None: print_note(note) if note else None
        return
    from rich import progress as rich
    from rich.console import Console

    counts = (rich.BarColumn(), rich.MofNCompleteColumn(), rich.TimeRemainingColumn())
    noted = rich.TextColumn("{task.fields[note]}", markup=False)
    columns = (rich.TextColumn(label), *counts, noted)
    with rich.Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(label, total=total, completed=done, note="")

        def advance(note: str = "", done: int | None = None) -> None:
            changes: dict[str, Any] = {"advance": 1} if done is None else {"completed": done}
            if note:
                changes["note"] = escape_unprintable(note)
            bar.update(task, **changes)

        yield advance


@contextmanager
def show_status() -> Iterator[Callable[[str], None]]:
    """Show a status line on stderr if that is a terminal; yields a function to change it."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console

    with Console(stderr=True, markup=False).status("") as shown:
        yield lambda text: shown.update(escape_unprintable(text))


def _summarize_array(array: Array) -> dict[str, Any]:
    name = name_of(array.dtype)
    summary: dict[str, Any] = {"dtype": name, "shape": list(array.shape)}
    if array.size == 0 or array.dtype.kind in "cO":
        return {**summary, "min": None, "max": None, "mean": None}
    # Sums in half precision would overflow.
    mean = array.mean(dtype=np.float64)
    return {**summary, "min": array.min().item(), "max": array.max().item(), "mean": float(mean)}


def _format_number(value: Any) -> str:
    return "-" if value is None else f"{value:.6g}"


def _replace_nonfinite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _replace_nonfinite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_replace_nonfinite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def to_member_name(name: str) -> str:
    """Return the name of a member of a .npz file for the array `name`.

    It is the same if it is a path inside the folder into which the file may be unpacked.

    In other names, such as ``../x`` and ``/x``, all characters except letters, digits, ``_``, ``-``
    and ``~`` are percent-encoded, as in URLs.
    """
    parts = name.split("/")
    leads_out = not all(parts) or any(set(part) <= {"."} for part in parts)
    if leads_out or set(name) & {"\\", ":"} or not name.isprintable() or _ESCAPED.search(name):
        return percent_encode(name, safe="", errors="surrogatepass").replace(".", "%2E")
    return name


def from_member_name(member: str) -> str:
    name = unquote(member, errors="surrogatepass")
    return name if to_member_name(name) == member else member
