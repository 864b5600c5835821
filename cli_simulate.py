"""``plait simulate``: what a model would do, here or on hardware that is not here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from .cli_inputs import CommandError
from .cli_options import EXIT_CODES, IN_FLIGHT, as_json, in_flight, trace_option
from .cli_output import check_writable, print_json
from .cli_plan import Request, asks_for_plan
from .devices.errors import DeviceError

if TYPE_CHECKING:
    from .devices.model import DeviceModel
    from .scheduler.planning import Plan


@click.command(epilog=EXIT_CODES)
@asks_for_plan
@click.option(
    "--model",
    "models",
    multiple=True,
    metavar="NAME=FILE.json",
    help="What if a device were this hardware; one that is not here is simulated altogether.",
)
@click.option(
    "--faster",
    multiple=True,
    metavar="OP=FACTOR",
    help="What if an operator, or the node of that name, were that many times as fast.",
)
@click.option(
    "--items",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    metavar="N",
    help="How many items go through.",
)
@in_flight
@trace_option
@as_json
def simulate(
    request: Request,
    models: tuple[str, ...],
    faster: tuple[str, ...],
    items: int,
    max_in_flight: int | None,
    trace: Path | None,
    as_json: bool,
) -> None:
    """Predict how long MODEL takes, what limits it, and the memory it needs; nothing is run.

    Kernels take the time that --costs has measured, or else what the models of the devices say.
    """
    from .scheduler.simulation.models import load_model
    from .scheduler.simulation.simulate import simulate as predict

    check_writable(trace)
    factors = _parse_factors(faster)
    named = {name: load_model(file, name) for name, file in _parse_models(models).items()}
    here = _provide(named)
    plan = _planned(request, max_in_flight, here)
    if not plan.is_static:
        raise CommandError(
            "the model's shapes are not all known, so nothing is known of times and memory",
            fix="give those of its inputs: --shape NAME=1,3,48,320",
        )
    found = predict(plan, here, items=items, faster=factors)
    if trace is not None:
        found.save(trace)
    if as_json:
        print_json(found.to_dict())
    else:
        click.echo(found.table())


def _parse_models(texts: Sequence[str]) -> dict[str, str]:
    """Return what ``NAME=FILE`` options say."""
    models = {}
    for text in texts:
        name, _, file = text.partition("=")
        if not name or not file:
            raise CommandError(
                f"--model {text!r} is not NAME=FILE", fix="for example --model gpu=gpu.json"
            )
        models[name] = file
    return models


def _parse_factors(texts: Sequence[str]) -> dict[str, float]:
    """Return what ``OP=FACTOR`` options say."""
    factors = {}
    for text in texts:
        name, _, number = text.rpartition("=")
        try:
            factors[name] = float(number)
        except ValueError:
            name = ""
        if not name or not 0 < factors[name] < float("inf"):
            raise CommandError(
                f"--faster {text!r} is not OP=FACTOR", fix="for example --faster Conv=2"
            )
    return factors


def _provide(models: Mapping[str, DeviceModel]) -> dict[str, DeviceModel]:
    """Make devices that are not here known as simulated ones; return the models of the others."""
    from . import devices
    from .scheduler.simulation.models import modelled_device

    here = {}
    for name, model in models.items():
        if _is_here(name):
            here[name] = model
        else:
            with suppress(DeviceError):  # its kind may be known, the name need not be
                devices.unregister(name)
            devices.register(name, partial(modelled_device, model=model))
    return here


def _is_here(name: str) -> bool:
    """True when a device can be planned for as it is."""
    from .devices.registry import find
    from .devices.sim import SimDevice

    try:
        found = find(name)
        _ = found.capabilities
    except DeviceError:
        return False
    return not isinstance(found, SimDevice)


def _planned(
    request: Request, max_in_flight: int | None, models: Mapping[str, DeviceModel]
) -> Plan:
    """Return the plan that would be made if devices were what these models say."""
    from .scheduler.explain.plan_file import is_saved_plan

    plan = request.plan(max_in_flight, IN_FLIGHT)
    if not models or is_saved_plan(request.model):
        return plan
    return replace(plan, costs=plan.costs.with_models(models)).over(plan.graph)
