"""``plait run`` and ``plait stream``: one item, or many."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from .cluster import check_here, parse_replicas, replicas_option
from .help import Command
from .inputs import make_items, parse_input
from .options import (
    OUTPUT,
    PATH,
    STDOUT,
    as_json,
    exit_if_failed,
    in_flight,
    inputs_option,
    print_notes,
    seed_option,
    trace_option,
)
from .output import (
    LISTED,
    check_writable,
    make_folder,
    print_json,
    print_summary,
    print_text,
    summarize,
    write_arrays,
    write_npy,
)
from .parsing import CommandError
from .plan import PlanArguments, add_plan_options
from .streaming import Streaming, add_streaming_options

RUN_EXAMPLES = """
plait run model.onnx --input image=photo.jpg --input sr=16000
plait run model.onnx --input x.npz --devices cuda:0,cpu --output out.npz
plait run model.onnx --input x=random --shape x=1,3,224,224 --fetch logits
plait run model.onnx --input x.npz --fetch label --output - > label.npy
"""

STREAM_EXAMPLES = """
plait stream model.onnx --input x=frames/ --max-in-flight 4 --live
plait stream model.onnx --input 'x=frames/*.npy' --output results/ --on-error stop
plait stream model.onnx --count 1000 --batch 8 --max-delay-ms 5 --devices cpu,worker:0..3
"""


@click.command(cls=Command, examples=RUN_EXAMPLES)
@add_plan_options
@inputs_option
@seed_option
@click.option(
    "--output",
    type=OUTPUT,
    metavar="FILE.npz",
    help="Write the outputs to a file; - writes one output to stdout as .npy, or all with --json.",
)
@replicas_option
@trace_option
@as_json
def run(
    request: PlanArguments,
    inputs: tuple[str, ...],
    seed: int,
    output: Path | None,
    replicas: str | None,
    trace: Path | None,
    as_json: bool,
) -> None:
    """Run MODEL once and show its outputs, or write them to a file."""
    from .stream import run_once

    check_writable(None if output is STDOUT else output)
    check_writable(trace)
    size = parse_replicas(replicas, request.cluster, request.devices)
    check_here(size, trace=trace)
    given = [parse_input(text) for text in inputs]
    plan = request.with_inputs(given).plan()
    feeds = make_items(plan, given, seed=seed, fill=False)
    if feeds.count not in (None, 1):
        raise CommandError(f"the inputs make {feeds.count} items", fix="use plait stream")
    item = feeds.item(0)
    print_notes(feeds)
    outputs, elapsed_s = run_once(plan, item, trace, request.cluster, size)
    if as_json:
        listed = summarize(outputs, most=None if output is STDOUT else LISTED)
        print_json({"outputs": listed, "seconds": elapsed_s})
    elif output is STDOUT:
        write_npy(sys.stdout.buffer, outputs)
    if output not in (None, STDOUT):
        write_arrays(output, outputs)
    if as_json or output is STDOUT:
        return
    if output is not None:
        print_text(f"wrote {', '.join(outputs)} to {output}")
    else:
        print_summary(outputs)


@click.command(cls=Command, examples=STREAM_EXAMPLES)
@add_plan_options
@inputs_option
@seed_option
@in_flight
@click.option(
    "--count",
    type=click.IntRange(min=1),
    metavar="N",
    help="Stop after N items; required for random inputs.",
)
@click.option(
    "--output", type=PATH, metavar="FOLDER", help="Write each item's outputs to FOLDER/NNNN.npz."
)
@add_streaming_options
@replicas_option
@trace_option
@click.option("--live", is_flag=True, help="Show devices, queues, rate and memory during the run.")
@as_json
def stream(
    request: PlanArguments,
    inputs: tuple[str, ...],
    seed: int,
    max_in_flight: int | None,
    count: int | None,
    output: Path | None,
    streaming: Streaming,
    replicas: str | None,
    trace: Path | None,
    live: bool,
    as_json: bool,
) -> None:
    """Run MODEL on many items and show the speed.

    SOURCE may also be a folder, or a quoted pattern such as 'frames/*.npy', with one file per item.
    A folder's .npy and .npz files are used, or all files if it has none of these. A single file is
    used for every item. With --count, inputs that are not given are random. A failed item is
    reported, and the others continue unless --on-error says otherwise.
    """
    from .stream import run_stream, save_trace

    check_writable(trace)
    size = parse_replicas(replicas, request.cluster, request.devices)
    check_here(size, trace=trace, live=live)
    given = [parse_input(text) for text in inputs]
    plan = request.with_inputs(given).plan(max_in_flight)
    feeds = make_items(plan, given, seed=seed, fill=True)
    counts = [number for number in (count, feeds.count) if number is not None]
    if not counts:
        raise CommandError(
            "it is not said how many items to stream", fix="--count N, or --input NAME=FOLDER"
        )
    if output is not None:
        make_folder(output)
    streamed = run_stream(
        plan,
        feeds.item,
        min(counts),
        output,
        label="streaming",
        streaming=streaming,
        live=live,
        cluster=request.cluster,
        replicas=size,
    )
    print_notes(feeds)
    save_trace(streamed.profile, trace)
    if as_json:
        print_json(streamed.to_dict())
    else:
        batch = streaming.arguments.get("batch")
        batches = f" batches of {batch}" if batch else ""
        where = " on each replica" if size else ""
        print_text(f"{streamed}, up to {plan.in_flight}{batches} in flight{where}")
    exit_if_failed(streamed)
