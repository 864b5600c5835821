"""``plait simulate``: predict the times of a model, on this machine or on other hardware."""

from __future__ import annotations

from pathlib import Path

import click

from .help import Command
from .models import models_option, plan_on_models
from .options import as_json, faster_option, in_flight, trace_option
from .output import check_writable, print_json, print_text
from .parsing import parse_factors
from .plan import PlanArguments, add_plan_options

EXAMPLES = """
plait simulate model.onnx --devices gpu,cpu --model gpu=gpu.json --items 100
plait simulate model.plan --faster Conv=2
"""


@click.command(cls=Command, examples=EXAMPLES)
@add_plan_options
@models_option
@faster_option
@click.option(
    "--items",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    metavar="N",
    help="Number of items.",
)
@click.option(
    "--keys",
    type=click.IntRange(min=1),
    metavar="N",
    help="Number of keys with a state of their own, in turn.",
)
@in_flight
@trace_option
@as_json
def simulate(
    request: PlanArguments,
    models: tuple[str, ...],
    faster: tuple[str, ...],
    items: int,
    keys: int | None,
    max_in_flight: int | None,
    trace: Path | None,
    as_json: bool,
) -> None:
    """Predict the time of MODEL, its bottleneck, and the memory it needs, without running it.

    Times of kernels come from --costs if measured there, otherwise from models of the devices. For
    a saved plan, costs and the number of items in flight may be changed.
    """
    from ..scheduler.planner.simulate import simulate as predict

    check_writable(trace)
    factors = parse_factors(faster)
    if request.is_saved:  # which refuses other costs or items in flight than it was planned with
        plan, here = plan_on_models(request.without_costs(), None, models)
    else:
        plan, here = plan_on_models(request, max_in_flight, models)
    found = predict(
        plan,
        here,
        items=items,
        max_in_flight=max_in_flight,
        costs=request.costs if request.is_saved else None,
        faster=factors,
        keys=keys,
    )
    if trace is not None:
        found.save(trace)
    if as_json:
        print_json(found.to_dict())
    else:
        print_text(found.table())
