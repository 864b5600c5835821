"""``plait job``: a model over a data set, stopped at any moment and resumed exactly."""

from __future__ import annotations

import json
import os
import sys
from contextlib import chdir
from time import monotonic
from typing import TYPE_CHECKING, Any

import click

from .cluster import parse_replicas, replicas_option
from .help import Command
from .options import EXIT_FAILED, as_json, in_flight, seed_option
from .output import print_json, print_note, print_text, show_progress
from .parsing import CommandError
from .plan import PlanArguments, add_plan_options

if TYPE_CHECKING:
    from ..scheduler.jobs import JobStatus

EXAMPLES = """
plait job run model.onnx --source 'data/*.parquet' --folder scores --devices cpu,worker:0..3
plait job run model.onnx --source 's3://bucket/*.tar' --folder s3://bucket/scores --sink jsonl
plait job run model.onnx --source 'a/*.tar' --folder scores --order shard --ray auto --replicas 4
plait job status scores
plait job resume scores
plait job repair scores
"""

ARGUMENTS, ACTION, ACCEPT = "plait.job.arguments", "plait.job.action", "--accept-changes"

NOTE_S, LOG_S = 10.0, 60.0
"""Seconds between two statements of the status on a terminal, and two lines of a log."""

FOLDER = click.argument("folder")
ACCEPT_OPTION = click.option(ACCEPT, is_flag=True, help="Resume with another model or source.")


class _Group(Command, click.Group):
    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_options(ctx, formatter)
        self.format_commands(ctx, formatter)


class _Repeatable(Command):
    """A command that keeps its folder and arguments, so that it can be called again."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta.setdefault(ARGUMENTS, (os.getcwd(), *(one for one in args if one != ACCEPT)))
        return super().parse_args(ctx, args)


@click.group("job", cls=_Group, examples=EXAMPLES)
def job() -> None:
    """Run a model over a data set; a job that was stopped resumes from its last commit."""


@job.command(cls=_Repeatable, examples=EXAMPLES)
@add_plan_options
@click.option(
    "--source",
    required=True,
    metavar="PATH",
    help="Parquet, Arrow or CSV files, JSON lines, shards (.tar), a queue (.sqlite), or a folder "
    "or pattern of other files; or a URL of any. Columns feed the inputs of their names.",
)
@click.option(
    "--folder", required=True, metavar="PATH", help="Gets results and commits; a folder or a URL."
)
@click.option(
    "--sink",
    metavar="FORMAT",
    default="parquet",
    show_default=True,
    help="parquet, arrow, jsonl or npz; or the files of all items, such as 'out/{id}.json'.",
)
@click.option("--commit-s", type=click.FloatRange(min=0), default=10.0, show_default=True)
@click.option("--commit-items", type=click.IntRange(min=1), help="Also commit after N items.")
@click.option("--part-items", type=click.IntRange(min=1), default=10_000, show_default=True)
@click.option("--carry", multiple=True, metavar="COLUMN", help="Copy a column, such as an id.")
@click.option("--max-failed", type=click.IntRange(min=0), help="Stop when more items fail.")
@click.option("--batch", type=click.IntRange(min=1), help="Run N items at once, stacked.")
@click.option(
    "--order",
    type=click.Choice(["item", "shard"]),
    default="item",
    show_default=True,
    help="By shard, hosts of --replicas write their parts themselves; they must share the folder.",
)
@ACCEPT_OPTION
@replicas_option
@in_flight
@seed_option
@as_json
def run(
    request: PlanArguments,
    source: str,
    sink: str,
    folder: str,
    replicas: str | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Run MODEL over the items of a source, or resume from the last commit in the folder.

    Ctrl-C and SIGTERM end the job once the items in flight are committed.
    """
    from ..scheduler.jobs import Job

    ctx = click.get_current_context()
    if size := parse_replicas(replicas, request.cluster, request.devices):
        options |= {"cluster": request.cluster, "replicas": {"n": size}}
    made = Job(request.plan(), source, sink, folder, **options)
    made.command = ctx.meta[ARGUMENTS]
    action, before = ctx.meta.get(ACTION, "run"), made.status()
    total, begin = (before.total, before.position) if action == "run" else (before.failed, 0)
    pause_s = NOTE_S if sys.stderr.isatty() else LOG_S
    due_s = monotonic() + pause_s
    with show_progress(action, total, begin) as advance:

        def note(done: int) -> None:
            nonlocal due_s
            is_due = monotonic() >= due_s
            advance(str(made.status()) if is_due else "", done if action == "run" else None)
            due_s = monotonic() + pause_s if is_due else due_s

        status = getattr(made, action)(progress=note)
    _show(status, as_json)
    if status.failed:
        with (made.folder / status.errors[0]).open(encoding="utf-8") as lines:
            first = json.loads(next(lines))
        print_note(f"item {first['position']}: {first['error']}")
        print_note(f"all errors are in {made.folder / 'errors'}")
        ctx.exit(EXIT_FAILED)


@job.command(cls=Command)
@FOLDER
@ACCEPT_OPTION
def resume(folder: str, accept_changes: bool) -> None:
    """Resume the job in FOLDER, by the command that began it."""
    _repeat(folder, "run", [ACCEPT] if accept_changes else [])


@job.command(cls=Command)
@FOLDER
def repair(folder: str) -> None:
    """Run the failed items of the job in FOLDER again, once it is done."""
    _repeat(folder, "repair", [])


@job.command(cls=Command)
@FOLDER
@as_json
def status(folder: str, as_json: bool) -> None:
    """Show how far the job in FOLDER has come, also while it runs."""
    _show(_read(folder), as_json)


def _repeat(folder: str, action: str, more: list[str]) -> None:
    """Call the command that began the job in `folder` again, for `action`, with `more` options."""
    from ..scheduler.jobs.folders import to_path

    found, ctx = _read(folder), click.get_current_context()
    if not found.command:
        raise CommandError(
            f"the job in {folder} was not begun by plait job run",
            fix=f"call {action}() of its Job in Python",
        )
    where, *arguments = found.command
    given = [*arguments, *more, "--folder", str(to_path(folder).resolve())]
    ctx.meta.update({ACTION: action, ARGUMENTS: found.command})
    with chdir(where), run.make_context("run", given, parent=ctx) as repeated:
        run.invoke(repeated)


def _read(folder: str) -> JobStatus:
    from ..scheduler.jobs.commits import MANIFEST, show_status
    from ..scheduler.jobs.folders import to_path

    path = to_path(folder)
    if not (path / MANIFEST).exists():
        raise CommandError(
            f"{folder} has no job", fix="plait job run MODEL --folder FOLDER begins one"
        )
    return show_status(path)


def _show(found: JobStatus, as_json: bool) -> None:
    if as_json:
        import msgspec

        print_json({**msgspec.structs.asdict(found), "left_s": found.left_s})
    else:
        print_text(str(found))
