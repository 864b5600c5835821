"""``plait quantize``: convert products of floats to products of 8-bit integers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .completion import complete_devices, complete_inputs
from .help import Command
from .inputs import ItemSource, parse_input
from .options import MODEL, PATH, as_json, print_notes, seed_option
from .output import check_writable, print_json, print_text
from .parsing import CommandError, parse_devices, parse_shapes

if TYPE_CHECKING:
    from ..graph.core.ir import Graph
    from ..graph.values.tensor import Array
    from ..scheduler.quantization import Quantized

SHOWN_COSTS = 10
SUFFIXES = (".plait", ".onnx")

EXAMPLES = """
plait quantize model.onnx --calibrate inputs.npz --output small.plait
plait quantize model.onnx --calibrate 'x=frames/*.npy' --check x=others/ --count 200
"""


@click.command(cls=Command, examples=EXAMPLES)
@click.argument("model", type=MODEL)
@click.option(
    "--calibrate",
    "calibrating",
    multiple=True,
    required=True,
    metavar="[NAME=]SOURCE",
    shell_complete=complete_inputs,
    help="Typical inputs: FILE.npz, a folder or pattern of one file per item, random.",
)
@click.option(
    "--check",
    "checking",
    multiple=True,
    metavar="[NAME=]SOURCE",
    shell_complete=complete_inputs,
    help="Inputs to judge the outputs by; by default those of --calibrate.",
)
@click.option(
    "--count",
    type=click.IntRange(min=1),
    metavar="N",
    help="Use at most N items; the number of items if all are random.",
)
@click.option(
    "--shape",
    "shapes",
    multiple=True,
    metavar="NAME=1,3,48,320",
    help="Shape of a random input with symbolic dimensions; the model keeps its symbols.",
)
@click.option("--output", type=PATH, metavar="FILE", help="Write the model: .plait or .onnx.")
@click.option(
    "--devices",
    default="cpu",
    show_default=True,
    shell_complete=complete_devices,
    help="Devices that run the items.",
)
@click.option(
    "--ranges",
    type=click.Choice(("minmax", "percentile", "mse")),
    default="minmax",
    show_default=True,
    help="Range that bytes represent: all values, all but rare ones, or least squared error.",
)
@click.option(
    "--exclude",
    multiple=True,
    metavar="NODE",
    help="Leave a node in floats, or all nodes of a pattern or operator.",
)
@click.option(
    "--min-sqnr",
    "min_sqnr_db",
    type=float,
    metavar="DB",
    help="Leave the products that lose most in floats until outputs are this good.",
)
@click.option(
    "--activations",
    type=click.Choice(("uint8", "int8")),
    default="uint8",
    show_default=True,
    help="Dtype of the inputs of products.",
)
@click.option(
    "--per-tensor",
    "per_channel",
    flag_value=False,
    default=True,
    help="One scale for all weights of a product.",
)
@click.option(
    "--qdq",
    "form",
    flag_value="qdq",
    default="integer",
    help="Leave it to others to make integer products.",
)
@click.option("--costs", is_flag=True, help="Show which products cost most; takes a run of each.")
@seed_option
@as_json
def quantize(
    model: Path | bytes,
    calibrating: tuple[str, ...],
    checking: tuple[str, ...],
    count: int | None,
    shapes: tuple[str, ...],
    output: Path | None,
    devices: str,
    costs: bool,
    seed: int,
    as_json: bool,
    **options: Any,
) -> None:
    """Convert the products of MODEL to 8-bit integers, and show the accuracy of its outputs.

    The model runs on some items, to find the ranges of tensors.
    """
    from ..graph.formats.graphs import load, save
    from ..scheduler.quantization import quantize as quantized
    from ..scheduler.shapes.specialise import specialise

    check_writable(output)
    if output is not None and output.suffix not in SUFFIXES:
        raise CommandError(
            f"--output {str(output)!r} ends in neither {' nor '.join(SUFFIXES)}",
            fix="choose one of them",
        )
    graph, names = load(model), parse_devices(devices)
    fed = specialise(graph, parse_shapes(shapes))
    items = _make_items(fed, calibrating, count, seed)
    judged = _make_items(fed, checking, count, seed) if checking else items
    made = quantized(graph, items, names, **options)
    if output is not None:
        save(made.graph, output)
    _show(made, judged, names, costs, as_json)
    if output is not None and not as_json:
        print_text(f"wrote {output}")


def _make_items(
    graph: Graph, texts: tuple[str, ...], count: int | None, seed: int
) -> list[dict[str, Array]]:
    feeds = ItemSource(graph, [parse_input(text) for text in texts], seed=seed, fill=False)
    counts = [number for number in (count, feeds.count) if number is not None]
    items = [feeds.item(index) for index in range(min(counts, default=1))]
    print_notes(feeds)
    return items


def _show(
    made: Quantized,
    items: list[dict[str, Array]],
    devices: tuple[str, ...],
    costs: bool,
    as_json: bool,
) -> None:
    accuracy = made.accuracy(items, devices)
    found = made.costs(items, devices)[:SHOWN_COSTS] if costs else []
    if not as_json:
        print_text(made.report(accuracy))
        for node, sqnr_db in found:
            print_text(f"{node} alone: {sqnr_db:.1f} dB")
        return
    listed: Mapping[str, Any] = {name: one.to_dict() for name, one in accuracy.items()}
    alone = {"costs": dict(found)} if costs else {}
    print_json({**made.to_dict(), "accuracy": listed, **alone})
