"""OpenVINO as an engine: it compiles the ONNX models that the device `ort` writes."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any, ClassVar

from ...graph.core.ir import Node
from ...graph.core.operator import Call
from ...graph.values.extras import get_install_command, import_extra
from ...graph.values.tensor import Array, TensorSpec
from ..errors import DeviceUnavailableError
from ..ort.engine import Engine
from ..ort.openvino import find_openvino_difference
from ..ort.threads import ONE_THREAD, Threads

_NOISE = re.compile(r"Exception from|Check '|While validating|\s*$")
"""Lines of messages about OpenVINO's source."""


class OpenVinoEngine(Engine):
    runtime: ClassVar[str] = "OpenVINO"
    takes_text: ClassVar[bool] = False
    spins: ClassVar[bool] = False
    forms = ()

    def find_software(self) -> str:
        """Return OpenVINO's version, mostly without the import, which takes 0.3 s."""
        try:
            return f"openvino {version('openvino')}"
        except PackageNotFoundError:  # missing, or installed without metadata
            return f"openvino {load_runtime().__version__}"

    def options(
        self, threads: Threads = ONE_THREAD, *, cores: Sequence[int] = (), optimize: bool = True
    ) -> dict[str, Any]:
        return {"threads": threads.count, "shared": {}}

    def opset(self) -> int:
        return 25  # the first with Attention

    def share(self, chosen: Any, arrays: Mapping[str, Array]) -> None:
        """Make a model read constants from `arrays`, which outlive it; `chosen` are its options."""
        chosen["shared"] = arrays

    def load(self, model: Any, chosen: Any) -> Any:
        settings = {
            "INFERENCE_PRECISION_HINT": "f32",  # else bfloat16 if the processor can
            "INFERENCE_NUM_THREADS": chosen["threads"],
            "NUM_STREAMS": 1,
            "ENABLE_CPU_PINNING": False,  # other software may be bound to the same cores
        }
        return _make_core().compile_model(_read(model, chosen["shared"]), "CPU", settings)

    def difference(
        self, node: Node, call: Call, outputs: Sequence[TensorSpec | None]
    ) -> str | None:
        # Found by ONNX's node tests in version 2026.4.
        mode = call.attributes.get("coordinate_transformation_mode")
        if node.op == "Resize" and mode == "align_corners":
            return "it takes other positions from the scales"
        if max(call.attributes.get(f"{side}_window_size", -1) for side in ("left", "right")) >= 0:
            return "it ignores windows of attention"
        return _DIFFERENCES.get(node.op) or find_openvino_difference(node, call, outputs)

    def refusal(self, write: Callable[[bool], Any], like: Hashable) -> str | None:
        """Return why OpenVINO cannot read the model `write(True)`, or None; `like` is not used."""
        try:
            _read(write(True), {})
        except Exception as error:
            return self.summarize(error)
        return None

    def summarize(self, error: Exception) -> str:
        """Return the last line of the message of `error`, which states the reason."""
        lines = [line.strip() for line in str(error).splitlines() if not _NOISE.match(line)]
        return (lines[-1] if lines else type(error).__name__)[:300]


_DIFFERENCES = {
    "QuantizeLinear": "it may round to the next integer",
    **dict.fromkeys(("ReduceMax", "ReduceMin"), "infinities become the largest finite numbers"),
}


def _read(model: Any, shared: Mapping[str, Array]) -> Any:
    for one in model.graph.initializer:
        if one.name in shared:
            array = shared[one.name]
            # In place of a file's name: the offset is an address of this process.
            place = ("*/_ORT_MEM_ADDR_/*", array.ctypes.data, array.nbytes)
            del one.external_data[:]
            for key, value in zip(("location", "offset", "length"), place, strict=True):
                one.external_data.add(key=key, value=str(value))
    read = _make_core().read_model(model.SerializeToString())
    for result in read.results:
        if result.input_value(0).get_node().get_type_name() == "Parameter":
            raise ValueError("it passes on an input in place")
    return read


@cache
def load_runtime() -> Any:
    """Return the module `openvino`.

    Raises DeviceUnavailableError if it, or `onnx`, which writes its models, is not installed or
    does not load.
    """
    for package in ("onnx", "openvino"):
        missing = f"'openvino' devices take the package {package!r}, which is not installed"
        fix = get_install_command("openvino")
        module = import_extra(package, missing, fix, DeviceUnavailableError)
    return module


@cache
def _make_core() -> Any:
    return load_runtime().Core()
