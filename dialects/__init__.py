"""Operators and file formats of other systems, each with all that it needs in one folder.

A dialect may use the graph, devices and scheduler; nothing else in plait names a dialect. Its parts
are registered by entry points like those of any package (docs/extending.md), so that it could be a
package of its own.
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
"""Entry points by group and name, as in ``pyproject.toml``, but without an installed package.

More specific formats come last, since the last one is asked first. Devices on a Ray cluster are
listed here since devices do not know the scheduler; operators of sources and the function that
computes constants, since graphs know neither scheduler nor devices.
"""
