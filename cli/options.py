"""Options and exit codes that several commands share."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .completion import complete_inputs
from .help import option
from .inputs import ItemSource
from .output import print_error, print_note
from .parsing import CommandError

if TYPE_CHECKING:
    from .stream import Streamed

EXIT_FAILED, EXIT_MISTAKE, EXIT_INTERRUPTED = 1, 2, 130
SHOWN_ERRORS = 10


class _File(click.Path):
    """A path, but not a dash."""

    def convert(self, value: Any, *context: Any) -> Any:
        if value == "-":
            raise CommandError(
                "'-' is not the name of a file, and no standard stream either here",
                fix="name a file; ./- is one that is called -",
            )
        return super().convert(value, *context)


class _Output(_File):
    """A path, or a dash for the standard output."""

    def convert(self, value: Any, *context: Any) -> Any:
        return STDOUT if value == "-" else super().convert(value, *context)


class _Model(_File):
    """A model's path, or for a dash the bytes of the standard input."""

    def convert(self, value: Any, *context: Any) -> Any:
        if value == "-":
            return sys.stdin.buffer.read()
        return super().convert(value, *context)


STDOUT = Path("-")
PATH = _File(path_type=Path)
OUTPUT = _Output(path_type=Path)
MODEL = _Model(path_type=Path)

as_json = option("Output", "--json", "as_json", is_flag=True, help="Print JSON and nothing else.")
trace_option = option(
    "Output", "--trace", type=PATH, metavar="FILE", help="Save a timeline for ui.perfetto.dev."
)
params_option = option(
    "Model",
    "--params",
    type=PATH,
    metavar="FILE",
    help="The model's separate file of parameters, if it is not beside the model.",
)
format_option = option(
    "Model",
    "--format",
    "model_format",
    metavar="NAME",
    help="The model's format, such as onnx, if content and suffix do not show it.",
)
operators_option = option(
    "Model",
    "--operators",
    type=PATH,
    multiple=True,
    metavar="FILE",
    help="First register the operators that a JSON file defines.",
)
html_option = option(
    "Output", "--html", type=PATH, metavar="FILE", help="Write a report for a browser."
)
faster_option = option(
    "Planning",
    "--faster",
    multiple=True,
    metavar="OP=FACTOR",
    help="What if: by how many times an operator, node or step, or all of 'net/*', is faster.",
)
in_flight = option(
    "Planning",
    "--max-in-flight",
    type=click.IntRange(min=1),
    metavar="K",
    help="Number of items in flight; by default 1, or the number of a saved plan.",
)
inputs_option = option(
    "Inputs",
    "--input",
    "inputs",
    multiple=True,
    metavar="[NAME=]SOURCE",
    shell_complete=complete_inputs,
    help='Value of an input: FILE.npy, FILE.npz, a number, a list such as [1,2], ["a"], or random; '
    "an image, with pixels from 0 to 255; for an input uint8[n] the bytes of any file. "
    "Without NAME, all arrays of an .npz file.",
)
seed_option = option(
    "Inputs",
    "--seed",
    type=click.IntRange(min=0, max=2**64 - 1),
    default=0,
    show_default=True,
    help="Seed of random inputs, and of random numbers that the model draws.",
)


def is_interrupt(error: BaseException) -> bool:
    """Return whether `error` is by Ctrl-C; event loops raise it in a group."""
    if isinstance(error, BaseExceptionGroup):
        return error.subgroup(KeyboardInterrupt) is not None
    return isinstance(error, KeyboardInterrupt)


def exit_if_failed(streamed: Streamed) -> None:
    failures = sorted(streamed.failures.items())
    for index, error in failures[:SHOWN_ERRORS]:
        print_error(error, where=f"item {index}: ")
    if len(failures) > SHOWN_ERRORS:
        print_note(f"{len(failures) - SHOWN_ERRORS} more items failed")
    if streamed.was_interrupted:
        click.get_current_context().exit(EXIT_INTERRUPTED)
    if failures:
        click.get_current_context().exit(EXIT_FAILED)


def print_notes(feeds: ItemSource) -> None:
    for note in feeds.notes:
        print_note(note)
