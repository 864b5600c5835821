"""Bases of sessions: the attributes that follow from a plan, and the refusal of copies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, NoReturn, SupportsIndex

from ...graph.values.tensor import TensorSpec
from ..errors import SessionError
from ..plans.plan import Plan


class Uncopied:
    """Refuses `pickle`, `copy` and `deepcopy`: the object owns threads, memory or devices."""

    INSTEAD: ClassVar[str]
    """How to get what a copy would be for."""

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        raise SessionError(
            f"{type(self).__name__} cannot be copied or pickled: it owns what it runs on",
            fix=self.INSTEAD,
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> NoReturn:
        self.__reduce_ex__(4)


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
