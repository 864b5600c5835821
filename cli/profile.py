"""``plait profile``: measure the times of steps and the costs of nodes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from .help import Command
from .inputs import make_items, parse_input
from .options import (
    as_json,
    exit_if_failed,
    faster_option,
    html_option,
    in_flight,
    inputs_option,
    print_notes,
    seed_option,
    trace_option,
)
from .output import check_writable, print_json, print_note, print_text, to_option
from .parsing import CommandError, parse_factors
from .plan import PlanArguments, add_plan_options

if TYPE_CHECKING:
    from ..scheduler.plans.plan import Plan
    from .stream import MakeItem, Streamed

EXAMPLES = """
plait profile model.onnx --costs costs.json --html profile.html
plait profile model.onnx --repeat 100 --max-in-flight 4 --faster Conv=2 --trace trace.json
"""


@click.command(cls=Command, examples=EXAMPLES)
@add_plan_options
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
    help="Number of items to run.",
)
@faster_option
@trace_option
@html_option
@as_json
def profile(
    request: PlanArguments,
    inputs: tuple[str, ...],
    seed: int,
    max_in_flight: int | None,
    repeat: int,
    faster: tuple[str, ...],
    trace: Path | None,
    html: Path | None,
    as_json: bool,
) -> None:
    """Run MODEL repeatedly and show where the time goes.

    Inputs that are not given are random, and the same for each item. Measurements are added to the
    file of --costs, which is created if missing.
    """
    from ..scheduler.costs import Costs
    from ..scheduler.planner.simulate import plan_items_in_flight
    from ..scheduler.profile.table import summarize, write_table
    from ..scheduler.tuning.calibration import complete_costs
    from .stream import save_trace

    for path in (trace, html, request.costs):
        check_writable(path)
    factors = parse_factors(faster)
    file = request.costs
    known = Costs.load(file) if file is not None and file.exists() else Costs()
    plans_by_them = file is not None and file.exists() and not request.is_saved
    givens = [parse_input(text) for text in inputs]
    planned = request if plans_by_them else request.without_costs()
    plan = planned.with_inputs(givens).plan(max_in_flight)
    # A plan with bounds has the costs of its largest shapes.
    graph = plan.fed if file is None else plan.graph
    feeds = make_items(plan, givens, seed=seed, fill=True, graph=graph)
    first = feeds.item(0)
    static = plan if plan.is_static else plan.for_shapes({n: a.shape for n, a in first.items()})
    if file is not None and not static.is_static:
        raise CommandError(
            "the costs of a model whose shapes depend on values cannot be told apart",
            fix="leave --costs out",
        )
    print_notes(feeds)
    # Random numbers are made once, since making them would slow the stream down.
    make_item = feeds.item if feeds.count else lambda index: first
    count = min(repeat, feeds.count or repeat)
    streamed = _measure(plan, make_item, count, "profiling")
    measured = streamed.profile
    assert measured is not None
    save_trace(measured, trace)
    answer = measured.what_if(static, factors) if factors else None
    if file is not None:
        # One item at a time, so that steps do not wait for, or slow down, each other.
        alone = plan_items_in_flight(static, 1)
        if alone is not static:
            measured = _measure(alone, make_item, count, "measuring").profile or measured
        found = complete_costs(Costs.from_profile(measured, alone), alone, first, print_note)
        known.merged(found).save(file)
        print_note(f"wrote {file}")
    if html is not None:
        from ..scheduler.reports.html import write_html

        write_html(html, static, measured)
        print_note(f"wrote {html}")
    if as_json:
        asked = {"what_if": answer.to_dict()} if answer is not None else {}
        print_json({**measured.to_dict(), **asked})
    else:
        table = write_table(measured, to_option)
        parts = (table, *([str(answer)] if answer is not None else []), summarize(measured))
        print_text("\n\n".join(parts))  # the summary comes last: a terminal shows the end
    exit_if_failed(streamed)


def _measure(plan: Plan, make_item: MakeItem, count: int, label: str) -> Streamed:
    from .stream import run_stream

    streamed = run_stream(plan, make_item, count, None, label=label, measure=True)
    if streamed.was_interrupted:
        raise KeyboardInterrupt
    return streamed
