"""``plait devices``: which devices are there, and how fast they are."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .cli_inputs import CommandError
from .cli_options import EXIT_CODES, EXIT_FAILED, as_json
from .cli_output import check_writable, print_json, print_note, print_table, writing

if TYPE_CHECKING:
    from .devices import DeviceStatus
    from .scheduler.costs import Costs

NO_FILE = ""
"""Stands for a file to which measurements are added where none is named."""


@click.command(name="devices", epilog=EXIT_CODES)
@click.argument("names", nargs=-1)
@click.option(
    "--measure",
    "file",
    is_flag=False,
    flag_value=NO_FILE,
    metavar="[FILE]",
    help="Measure how fast they are, about a second each, and add that to a file of costs.",
)
@as_json
def show_devices(names: tuple[str, ...], file: str | None, as_json: bool) -> None:
    """Check which devices are there, and say why not.

    All known ones are opened, made to add numbers, and closed; or those in NAMES, where one that is
    missing makes the exit code 1.
    """
    from .devices import names as known_names
    from .devices import probe

    if file:
        _check_file(file, known_names())
    found = [probe(name) for name in names or known_names()]
    costs = None if file is None else _measure(found)
    if as_json:
        print_json([_plain(status, costs) for status in found])
    else:
        rows = [
            (s.name, "found" if s.found else "missing", _gibibytes(s.memory_bytes), s.reason)
            for s in found
        ]
        print_table(("device", "state", "memory", "why"), rows, right=("memory",))
        if costs is not None:
            _print_speeds(costs)
    if file and costs is not None:
        _add(costs, Path(file))
    if names and not all(status.found for status in found):
        click.get_current_context().exit(EXIT_FAILED)


def _check_file(file: str, known: Sequence[str]) -> None:
    """Refuse the name of a device where a file's is due: ``--measure cpu``."""
    if file in known or file.split(":", 1)[0] in known:
        raise CommandError(
            f"--measure takes a file, and {file!r} is a device",
            fix=f"plait devices {file} --measure",
        )
    check_writable(Path(file))


def _measure(found: Sequence[DeviceStatus]) -> Costs:
    from .devices import find
    from .scheduler.costs.measure import measure

    return measure({status.name: find(status.name) for status in found if status.found})


def _add(costs: Costs, file: Path) -> None:
    """Add what was measured to a file of costs."""
    from .scheduler.costs import Costs

    known = Costs.load(file) if file.exists() else Costs()
    with writing(file):
        known.merged(costs).save(file)
    print_note(f"wrote {file}")


def _plain(status: DeviceStatus, costs: Costs | None) -> dict[str, Any]:
    keys = ("name", "found", "reason", "memory_bytes")
    plain = {key: getattr(status, key) for key in keys}
    if costs is None:
        return plain
    model = costs.models.get(status.name)
    return {**plain, "model": None if model is None else model.to_dict()}


def _print_speeds(costs: Costs) -> None:
    rows = [
        (
            name,
            f"{model.flops_per_s / 1e9:.3g} Gflop/s",
            f"{model.bytes_per_s / 1e9:.3g} GB/s",
            _us(model.launch_s),
            _us(model.submit_s),
        )
        for name, model in costs.models.items()
    ]
    columns = ("device", "arithmetic", "memory", "per kernel", "per program")
    print_table(columns, rows, right=columns[1:])
    links = [
        (f"{pair[0]} to {pair[1]}", f"{link.bytes_per_s / 1e9:.3g} GB/s", _us(link.latency_s))
        for pair, link in costs.links.items()
    ]
    if links:
        print_table(("copies", "speed", "latency"), links, right=("speed", "latency"))


def _us(seconds: float) -> str:
    return f"{seconds * 1e6:.3g} us"


def _gibibytes(nbytes: int | None) -> str:
    return "-" if nbytes is None else f"{nbytes / 2**30:.1f} GiB"
