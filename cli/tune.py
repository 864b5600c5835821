"""``plait tune``: the fastest plan for this machine, found by running items."""

from __future__ import annotations

from pathlib import Path

import click

from .help import Command
from .inputs import ItemSource, parse_input
from .options import PATH, as_json, in_flight, inputs_option, print_notes, seed_option
from .output import check_writable, print_json, print_note, print_text, show_status
from .parsing import CommandError
from .plan import PlanArguments, add_plan_options, load_graph

EXAMPLES = """
plait tune model.onnx --devices cpu,compiled,ort --output best.plan
plait tune model.onnx --objective throughput --costs costs.json
"""


@click.command(cls=Command, examples=EXAMPLES)
@add_plan_options
@inputs_option
@seed_option
@in_flight
@click.option("--output", type=PATH, metavar="FILE.plan", help="Save the fastest plan.")
@as_json
def tune(
    request: PlanArguments,
    inputs: tuple[str, ...],
    seed: int,
    max_in_flight: int | None,
    output: Path | None,
    as_json: bool,
) -> None:
    """Find the fastest plan of MODEL on this machine, by running it.

    Each device is measured alone; plans are made from these costs, run, and measured again until
    they no longer change. With --objective throughput, replicas are tried as well, with two more
    items in flight than there are cores unless --max-in-flight says otherwise. Measurements are
    added to the file of --costs, which is created if missing. Inputs that are not given are random.
    """
    from ..scheduler.costs import Costs
    from ..scheduler.shapes.specialise import specialise
    from ..scheduler.tuning import tune as tuned_for

    check_writable(output)
    check_writable(request.costs)
    _check_request(request)
    graph = load_graph(request.model, request.params, request.format)
    feeds = ItemSource(
        specialise(graph, request.shapes, folds=False),
        [parse_input(text) for text in inputs],
        seed=seed,
        fill=True,
    )
    item = feeds.item(0)
    print_notes(feeds)
    known = Costs.load(request.costs) if request.costs and request.costs.exists() else None
    with show_status() as progress:
        found = tuned_for(
            graph,
            request.listed_devices(),
            feeds=item,
            costs=known,
            max_in_flight=max_in_flight,
            progress=progress,
            **request.options,
        )
    if request.costs is not None:
        found.costs.save(request.costs)
        print_note(f"wrote {request.costs}")
    if output is not None:
        found.plan.save(output)
        print_note(f"wrote {output}")
    if as_json:
        print_json(found.to_dict())
    else:
        print_text(found.table())


def _check_request(request: PlanArguments) -> None:
    if request.is_saved:
        raise CommandError(
            "a saved plan is tuned or not: there is nothing left to decide", fix="tune the model"
        )
    if "strategy" in request.options:
        raise CommandError("--strategy: tuning decides that", fix="leave it out")
    if request.fetched:
        raise CommandError(
            "--fetch: the whole model is tuned", fix="leave it out, or plan with --costs"
        )
