"""Devices that run whole subgraphs in OpenVINO, on plait's buffers, on a lane thread."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from ...graph.core.infer import infer_node
from ...graph.core.ir import Graph, Node
from ...graph.core.operator import Call
from ...graph.operators.bounded_call import BOUNDED_CALL
from ...graph.operators.control import CONTROL_FLOW
from ...graph.values.tensor import Array
from ..device import Support
from ..donation import Donation
from ..errors import KernelError
from ..event import Event
from ..memory import View
from ..ort.device import OrtDevice
from ..ort.empty import is_empty
from ..ort.program import OrtProgram
from ..ort.session import Session, describe
from .engine import OpenVinoEngine, load_runtime


class OpenVinoProgram(OrtProgram):
    """Runs a subgraph as a unit, to its end once it has started."""

    def __init__(self, session: Session, views: Mapping[str, View], device: str) -> None:
        self.graph = session.graph
        self._device, self._session = device, session
        self._request: Any = None
        self._moving: list[tuple[str, Donation]] = []
        if (model := session.model) is None:
            return
        self._request = model.inference.create_infer_request()
        given, known = session.given, set[str]().union(*(p.names for p in model.inference.inputs))
        # Without inputs that make no difference: the compiled model lacks them.
        for name in filter(known.__contains__, model.graph.inputs):
            self._bind(name, given[name] if name in given else views[name].array)
            if name not in given and (place := views[name].donation) is not None:
                self._moving.append((name, place))
        for number, name in enumerate(model.graph.outputs):
            self._request.set_output_tensor(number, _share(views[name].array))

    def __call__(self) -> None:
        if self._request is None:
            return
        try:
            for name, place in self._moving:
                self._bind(name, place.array)
            self._request.start_async()  # `infer` would copy results
            self._request.wait()
        except Exception as error:
            what = self._session.engine.summarize(error)
            raise KernelError(what, at=describe(self.graph, self._device)) from error

    def run(self, event: Event) -> None:
        self()

    def _bind(self, name: str, array: Array) -> None:
        self._request.set_tensor(name, _share(array))


def _share(array: Array) -> Any:
    return load_runtime().Tensor(array, shared_memory=True)


class OpenVinoDevice(OrtDevice):
    """Runs subgraphs in OpenVINO on the processor, of any maker, by the models of `ort`.

    Its threads sleep between runs, and a run that has begun is not cancelled.
    """

    program: ClassVar[type[OrtProgram]] = OpenVinoProgram

    def __init__(self, name: str = "openvino", *, threads: int | None = None) -> None:
        super().__init__(name, threads=threads, engine=OpenVinoEngine("openvino"))

    def supports(self, node: Node, call: Call) -> Support:
        if node.op in {BOUNDED_CALL, *CONTROL_FLOW}:
            return Support(False, "lengths and branches that depend on values run elsewhere")
        values = (*call.values, *[None] * len(node.outputs))
        if any(map(is_empty, (*call.inputs, *infer_node(node, call)), values)):
            return Support(False, "it takes no empty tensors")
        return super().supports(node, call)

    def shares(self, subgraph: Graph) -> Mapping[str, float]:
        """Return no shares for `subgraph`: the times of fused nodes are not attributed."""
        return {}
