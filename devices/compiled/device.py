"""The compiled device: a cpu device with machine code for hot loops. Requires Numba."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from importlib.util import find_spec

from ...graph.core.ir import Graph, Node
from ...graph.core.operator import Call, Specs
from ...graph.functions.operator_lifecycle import OperatorLifecycle
from ...graph.values.extras import get_install_command, import_extra
from ...graph.values.tensor import TensorSpec
from ..cpu import CpuDevice
from ..device import Program
from ..errors import DeviceUnavailableError
from ..memory import View

FIX = get_install_command("compiled")


class CompiledDevice(CpuDevice):
    """Runs compiled kernels, and numpy's for all other nodes, in order on one thread.

    Results equal those of the `cpu` device up to rounding. Machine code is compiled at first use
    and kept on disk: next to the package, or in the user's cache folder if that is read-only.

    Raises
    ------
    DeviceUnavailableError
        If Numba is missing.
    """

    def __init__(
        self,
        name: str = "compiled",
        *,
        threads: int | None = None,
        affinity: Sequence[int] | None = None,
    ) -> None:
        self._missing = f"device {name!r} needs Numba, which is not installed"
        if find_spec("numba") is None:
            raise DeviceUnavailableError(self._missing, fix=FIX)
        super().__init__(name, threads=threads, affinity=affinity)
        self.capabilities = replace(
            self.capabilities, takes_donations=True, software=f"numba {version('numba')}"
        )

    def scratch(self, node: Node, call: Call, outputs: Specs) -> tuple[TensorSpec, ...]:
        self._import()
        from .program import scratch

        return scratch(node, call, outputs)

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
        self._import()
        from .program import bind

        return bind(self.name, subgraph, views, living, measure=measure)

    def _import(self) -> None:
        """Import Numba at first use, since it takes half a second.

        Raises DeviceUnavailableError if it does not load.
        """
        import_extra("numba", self._missing, FIX, DeviceUnavailableError)
