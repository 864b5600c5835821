"""The one rule for steps that need not run on the thread of their lane.

Sessions run these where they became ready, as long as they are quick; simulations, and who takes
figures from profiles, have to go by the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...devices.device import Device
from ...devices.host import may_run_anywhere
from ...devices.sim.clock import virtual_clock
from ..plans.placement import Step, Transfer


def inline_steps(steps: Sequence[Step], devices: Mapping[str, Device]) -> frozenset[int]:
    """Return the steps that any thread of this process may run.

    None where devices are simulated on a virtual clock: a session does not run ahead of it. No
    copies, which lanes do in their order. Not what has effects, nor what nodes own: that may depend
    on the thread it is used from. Nor loops, which no other thread should have to wait for: it may
    be the one that is to cancel them. Nor async functions, which are awaited.
    """
    if any(virtual_clock(device) is not None for device in devices.values()):
        return frozenset()
    return frozenset(
        step.index
        for step in steps
        if may_run_anywhere(devices[step.device])
        and not (isinstance(step.work, Transfer) or step.has_effects or step.owns)
        and not (step.loops or step.awaited)
    )
