"""The formal device: each operator by its definition. Slow; the oracle of the other devices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ...graph.core.ir import Graph, Node
from ...graph.core.operator import Call, Specs
from ...graph.functions.operator_lifecycle import OperatorLifecycle
from ...graph.values.tensor import TensorSpec
from ..cpu import CpuDevice
from ..device import Program, Support
from ..memory import HOST, View
from ..program import check_function
from .program import bind_definitions, get_definition


class FormalDevice(CpuDevice):
    """Runs operators by their definitions, and poisons values that must not be read.

    Otherwise it is a cpu device: one thread, this process's memory, Python functions as well.
    """

    def __init__(self, name: str = "formal") -> None:
        super().__init__(name)
        self.capabilities = replace(
            self.capabilities, awaits=False, takes_text=False, takes_objects=False
        )

    def supports(self, node: Node, call: Call) -> Support:
        if node.operator.function is not None:
            return check_function(node, HOST)
        if get_definition(node.op) is None:
            return Support(False, f"no definition of {node.op!r} for {self.name!r}")
        return Support(True, "has a definition")

    def scratch(self, node: Node, call: Call, outputs: Specs) -> tuple[TensorSpec, ...]:
        return ()

    def chains(self, node: Node, call: Call) -> bool:
        return False

    def bind(
        self,
        subgraph: Graph,
        views: Mapping[str, View],
        living: Mapping[str, OperatorLifecycle],
        *,
        measure: bool,
    ) -> Program:
        return bind_definitions(self.name, subgraph, views, living, measure=measure)
