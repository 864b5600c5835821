"""``plait profile``: where the time goes, and what that tells of costs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from .cli_inputs import CommandError, Feeds, parse_input
from .cli_options import (
    EXIT_CODES,
    IN_FLIGHT,
    as_json,
    exit_if_failed,
    html_option,
    in_flight,
    inputs_option,
    print_notes,
    seed_option,
    trace_option,
)
from .cli_output import check_writable, print_json, writing
from .cli_plan import Request, asks_for_plan

if TYPE_CHECKING:
    from .graph.tensor import Array
    from .scheduler.planning import Plan
    from .scheduler.profile import Profile


@click.command(epilog=EXIT_CODES)
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
@html_option
@as_json
def profile(
    request: Request,
    inputs: tuple[str, ...],
    seed: int,
    max_in_flight: int | None,
    repeat: int,
    trace: Path | None,
    html: Path | None,
    as_json: bool,
) -> None:
    """Run MODEL repeatedly and show where the time goes.

    Inputs not given are random, and the same for each item. What was measured is added to the file
    of --costs, which is made if it is not there.
    """
    from .cli_stream import run_stream, save_trace

    for path in (trace, html, request.costs):
        check_writable(path)
    plan = request.with_costs_if_there().plan(max_in_flight, IN_FLIGHT)
    feeds = Feeds(plan.graph, [parse_input(text) for text in inputs], seed=seed, fill=True)
    first = feeds.item(0)
    print_notes(feeds)
    # Random numbers are made once, or making them would be what is measured.
    make_item = feeds.item if feeds.count else lambda index: first
    count = min(repeat, feeds.count or repeat)
    streamed = run_stream(plan, make_item, count, None, what="profiling", measure=True)
    measured = streamed.profile
    assert measured is not None
    save_trace(measured, trace)
    if request.costs is not None:
        _add_costs(measured, _static(plan, first), request.costs)
    if html is not None:
        from .scheduler.explain.html import write_html

        write_html(html, _static(plan, first), measured)
    if as_json:
        print_json(measured.to_dict())
    else:
        click.echo(measured.table())
    exit_if_failed(streamed)


def _static(plan: Plan, item: Mapping[str, Array]) -> Plan:
    """Return the plan for the shapes of an item; as it is, where values decide more of them."""
    return plan if plan.is_static else plan.for_shapes({n: a.shape for n, a in item.items()})


def _add_costs(profile: Profile, plan: Plan, file: Path) -> None:
    """Add what was measured to a file of costs."""
    from .scheduler.costs import Costs

    if not plan.is_static:
        raise CommandError(
            "the costs of a model whose shapes depend on values cannot be told apart",
            fix="leave --costs out",
        )
    known = Costs.load(file) if file.exists() else Costs()
    with writing(file):
        known.merged(Costs.from_profile(profile, plan)).save(file)
