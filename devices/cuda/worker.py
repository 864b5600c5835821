"""Workers on a GPU: Python functions on its arrays, in a separate process.

The process opens the memory that this one has allocated on the GPU, so nothing is copied between
`cuda:0` and `worker:cuda:0`: both use the memory of `cuda:0`. The host orders the work: it begins
when its inputs are complete, and completes when the process has waited for its GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

from ...graph.core.ir import Node
from ...graph.core.operator import Call, Specs
from ...graph.operators.bounded_call import CALLS
from ...graph.values.tensor import TensorSpec
from .. import program as programs
from ..device import Capabilities, OnDone, Support
from ..errors import DeviceError, DeviceLostError
from ..event import Event
from ..kinds import get_gpu
from ..memory import Arena, View
from ..worker.client import WorkerClient
from ..worker.device import WorkerDevice
from ..worker.modules import list_node_sources
from ..worker.objects import WorkerObjects
from .device import CudaDevice
from .support import explain_refusal


class CudaWorkerDevice(WorkerDevice):
    """Runs Python functions on a GPU's arrays, and CuPy's kernels, in order in another process.

    Parameters
    ----------
    name : str
        ``"worker:cuda:N"``; a suffix as in ``"worker:cuda:0:b"`` distinguishes processes on one
        GPU.
    threads : int, optional
        Threads of BLAS in the process; by default the session's share of the cores.
    affinity : sequence of int, optional
        The cores that the process is bound to.
    gpu : CudaDevice, optional
        Allocates and copies in this process; by default a new one.
    module : str, optional
        The module with the process's `main`.
    """

    def __init__(
        self,
        name: str = "worker:cuda:0",
        *,
        threads: int | None = None,
        affinity: Sequence[int] | None = None,
        gpu: CudaDevice | None = None,
        module: str = f"{__package__}.worker_process",
    ) -> None:
        super().__init__(name, threads=threads, affinity=affinity)
        # Its kernels are unused, so it needs no compiler.
        self._gpu = gpu or CudaDevice(get_gpu(name), compiler=None, cublas=None)
        self._module = module

    @cached_property
    def capabilities(self) -> Capabilities:
        """The device's properties; the first access looks for the GPU."""
        offers = self._gpu.capabilities
        return replace(offers, runs_python=True, native_waits=False, copies_from=frozenset())

    @property
    def failure(self) -> DeviceLostError | None:
        """The error that broke the process, or the GPU for this one."""
        return self._gpu.failure or super().failure

    @property
    def can_restart(self) -> bool:
        """True unless the GPU is lost for this process, which allocates the memory."""
        return self._gpu.failure is None

    def supports(self, node: Node, call: Call) -> Support:
        """Return whether CuPy has a kernel for `call`, or `node` a function of GPU arrays."""
        if node.op in CALLS:
            return Support(False, "lengths that values decide are not known on a GPU")
        support = programs.supports(node, "cuda", runs_python=True, keeps_lives=True, call=call)
        if not support.ok:
            return support
        try:
            list_node_sources(node)
        except DeviceError as error:
            return Support(False, error.what)
        reason = explain_refusal(node, call) if node.operator.function is None else None
        return support if reason is None else Support(False, reason)

    def scratch(self, node: Node, call: Call, outputs: Specs) -> tuple[TensorSpec, ...]:
        return programs.scratch(node, "cuda", call, outputs)

    def chains(self, node: Node, call: Call) -> bool:
        return False

    def open(self, cores: int | None = None) -> None:
        """Open the GPU, and start the process on `cores` threads (None: all).

        Raises DeviceUnavailableError if there is no GPU, the process does not start, or they cannot
        share memory.
        """
        self._gpu.open()
        try:
            super().open(cores)
        except BaseException:
            if self._client is None:
                self._gpu.close()
            raise

    def arena(self, memory: str, nbytes: int) -> Arena:
        return self._gpu.arena(memory, nbytes)

    def view(self, arena: Arena, offset: int, spec: TensorSpec) -> View:
        return self._gpu.view(arena, offset, spec)

    def copy(
        self, target: View, source: View, waits: Sequence[Event] = (), on_done: OnDone | None = None
    ) -> Event:
        return self._gpu.copy(target, source, waits, on_done)

    def close(self) -> None:
        """Finish the queued work, end the process, and close the GPU."""
        super().close()
        self._gpu.close()

    def _ship_to(self, client: WorkerClient) -> WorkerObjects:
        objects = WorkerObjects(client, self._gpu.describe)
        # Fail now, rather than when a plan is opened, if memory cannot be shared.
        arena = self._gpu.arena(self.capabilities.memory, 1)
        objects.share(arena)
        arena.close()
        return objects
