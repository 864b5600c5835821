"""What most commands begin with: a model, the devices to run it on, and the plan for them."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .cli_inputs import CommandError, parse_devices, parse_pins, parse_shapes

if TYPE_CHECKING:
    from .scheduler.planning import Plan

PATH = click.Path(path_type=Path)


@dataclass(frozen=True, slots=True)
class Request:
    """A model and how it is to be planned."""

    model: Path
    devices: tuple[str, ...]
    pins: Mapping[str, str]
    shapes: Mapping[str, tuple[int, ...]]

    def plan(self, max_in_flight: int = 1) -> Plan:
        """Load the model and plan it."""
        from .graph.formats import load
        from .scheduler.planning import plan

        return plan(
            load(self.model),
            self.devices,
            pin=self.pins,
            shapes=self.shapes,
            max_in_flight=max_in_flight,
        )


def asks_for_plan(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the argument MODEL and the options that planning needs, as a `Request`."""

    @click.argument("model", type=PATH)
    @click.option(
        "--devices",
        default="cpu",
        metavar="NAMES",
        show_default=True,
        help="Devices in order of preference, such as worker:0,cpu.",
    )
    @click.option(
        "--pin",
        "pins",
        multiple=True,
        metavar="NODE=DEVICE",
        help="Run a node, or all nodes that match a pattern such as 'encoder.*', there.",
    )
    @click.option(
        "--shape",
        "shapes",
        multiple=True,
        metavar="NAME=1,3,48,320",
        help="Shape of an input whose dimensions are symbolic.",
    )
    @click.option(
        "--import",
        "modules",
        multiple=True,
        metavar="MODULE",
        help="Import a Python module or file first, for the operators that it registers.",
    )
    @wraps(command)
    def with_request(
        model: Path,
        devices: str,
        pins: tuple[str, ...],
        shapes: tuple[str, ...],
        modules: tuple[str, ...],
        **options: Any,
    ) -> None:
        import_modules(modules)
        request = Request(model, parse_devices(devices), parse_pins(pins), parse_shapes(shapes))
        command(request, **options)

    return with_request


def import_modules(modules: tuple[str, ...]) -> None:
    """Import modules, by name (from this folder too) or as files.

    Raises
    ------
    CommandError
        If there is no such module, or it fails.
    """
    for module in modules:
        path = Path(module)
        folder, name = (path.parent, path.stem) if path.suffix == ".py" else (Path(), module)
        sys.path.insert(0, str(folder.resolve()))
        try:
            importlib.import_module(name)
        except (Exception, SystemExit) as error:  # a module may raise anything
            raise CommandError(
                f"cannot import {module!r}: {type(error).__name__}: {error}",
                fix="name a module, or a .py file",
            ) from error
