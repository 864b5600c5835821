"""Operators and file formats of other systems, each with all that it needs in one folder.

A dialect may use the graph, devices and scheduler; nothing else in plait names one. What it has is
registered by entry points like those of any package (docs/extending.md), so that a dialect could be
a package of its own.
"""

from collections.abc import Mapping

ENTRY_POINTS: Mapping[str, Mapping[str, str]] = {
    "plait.operators": {
        "cvm": ".cvm.operators",
        "com.microsoft": ".ort_operators.operators",
        "ai.onnx.ml": ".ort_operators.operators",
        "com.ms.internal.nhwc": ".ort_operators.operators",
        "ort": ".ort_operators.operators",
        "ai.onnx.contrib": ".ort_operators.extensions:register",
        "ai.onnx": ".ort_operators.operators",
        "sources": "..scheduler.sources.images",
    },
    "plait.evaluators": {"devices": "..devices.evaluating:evaluate"},
    "plait.devices": {"ray": "..scheduler.ray.cluster:find"},
    "plait.kernels": {"cvm": ".cvm.kernels"},
    "plait.codegen": {"cvm": ".cvm.codegen"},
    "plait.definitions": {"cvm": ".cvm.reference"},
    "plait.formats": {
        "torch": ".torch_export.format:TORCH",
        "lightnet": ".lightnet.format:LIGHTNET",
        "cvm": ".cvm.format:CVM",
    },
}
"""By group and name, as in a package's ``pyproject.toml``, which plait can run without; from here.

Of formats, those that know their content more closely stand last: they are asked first. Devices on
a Ray cluster stand here since devices know nothing of the scheduler, operators of sources and the
function that computes constants since graphs know nothing of scheduler and devices.
"""
