"""Options that most commands begin with: a model and how to plan it, or a saved plan."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import wraps
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..devices.automatic import AUTO
from ..graph.values.errors import describe_error
from .cluster import join_cluster, ray_option
from .completion import (
    complete_devices,
    complete_pins,
    complete_shapes,
    complete_symbols,
    complete_tensors,
)
from .help import Adder, add_options, option
from .options import MODEL, PATH, format_option, operators_option, params_option
from .parsing import (
    CommandError,
    parse_bounds,
    parse_device_options,
    parse_devices,
    parse_limits,
    parse_pins,
    parse_precisions,
    parse_shapes,
)

if TYPE_CHECKING:
    from ..devices import Device
    from ..graph.core.ir import Graph
    from ..graph.passes.pipeline import Pass
    from ..scheduler.plans.plan import Plan
    from ..scheduler.ray import Cluster
    from .inputs import Given

STRATEGIES = ("auto", "preference", "tengine")
OBJECTIVES = ("latency", "throughput")

_DECISIONS = {
    "pin": ("--pin", "pins"),
    "bounds": ("--bound", "bounds"),
    "strategy": ("--strategy", "strategy"),
    "objective": ("--objective", "request.objective"),
    "max_subgraphs": ("--max-subgraphs", "request.max_subgraphs"),
    "memory_limits": ("--memory-limit", "request.memory_limits"),
    "passes": ("--passes", "passes"),
    "precision": ("--precision", "request.precision"),
}
"""For keywords of `plan` the option, and the attribute of the plan."""


@dataclass(frozen=True, slots=True)
class PlanArguments:
    """A model with the arguments for planning it, or a saved plan."""

    model: Path | bytes
    """Bytes if it was read from the standard input."""
    devices: tuple[str, ...] = ()
    """Empty for those of the saved plan, or ``"auto"``."""
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    costs: Path | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    """Other keywords of `plan` that are given."""
    fetched: tuple[str, ...] = ()
    """Tensors to compute instead of all outputs."""
    cluster: Cluster | None = None
    """The cluster, joined while the command runs."""
    params: Path | None = None
    """The model's parameters, if they are not next to it."""
    format: str | None = None
    """The name of the model's format."""
    device_options: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """By device."""
    given_inputs: frozenset[str] = frozenset()
    """Constants among them are fed in place of the model's values."""

    def plan(self, max_in_flight: int | None = None) -> Plan:
        """Load the model and plan it for `max_in_flight` items.

        Raises CommandError if the model is a saved plan, and an option contradicts it; FetchError
        if it lacks a fetched tensor.
        """
        plan = self._whole(max_in_flight)
        return plan.fetching(*self.fetched) if self.fetched else plan

    def _whole(self, max_in_flight: int | None) -> Plan:
        from ..scheduler.planner.api import plan

        if self.is_saved:
            return self._saved(max_in_flight)
        options = dict(self.options)
        if max_in_flight is not None:
            options["max_in_flight"] = max_in_flight
        return plan(
            load_graph(self.model, self.params, self.format, self.given_inputs),
            self.listed_devices(),
            shapes=self.shapes,
            costs=self.costs,
            **options,
        )

    def listed_devices(self) -> list[str | Device]:
        """Return the devices to plan for; those with options are objects.

        Raises CommandError if a device lacks an option, or is not among the devices;
        DeviceUnavailableError if this machine lacks a device with options.
        """
        from ..scheduler.plans.replicas import expand_auto

        if not self.device_options:
            return [*(self.devices or (AUTO,))]
        names = [str(name) for name in expand_auto(self.devices or (AUTO,))]
        strange = ", ".join(name for name in self.device_options if name not in names)
        if strange:
            raise CommandError(
                f"--device-option names {strange}, and the devices are {','.join(names)}",
                fix="name one of them; replicas have none",
            )
        made = {device.name: device for device in self._configured()}
        return [made.get(name, name) for name in names]

    def _configured(self) -> list[Device]:
        from ..devices.errors import DeviceError, DeviceUnavailableError
        from ..devices.registry import find

        try:
            return [find(name, options) for name, options in self.device_options.items()]
        except DeviceUnavailableError:
            raise
        except DeviceError as error:
            raise CommandError(error.what, fix=error.fix or "leave --device-option out") from error

    @property
    def is_saved(self) -> bool:
        from ..scheduler.reports.plan_file import is_saved_plan

        return is_saved_plan(self.model)

    def with_inputs(self, given: Iterable[Given]) -> PlanArguments:
        """Return the request with the names of the inputs `given`, which the command feeds."""
        return replace(self, given_inputs=frozenset(one.name for one in given if one.name))

    def without_costs(self) -> PlanArguments:
        """Return the request without its file of costs, which a saved plan refuses."""
        return replace(self, costs=None)

    def _saved(self, max_in_flight: int | None) -> Plan:
        from ..scheduler.reports.plan_file import load_plan

        plan = load_plan(self.model, self._configured())
        # Options that repeat the plan's decisions are accepted: scripts pass them to all commands.
        other = [
            flag
            for name, (flag, attribute) in _DECISIONS.items()
            if name in self.options and self.options[name] != attrgetter(attribute)(plan)
        ]
        files = ("costs", "params", "format")
        other += [f"--{name}" for name in files if getattr(self, name) is not None]
        if other:
            raise CommandError(
                f"{', '.join(other)}: that is decided in a saved plan",
                fix="plan the model again, and save it",
            )
        if self.devices and self.devices != plan.device_names:
            raise CommandError(
                f"the plan is for {','.join(plan.device_names)}, not for {','.join(self.devices)}",
                fix="leave --devices out, or plan the model again",
            )
        if max_in_flight not in (None, plan.in_flight):
            raise CommandError(
                f"the plan is for {plan.in_flight} items in flight, not for {max_in_flight}",
                fix="leave --max-in-flight out, or plan the model again",
            )
        # Without other options the saved plan is used unchanged, instead of planning again.
        fixed = {name: spec.shape for name, spec in plan.fed.tensors.items()}
        asked = any(fixed.get(name) != shape for name, shape in self.shapes.items())
        return plan.for_shapes(self.shapes) if asked else plan


