"""The tensors that Python functions give away instead of having them copied to planned memory."""

from __future__ import annotations

from collections.abc import Mapping

from ...devices.device import Device
from ...devices.host import may_run_anywhere
from ...graph.operators.bounded_call import calls_function
from ..plans.placement import Transfer
from ..plans.plan import Plan


def find_donated_tensors(plan: Plan, devices: Mapping[str, Device]) -> frozenset[str]:
    """Return the results of functions that only programs which take donations read.

    Outputs of the plan, and tensors that outlive the item, must be in planned memory.
    """
    assert plan.placement is not None, "shapes are known"
    made, kept = set[str](), {*plan.graph.outputs}
    kept.update(name for name, _ in plan.placement.prepared)
    kept.update(name for one in plan.placement.commits for name, _ in (one.source, one.target))
    for step in plan.steps:
        if isinstance(step.work, Transfer):
            kept.add(step.work.tensor)
            continue
        device = devices[step.device]
        takes = device.capabilities.takes_donations and may_run_anywhere(device)
        for node in step.work.graph.nodes:
            if takes and calls_function(node):
                made.update(node.outputs)
            # Kernels are bound to planned memory; a program of one piece asks at each run where
            # inputs lie.
            elif not (takes and device.capabilities.atomic_programs):
                kept.update(node.inputs)
    return frozenset(made - kept)
