"""Attributes that sessions of all kinds have by their plan."""

from __future__ import annotations

from collections.abc import Mapping

from ...graph.values.tensor import TensorSpec
from ..plans.plan import Plan
from ..plans.uncopied import Uncopied


class PlanHolder(Uncopied):
    """Shows the inputs and outputs of the plan of a session."""

    INSTEAD = "copy or save its plan, and open a session with that"

    plan: Plan

    @property
    def inputs(self) -> Mapping[str, TensorSpec]:
        return self.plan.inputs

    @property
    def outputs(self) -> Mapping[str, TensorSpec]:
        return self.plan.outputs

    def __repr__(self) -> str:
        fed, found = (", ".join(specs) for specs in (self.inputs, self.outputs))
        devices = ", ".join(self.plan.device_names)
        return f"<{type(self).__name__} {self.plan.graph.name!r} on {devices}: {fed} -> {found}>"