def load_graph(
    model: Path | bytes,
    params: Path | None,
    format: str | None = None,
    feed: frozenset[str] = frozenset(),
) -> Graph:
    """Load `model`, in `format`, with `params`; the constants that `feed` names become inputs."""
    from ..graph.building.editing import feed_constants
    from ..graph.formats.graphs import load

    graph = load(model, parameters=params, format=format)
    constants = sorted(feed & graph.constants.keys())
    return feed_constants(graph, constants) if constants else graph


def add_plan_options(command: Callable[..., None]) -> Callable[..., None]:
    @wraps(command)
    def with_request(
        model: Path | bytes,
        devices: str | None,
        device_options: tuple[str, ...],
        pins: tuple[str, ...],
        shapes: tuple[str, ...],
        bounds: tuple[str, ...],
        memory_limits: tuple[str, ...],
        costs: Path | None,
        modules: tuple[str, ...],
        strategy: str | None,
        objective: str | None,
        max_subgraphs: int | None,
        passes: str | None,
        precisions: tuple[str, ...],
        fetched: tuple[str, ...],
        address: str | None,
        params: Path | None,
        model_format: str | None,
        operators: tuple[Path, ...],
        **options: Any,
    ) -> None:
        # First, since the model may use operators that these register.
        import_modules(modules)
        register_operators(operators)
        decisions = {
            "pin": parse_pins(pins),
            "bounds": parse_bounds(bounds),
            "strategy": strategy,
            "objective": objective,
            "max_subgraphs": max_subgraphs,
            "memory_limits": parse_limits(memory_limits),
            "precision": parse_precisions(precisions),
        }
        # Only given options: for the others there are defaults, or those of a saved plan.
        given = {name: value for name, value in decisions.items() if value}
        # Unlike above, an empty value is a choice.
        if passes is not None:
            given["passes"] = _parse_passes(passes)
        names = () if devices is None else parse_devices(devices)
        sized = parse_shapes(shapes)
        cluster = join_cluster(address, names)
        configured = parse_device_options(device_options)
        asked = PlanArguments(
            model, names, sized, costs, given, fetched, cluster, params, model_format, configured
        )
        command(asked, **options)

    return add_options(with_request, _OPTIONS)


def _parse_passes(text: str) -> tuple[Pass, ...]:
    """Return the passes in `text`: ``fold_scale,fuse_softmax``, ``-fold_scale`` or ``none``."""
    from ..graph.passes import select_passes

    names = [name.strip() for name in text.split(",")]
    return () if names == ["none"] else select_passes(names)


