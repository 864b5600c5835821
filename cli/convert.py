"""``plait convert``: a model in another file format."""

from __future__ import annotations

from pathlib import Path

import click

from .options import EXIT_CODES, PATH, as_json
from .output import print_json


@click.command(epilog=EXIT_CODES)
@click.argument("model", type=PATH)
@click.argument("output", type=PATH)
@click.option("--weights", type=PATH, metavar="FILE", help="Take weights from a safetensors file.")
@as_json
def convert(model: Path, output: Path, weights: Path | None, as_json: bool) -> None:
    """Convert MODEL to a .plait file, an ONNX model or LightNet's JSON, as OUTPUT's name says.

    A .plait file loads faster, and needs no package to be read. The weights of LightNet's .json lie
    beside it, in a .wts file. A .safetensors file gets the weights alone.
    """
    from ..graph.formats import load, load_weights, save, save_weights, weights_of, with_weights

    graph = load(model)
    if weights is not None:
        graph = with_weights(graph, load_weights(weights))
    if output.suffix == ".safetensors":
        save_weights(weights_of(graph), output)
    else:
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
