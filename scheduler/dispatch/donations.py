"""The tensors that Python functions give away instead of having them copied to planned memory.

Outputs of the plan are given to the caller.
"""

from __future__ import annotations

from collections.abc import Mapping

from ...devices.device import Device
from ...devices.host import may_run_anywhere
from ...graph.operators.bounded_call import CALLS, calls_function
from ...graph.values.dtypes import has_objects
from ..plans.placement import Transfer
from ..plans.plan import Plan

LEAST_BYTES = 1 << 14
"""Smaller tensors are copied in less time than it takes to see whether outputs are shared, or to
have a program of one piece read them elsewhere."""


def find_donated_tensors(plan: Plan, devices: Mapping[str, Device]) -> Mapping[str, bool]:
    """Return the function results of `plan` that are donated, and whether nodes read them.

    Only programs that take donations, on `devices`, read them. Tensors that outlive the item, small
    ones, and those that other steps read stay in planned memory.
    """
    assert plan.placement is not None, "shapes are known"
    tensors, outputs = plan.graph.tensors, {*plan.graph.outputs}
    made, read, bound = set[str](), set[str](), set[str]()
    kept = {*plan.graph.assigned, *plan.ends.outputs}
    kept.update(name for name in outputs if tensors[name].nbytes < LEAST_BYTES)
    kept.update(name for name, _ in plan.placement.prepared)
    kept.update(name for one in plan.placement.commits for name, _ in (one.source, one.target))
    for step in plan.steps:
        if isinstance(step.work, Transfer):
            kept.add(step.work.tensor)
            continue
        device = devices[step.device]
        takes = device.capabilities.takes_donations and may_run_anywhere(device)
        for node in step.work.graph.nodes:
            read.update(node.inputs)
            if takes and calls_function(node):
                made.update(node.outputs)
                if node.op in CALLS:
                    kept.update(outputs.intersection(node.outputs))
            # Kernels are bound to planned memory; a program of one piece asks at each run where
            # inputs lie.
            elif takes and device.capabilities.atomic_programs:
                bound.update(node.inputs)
            else:
                kept.update(node.inputs)
    kept.update(name for name in made & bound if tensors[name].nbytes < LEAST_BYTES)
    kept.update(
        name for name in made if has_objects(tensors[name].dtype) and not tensors[name].rank
    )
    return {name: name in read for name in made - kept}
