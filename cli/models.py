"""``--model``: hardware that this machine lacks, or other hardware in place of a device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from ..devices.errors import DeviceError
from .help import option
from .parsing import CommandError, parse_pairs
from .plan import PlanArguments

if TYPE_CHECKING:
    from ..devices.model import DeviceModel
    from ..scheduler.plans.plan import Plan

models_option = option(
    "Devices",
    "--model",
    "models",
    multiple=True,
    metavar="NAME=FILE.json",
    help="What if a device were this hardware; one that is not here is simulated altogether.",
)


def plan_on_models(
    request: PlanArguments, max_in_flight: int | None, texts: Sequence[str]
) -> tuple[Plan, dict[str, DeviceModel]]:
    """Plan `request`, with `max_in_flight` items, on devices that have the models in `texts`.

    Also returns the models of those devices that this machine has; they do not change a saved plan.
    Raises CommandError if an option is malformed, or names a device that the plan does not have;
    ParseError if a file is not a model.
    """
    from ..scheduler.simulation.models import load_model

    files = parse_pairs(texts, "--model", "NAME=FILE", "gpu=gpu.json", str, splits_first=True)
    models = {name: load_model(file, name) for name, file in files.items()}
    here = _provide(models)
    plan = _plan(request, max_in_flight, here)
    _check_named(models, plan)
    return plan, here


def _provide(models: Mapping[str, DeviceModel]) -> dict[str, DeviceModel]:
    """Simulate the devices in `models` that this machine lacks; return the models of all others."""
    from .. import devices
    from ..scheduler.simulation.models import modelled_device

    here = {}
    for name, model in models.items():
        if _is_here(name):
            here[name] = model
        else:
            with suppress(DeviceError):  # only its kind may be registered
                devices.unregister(name)
            devices.register(name, partial(modelled_device, model=model))
    return here


def _is_here(name: str) -> bool:
    from ..devices.registry import find
    from ..devices.sim import SimDevice

    try:
        found = find(name)
        _ = found.capabilities
    except DeviceError:
        return False
    return not isinstance(found, SimDevice)


def _plan(
    request: PlanArguments, max_in_flight: int | None, models: Mapping[str, DeviceModel]
) -> Plan:
    plan = request.plan(max_in_flight)
    if not models or request.is_saved:
        return plan
    asked = replace(plan.request, costs=plan.costs.with_models(models))
    return replace(plan, request=asked).replan()


def _check_named(models: Mapping[str, DeviceModel], plan: Plan) -> None:
    for name in models:
        if name not in plan.devices:
            raise CommandError(
                f"--model names {name!r}, which is not among the devices",
                fix=f"give it to --devices too; they are {','.join(plan.devices)}",
            )
