"""``plait plan``: show, compare and save plans."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from ..graph.core.printing import to_dot
from .help import Command
from .models import models_option, plan_on_models
from .options import PATH, as_json, html_option, in_flight
from .output import check_writable, print_json, print_note, print_text, to_option
from .parsing import CommandError
from .plan import PlanArguments, add_plan_options

if TYPE_CHECKING:
    from ..scheduler.plans.plan import Plan


EXAMPLES = """
plait plan model.onnx --devices cuda:0,cpu --html plan.html
plait plan model.onnx --pin 'encoder.*=worker:0' --bound n=1:512 --save model.plan
plait plan model.onnx --diff before.plan
"""


@click.command(name="plan", cls=Command, examples=EXAMPLES)
@add_plan_options
@models_option
@in_flight
@click.option("--nodes", is_flag=True, help="List every node, its device and the reason for it.")
@click.option("--explain-passes", is_flag=True, help="List what each pass did to which node.")
@click.option("--dot", is_flag=True, help="Print the graph for Graphviz, grouped by device.")
@click.option(
    "--diff",
    "other",
    type=PATH,
    metavar="FILE",
    help="Show the differences from a saved plan to this one.",
)
@click.option(
    "--save", type=PATH, metavar="FILE.plan", help="Save the plan, to run it without planning."
)
@html_option
@as_json
def show_plan(
    request: PlanArguments,
    models: tuple[str, ...],
    max_in_flight: int | None,
    nodes: bool,
    explain_passes: bool,
    dot: bool,
    other: Path | None,
    save: Path | None,
    html: Path | None,
    as_json: bool,
) -> None:
    """Show the device of each part of MODEL, the reasons, and the memory it takes.

    Every command that takes a MODEL also takes a plan saved here.
    """
    from ..scheduler.reports.plan_file import load_plan
    from ..scheduler.reports.report import report
    from ..scheduler.reports.texts import list_pass_changes

    given = {
        "--nodes": nodes,
        "--explain-passes": explain_passes,
        "--dot": dot,
        "--diff": other is not None,
    }
    asked = [option for option, is_given in given.items() if is_given]
    if len(asked) > 1 or (dot and as_json):
        raise CommandError(
            f"{' and '.join([*asked, *['--json'] * as_json])} say different things to print",
            fix="choose one",
        )
    for path in (save, html):
        check_writable(path)
    plan, other_than_here = plan_on_models(request, max_in_flight, models)
    if other_than_here and request.is_saved:
        raise CommandError(
            "--model: that is decided in a saved plan", fix="plan the model again, or use simulate"
        )
    before = load_plan(other) if other is not None else None
    if save is not None:
        plan.save(save)
        print_note(f"wrote {save}")
    if html is not None:
        from ..scheduler.reports.html import write_html

        write_html(html, plan)
        print_note(f"wrote {html}")
    if before is not None:
        _print_diff(before, plan, as_json=as_json)
    elif explain_passes and not as_json:
        print_text(list_pass_changes(plan.applied, plan.dead))
    elif dot:
        outer = {node.name: plan.assignment[node.name] for node in plan.graph.nodes}
        print_text(to_dot(plan.graph, outer))
    elif as_json:
        print_json(plan.to_dict())
    else:
        print_text(report(plan, nodes=nodes, spell=to_option))


def _print_diff(before: Plan, after: Plan, *, as_json: bool) -> None:
    from ..scheduler.reports.diff import diff

    found = diff(before, after)
    if as_json:
        print_json(found.to_dict())
    else:
        print_text(str(found))