_OPTIONS: tuple[Adder, ...] = (
    click.argument("model", type=MODEL),
    params_option,
    format_option,
    operators_option,
    option(
        "Devices",
        "--devices",
        show_default=AUTO,
        shell_complete=complete_devices,
        metavar="NAMES",
        help="Devices in order of preference, such as worker:0,cpu. auto: all that compute here, "
        "frozen: auto without measuring, exact: cpu.",
    ),
    option(
        "Devices",
        "--device-option",
        "device_options",
        multiple=True,
        metavar="DEVICE.OPTION=VALUE",
        help="Set an option of a device: cpu.threads=2, or worker:0.affinity=0-3.",
    ),
    ray_option,
    option(
        "Devices",
        "--pin",
        "pins",
        multiple=True,
        shell_complete=complete_pins,
        metavar="NODE=DEVICE",
        help="Run a node, or all nodes that match a pattern such as 'encoder.*', on a device.",
    ),
    option(
        "Shapes",
        "--shape",
        "shapes",
        multiple=True,
        shell_complete=complete_shapes,
        metavar="NAME=1,3,48,320",
        help="Shape of an input that has symbolic dimensions.",
    ),
    option(
        "Shapes",
        "--bound",
        "bounds",
        multiple=True,
        shell_complete=complete_symbols,
        metavar="SYMBOL=32:640",
        help="Plan once for all lengths of a symbol, from the smallest to the largest. By default "
        "the smallest is 1, or 0 for a computed length.",
    ),
    option(
        "Planning",
        "--strategy",
        type=click.Choice(STRATEGIES),
        show_default=STRATEGIES[0],
        help="How nodes are assigned to devices: by predicted time, each to the first device that "
        "supports it, or by Tengine's rule.",
    ),
    option(
        "Planning",
        "--objective",
        type=click.Choice(OBJECTIVES),
        show_default=OBJECTIVES[0],
        help="What to minimize: the time of one item, or the time from one result to the next.",
    ),
    option(
        "Planning",
        "--costs",
        type=PATH,
        metavar="FILE",
        help="Costs to plan with, a file of plait profile, plait tune or plait devices --measure.",
    ),
    option(
        "Planning",
        "--max-subgraphs",
        type=click.IntRange(min=1),
        metavar="N",
        help="Cut the model into at most this many subgraphs.",
    ),
    option(
        "Devices",
        "--memory-limit",
        "memory_limits",
        multiple=True,
        metavar="NAME=SIZE",
        help="Use at most SIZE of a device's memory, or of a memory, such as 2GiB or 512MB.",
    ),
    option(
        "Planning",
        "--passes",
        show_default="all",
        metavar="NAME,-NAME,+NAME",
        help="Simplify the graph by these passes only; -NAME leaves out one of the usual passes, "
        "+NAME adds an optional one; none leaves every node as it is.",
    ),
    option(
        "Devices",
        "--precision",
        "precisions",
        multiple=True,
        metavar="[DEVICE=]float16",
        help="Compute in float16 where that is safe, on all devices or on one.",
    ),
    option(
        "Shapes",
        "--fetch",
        "fetched",
        multiple=True,
        shell_complete=complete_tensors,
        metavar="TENSOR",
        help="Compute this tensor instead of all outputs; only the nodes that it needs run.",
    ),
    option(
        "Model",
        "--import",
        "modules",
        multiple=True,
        metavar="MODULE",
        help="Import a Python module or file first, for the operators that it registers.",
    ),
)


def register_operators(files: tuple[Path, ...]) -> None:
    from ..graph.formats.definitions import load_operators

    for file in files:
        load_operators(file)


def import_modules(modules: tuple[str, ...]) -> None:
    """Import `modules`, by name (from this folder too) or as files; CommandError if one fails."""
    for module in modules:
        path = Path(module)
        folder, name = (path.parent, path.stem) if path.suffix == ".py" else (Path(), module)
        # Not removed: the module's functions may import neighbours later.
        sys.path.insert(0, str(folder.resolve()))
        try:
            importlib.import_module(name)
        except (Exception, SystemExit) as error:  # a module may raise anything
            raise CommandError(
                f"cannot import {module!r}: {describe_error(error)}",
                fix="name a module, or a .py file",
            ) from error
