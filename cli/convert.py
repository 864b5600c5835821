"""``plait convert``: a model in another file format."""

from __future__ import annotations

from pathlib import Path

import click

from .help import Command
from .options import MODEL, PATH, as_json, format_option, operators_option, params_option
from .output import print_json, print_text
from .plan import load_graph, register_operators

EXAMPLES = """
plait convert model.onnx model.plait
plait convert model.onnx small.onnx --rules rules.json
plait convert model.plait weights.safetensors
"""


@click.command(cls=Command, examples=EXAMPLES)
@click.argument("model", type=MODEL)
@click.argument("output", type=PATH)
@params_option
@format_option
@operators_option
@click.option("--weights", type=PATH, metavar="FILE", help="Take weights from a safetensors file.")
@click.option(
    "--rules",
    type=PATH,
    multiple=True,
    metavar="FILE",
    help="Replace operators by the rules in a JSON file; several files apply in order.",
)
@as_json
def convert(
    model: Path | bytes,
    output: Path,
    params: Path | None,
    model_format: str | None,
    operators: tuple[Path, ...],
    weights: Path | None,
    rules: tuple[Path, ...],
    as_json: bool,
) -> None:
    """Convert MODEL to a .plait file, an ONNX model or another format, chosen by OUTPUT's suffix.

    A .plait file loads faster, and needs no other package. Other formats may write weights to a
    file beside the model. A .safetensors file gets the weights alone.
    """
    from ..formats import load_rules, load_weights, save, save_weights, weights_of, with_weights
    from ..graph.core.check import check
    from ..graph.passes.rewriting import allow_any

    register_operators(operators)
    graph = load_graph(model, params, model_format)
    if weights is not None:
        graph = with_weights(graph, load_weights(weights))
    for file in rules:
        graph = check(load_rules(file)(graph, allow_any))
    if output.suffix == ".safetensors":
        save_weights(weights_of(graph), output)
    else:
        save(graph, output)
    nbytes = sum(array.nbytes for array in graph.constants.values())
    counts = {"nodes": len(graph.nodes), "constants": len(graph.constants)}
    if as_json:
        print_json({"output": str(output), **counts, "constants_nbytes": nbytes})
    else:
        print_text(
            f"wrote {output}: {counts['nodes']} nodes, "
            f"{counts['constants']} constants of {nbytes / 2**20:.1f} MiB"
        )
