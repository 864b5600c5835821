"""The command line: ``plait run``, ``plan``, ``profile``, ``stream``, ``devices``, ``convert``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from . import __version__
from .cli_inputs import CommandError, Feeds, parse_input
from .cli_output import (
    check_writable,
    make_folder,
    print_error,
    print_json,
    print_note,
    print_summary,
    print_table,
    summarise,
    write_arrays,
)
from .cli_plan import PATH, Request, asks_for_plan
from .devices.errors import DeviceError, DeviceUnavailableError
from .graph.errors import InternalError, PlaitError
from .graph.printing import to_dot

if TYPE_CHECKING:
    from .cli_stream import Streamed

EXIT_FAILED, EXIT_MISTAKE, EXIT_INTERRUPTED = 1, 2, 130
SHOWN_ERRORS = 10

EXIT_CODES = """
\b
Exit codes:
  0    it worked
  1    a device, or an item of a stream, failed
  2    the command line, the model or the inputs are wrong
  130  interrupted
"""


class _Commands(click.Group):
    """Turns errors into one message and an exit code."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except PlaitError as error:
            print_error(error)
            ctx.exit(_exit_code(error))
        except BrokenPipeError:  # the reader has had enough: click ends quietly
            raise
        except OSError as error:
            print_error(CommandError(f"cannot write the output: {error.strerror}"))
            ctx.exit(EXIT_FAILED)
        except KeyboardInterrupt:
            ctx.exit(EXIT_INTERRUPTED)
        except BaseExceptionGroup as group:
            if group.subgroup(KeyboardInterrupt) is None:
                raise
            ctx.exit(EXIT_INTERRUPTED)


def _exit_code(error: PlaitError) -> int:
    if isinstance(error, DeviceUnavailableError):  # asked for by name
        return EXIT_MISTAKE
    failed = isinstance(error, DeviceError | InternalError)
    return EXIT_FAILED if failed else EXIT_MISTAKE


@click.group(cls=_Commands, epilog=EXIT_CODES, context_settings={"max_content_width": 100})
@click.version_option(__version__, message="plait %(version)s")
def cli() -> None:
    """Run tensor graphs on several devices at once: plan, run, stream and profile them."""


as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON and nothing else.")
trace_option = click.option(
    "--trace", type=PATH, metavar="FILE", help="Save a timeline, to be opened at ui.perfetto.dev."
)
in_flight = click.option(
    "--max-in-flight",
    type=click.IntRange(min=1),
    default=4,
    show_default=True,
    metavar="K",
    help="How many items are under way at a time.",
)
inputs_option = click.option(
    "--input",
    "inputs",
    multiple=True,
    metavar="[NAME=]SOURCE",
    help="What to feed: FILE.npy, FILE.npz, or random. Without NAME, all arrays of an .npz file.",
)
seed_option = click.option("--seed", default=0, show_default=True, help="Seed of random inputs.")


@cli.command(epilog=EXIT_CODES)
@asks_for_plan
@inputs_option
@seed_option
@click.option("--output", type=PATH, metavar="FILE.npz", help="Write the outputs to a file.")
@trace_option
@as_json
def run(
    request: Request,
    inputs: tuple[str, ...],
    seed: int,
    output: Path | None,
    trace: Path | None,
    as_json: bool,
) -> None:
    """Run MODEL once and show its outputs, or write them to a file."""
    from .cli_stream import run_once

    check_writable(output)
    check_writable(trace)
    plan = request.plan()
    feeds = Feeds(plan.graph, [parse_input(text) for text in inputs], seed=seed, fill=False)
    if feeds.count not in (None, 1):
        raise CommandError(f"the inputs make {feeds.count} items", fix="use plait stream")
    item = feeds.item(0)
    _print_notes(feeds)
    outputs, elapsed_s = run_once(plan, item, trace)
    if output is not None:
        write_arrays(output, outputs)
    if as_json:
        print_json({"outputs": summarise(outputs), "seconds": elapsed_s})
    elif output is not None:
        click.echo(f"wrote {', '.join(outputs)} to {output}")
    else:
        print_summary(outputs)


@cli.command(name="plan", epilog=EXIT_CODES)
@asks_for_plan
@in_flight
@click.option("--nodes", is_flag=True, help="List every node, its device and the reason for it.")
@click.option("--dot", is_flag=True, help="Print the graph for Graphviz, grouped by device.")
@as_json
def show_plan(request: Request, max_in_flight: int, nodes: bool, dot: bool, as_json: bool) -> None:
    """Show which device runs what of MODEL, why, and the memory it takes."""
    plan = request.plan(max_in_flight)
    if dot:
        outer = {node.name: plan.assignment[node.name] for node in plan.graph.nodes}
        click.echo(to_dot(plan.graph, outer))
    elif as_json:
        print_json(plan.to_dict())
    else:
        click.echo(plan.report(nodes=nodes))


