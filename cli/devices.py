"""``plait devices``: the available devices and their speeds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..graph.core.printing import format_seconds
from .cluster import join_cluster, list_devices, ray_option
from .completion import complete_device
from .help import Command
from .options import EXIT_FAILED, PATH, as_json
from .output import check_writable, print_json, print_note, print_table
from .parsing import CommandError

if TYPE_CHECKING:
    from ..devices import DeviceStatus
    from ..scheduler.costs import Costs

NO_FILE = ""
"""The value of --measure without a file."""

EXAMPLES = """
plait devices
plait devices cpu ort --measure costs.json
plait devices cuda:0/0-50 cuda:0/50-100
plait devices --ray auto
"""


@click.command(name="devices", cls=Command, examples=EXAMPLES)
@click.argument("names", nargs=-1, shell_complete=complete_device)
@click.option(
    "--measure",
    "file",
    is_flag=False,
    flag_value=NO_FILE,
    metavar="[FILE]",
    help="Measure their speeds, a second or two each, and add them to a file of costs.",
)
@ray_option
@as_json
def show_devices(
    names: tuple[str, ...], file: str | None, address: str | None, as_json: bool
) -> None:
    """Check which devices are available, with reasons for those that are not.

    Each known device is opened, adds numbers, and is closed; with NAMES only those, and the exit
    code is 1 if one is missing. A share of a GPU is a range of its multiprocessors in percent:
    cuda:0/0-50. With --ray, devices on the nodes of the cluster are checked, too.
    With --measure, short runs measure the speed of each; FILE is created if missing, and other
    commands take it as --costs.
    """
    from ..devices import names as known_names
    from ..devices import probe

    if file:
        _check_file(file, known_names())
    known = _load_costs(file) if file else None
    cluster = join_cluster(address, names)
    all_names = (*known_names(), *(list_devices(cluster) if cluster and not names else ()))
    found = [probe(name) for name in dict.fromkeys(names or all_names)]
    costs = None if file is None else _measure(found)
    if as_json:
        print_json([_to_plain(status, costs) for status in found])
    else:
        rows = [
            (
                s.name,
                "found" if s.found else "missing",
                "-" if s.memory_bytes is None else f"{s.memory_bytes / 2**30:.1f} GiB",
                f"{s.reason}: {s.software}" if s.found and s.software else s.reason,
            )
            for s in found
        ]
        print_table(("device", "state", "memory", "why"), rows, right=("memory",))
        if costs is not None:
            _print_speeds(costs)
    if known is not None and costs is not None:
        assert file is not None
        known.merged(costs).save(file)
        print_note(f"wrote {file}")
    if names and not all(status.found for status in found):
        click.get_current_context().exit(EXIT_FAILED)


def _check_file(file: str, known: Sequence[str]) -> None:
    """Refuse ``--measure cpu``: it gives a device in `known` where a `file` belongs."""
    if file in known or file.split(":", 1)[0] in known:
        raise CommandError(
            f"--measure takes a file, and {file!r} is a device",
            fix=f"plait devices {file} --measure",
        )
    check_writable(PATH.convert(file, None, None))


def _load_costs(file: str) -> Costs:
    from ..scheduler.costs import Costs

    return Costs.load(file) if Path(file).exists() else Costs()


def _measure(found: Sequence[DeviceStatus]) -> Costs:
    from ..devices import find
    from ..scheduler.costs import Costs
    from ..scheduler.costs.measure import measure, measure_peers

    costs = Costs()
    devices = {status.name: find(status.name) for status in found if status.found}
    for name, device in devices.items():
        print_note(f"measuring {name}: submission, kernels, memory, products, copies")
        costs = costs.merged(measure({name: device}, note=print_note))
    return costs.merged(Costs(links=measure_peers(devices.values())))


def _to_plain(status: DeviceStatus, costs: Costs | None) -> dict[str, Any]:
    keys = ("name", "found", "reason", "memory_bytes", "software")
    plain = {key: getattr(status, key) for key in keys}
    if costs is None:
        return plain
    model = costs.models.get(status.name)
    return {**plain, "model": None if model is None else model.to_dict()}


def _print_speeds(costs: Costs) -> None:
    rows = [
        (
            name,
            _format_speed(model.flops_per_s, "flop"),
            _format_speed(model.bytes_per_s, "B"),
            format_seconds(model.launch_s),
            format_seconds(model.submit_s),
        )
        for name, model in costs.models.items()
    ]
    columns = ("device", "arithmetic", "memory", "per kernel", "per program")
    click.echo()
    print_table(columns, rows, right=columns[1:])
    links = [
        (source, target, _format_speed(link.bytes_per_s, "B"), format_seconds(link.latency_s))
        for (source, target), link in costs.links.items()
    ]
    if links:
        click.echo()
        print_table(("copies from", "to", "speed", "latency"), links, right=("speed", "latency"))


def _format_speed(number: float, unit: str) -> str:
    for factor, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M")):
        if number >= factor:
            return f"{number / factor:.3g} {prefix}{unit}/s"
    return f"{number / 1e3:.3g} k{unit}/s"
