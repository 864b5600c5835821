"""The tensors that are read where they lie instead of being copied to planned memory.

Steps give results away, those that leave the plan to the caller; callers lend inputs.
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

LEAST_BOUND_BYTES = 1 << 16
"""Smaller inputs and outputs are copied sooner than programs of one piece bind other ones."""


def find_donated_tensors(plan: Plan, devices: Mapping[str, Device]) -> Mapping[str, bool]:
    """Return the tensors of `plan` that are donated or lent, and whether nodes read them.

    Donated are results of functions, and outputs of the plan that programs of one piece write.
    Only programs that take donations, on `devices`, read them. Callers lend inputs of known lengths
    to programs of one piece, not to functions, which might keep them. Tensors that outlive the
    item, small ones, and those that other steps read stay in planned memory.
    """
    assert plan.placement is not None, "shapes are known"
    tensors, outputs = plan.graph.tensors, {*plan.graph.outputs}
    made, read, bound, called = set[str](), set[str](), set[str](), set[str]()
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
                called.update(node.inputs)
                if node.op in CALLS:
                    kept.update(outputs.intersection(node.outputs))
            # Kernels are bound to planned memory; a program of one piece asks at each run where
            # inputs lie.
            elif takes and device.capabilities.atomic_programs:
                bound.update(node.inputs)
                leaving = outputs.intersection(node.outputs)
                made.update(n for n in leaving if tensors[n].nbytes >= LEAST_BOUND_BYTES)
            else:
                kept.update(node.inputs)
    if plan.template is None:
        lent = bound.intersection(plan.graph.inputs) - called - outputs.union(plan.ends.inputs)
        made.update(name for name in lent if tensors[name].nbytes >= LEAST_BOUND_BYTES)
    kept.update(name for name in made & bound if tensors[name].nbytes < LEAST_BYTES)
    kept.update(
        name for name in made if has_objects(tensors[name].dtype) and not tensors[name].rank
    )
    return {name: name in read for name in made - kept}