@cli.command(epilog=EXIT_CODES)
@asks_for_plan
@inputs_option
@seed_option
@in_flight
@click.option(
    "--repeat",
    "--count",
    "repeat",
    type=click.IntRange(min=1),
    default=20,
    show_default=True,
    metavar="N",
    help="How many items to run.",
)
@trace_option
@as_json
def profile(
    request: Request,
    inputs: tuple[str, ...],
    seed: int,
    max_in_flight: int,
    repeat: int,
    trace: Path | None,
    as_json: bool,
) -> None:
    """Run MODEL repeatedly and show where the time goes.

    Inputs not given are random, and the same for each item.
    """
    from .cli_stream import run_stream, save_trace

    check_writable(trace)
    plan = request.plan(max_in_flight)
    feeds = Feeds(plan.graph, [parse_input(text) for text in inputs], seed=seed, fill=True)
    first = feeds.item(0)
    _print_notes(feeds)
    # Random numbers are made once, or making them would be what is measured.
    make_item = feeds.item if feeds.count else lambda index: first
    count = min(repeat, feeds.count or repeat)
    streamed = run_stream(plan, make_item, count, None, what="profiling", measure=True)
    assert streamed.profile is not None
    save_trace(streamed.profile, trace)
    if as_json:
        print_json(streamed.profile.to_dict())
    else:
        click.echo(streamed.profile.table())
    _exit_if_failed(streamed)


@cli.command(epilog=EXIT_CODES)
@asks_for_plan
@inputs_option
@seed_option
@in_flight
@click.option(
    "--count",
    type=click.IntRange(min=1),
    metavar="N",
    help="Stop after N items; needed for random.",
)
@click.option(
    "--output",
    type=PATH,
    metavar="FOLDER",
    help="Write each item's outputs to FOLDER/NNNN.npz.",
)
@trace_option
@as_json
def stream(
    request: Request,
    inputs: tuple[str, ...],
    seed: int,
    max_in_flight: int,
    count: int | None,
    output: Path | None,
    trace: Path | None,
    as_json: bool,
) -> None:
    """Run MODEL on many items and show how fast that goes.

    SOURCE may also be a folder, or a quoted pattern such as 'frames/*.npy', of one file per item.
    A single file is repeated in every item; inputs not given are random, given --count. An item
    that fails is reported, and the others go on.
    """
    from .cli_stream import run_stream, save_trace

    check_writable(trace)
    plan = request.plan(max_in_flight)
    feeds = Feeds(plan.graph, [parse_input(text) for text in inputs], seed=seed, fill=True)
    counts = [number for number in (count, feeds.count) if number is not None]
    if not counts:
        raise CommandError(
            "it is not said how many items to stream", fix="--count N, or --input NAME=FOLDER"
        )
    if output is not None:
        make_folder(output)
    streamed = run_stream(plan, feeds.item, min(counts), output, what="streaming")
    _print_notes(feeds)
    save_trace(streamed.profile, trace)
    if as_json:
        print_json(streamed.to_dict())
    else:
        click.echo(f"{streamed}, up to {max_in_flight} in flight")
    _exit_if_failed(streamed)


@cli.command(name="devices", epilog=EXIT_CODES)
@click.argument("names", nargs=-1)
@as_json
def show_devices(names: tuple[str, ...], as_json: bool) -> None:
    """Check which devices are there, and say why not.

    All known ones are opened, made to add numbers, and closed; or those in NAMES, where one that is
    missing makes the exit code 1.
    """
    from .devices import names as known_names
    from .devices import probe

    found = [probe(name) for name in names or known_names()]
    if as_json:
        keys = ("name", "found", "reason", "memory_bytes")
        print_json([{key: getattr(status, key) for key in keys} for status in found])
    else:
        rows = [
            (s.name, "found" if s.found else "missing", _gibibytes(s.memory_bytes), s.reason)
            for s in found
        ]
        print_table(("device", "state", "memory", "why"), rows, right=("memory",))
    if names and not all(status.found for status in found):
        click.get_current_context().exit(EXIT_FAILED)


@cli.command(epilog=EXIT_CODES)
@click.argument("model", type=PATH)
@click.argument("output", type=PATH)
def convert(model: Path, output: Path) -> None:
    """Convert MODEL to a .plait file or an ONNX model, as the name of OUTPUT says.

    A .plait file loads faster, and needs no package to be read.
    """
    from .graph.formats import load, save

    graph = load(model)
    save(graph, output)
    constants = sum(array.nbytes for array in graph.constants.values())
    click.echo(
        f"wrote {output}: {len(graph.nodes)} nodes, "
        f"{len(graph.constants)} constants of {constants / 2**20:.1f} MiB"
    )


def _exit_if_failed(streamed: Streamed) -> None:
    failures = sorted(streamed.failures.items())
    for index, error in failures[:SHOWN_ERRORS]:
        print_error(error, where=f"item {index}: ")
    if len(failures) > SHOWN_ERRORS:
        print_note(f"{len(failures) - SHOWN_ERRORS} more items failed")
    if failures:
        click.get_current_context().exit(EXIT_FAILED)


def _print_notes(feeds: Feeds) -> None:
    for note in feeds.notes:
        print_note(note)


def _gibibytes(nbytes: int | None) -> str:
    return "-" if nbytes is None else f"{nbytes / 2**30:.1f} GiB"
