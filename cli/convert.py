"""``plait convert``: a model in another file format."""

from __future__ import annotations

from pathlib import Path

import click

from .options import EXIT_CODES, PATH, as_json
from .output import print_json


@click.command(epilog=EXIT_CODES)
@click.argument("model", type=PATH)
@click.argument("output", type=PATH)
@as_json
def convert(model: Path, output: Path, as_json: bool) -> None:
    """Convert MODEL to a .plait file or an ONNX model, as the name of OUTPUT says.

    A .plait file loads faster, and needs no package to be read.
    """
    from ..graph.formats import load, save

    graph = load(model)
    save(graph, output)
    nbytes = sum(array.nbytes for array in graph.constants.values())
    counts = {"nodes": len(graph.nodes), "constants": len(graph.constants)}
    if as_json:
        print_json({"output": str(output), **counts, "constants_nbytes": nbytes})
    else:
        click.echo(
            f"wrote {output}: {counts['nodes']} nodes, "
            f"{counts['constants']} constants of {nbytes / 2**20:.1f} MiB"
        )
