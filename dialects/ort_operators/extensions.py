"""Operators of onnxruntime-extensions, such as tokenizers: any name of their domain.

Only the library that computes them knows their inputs and attributes: attributes stay serialized as
in the model, and a session infers shapes.
"""

from __future__ import annotations

from functools import partial
from importlib.util import find_spec

from ...graph.core.attribute import Attribute, Kind
from ...graph.core.operator import Operator, free, register_operator
from ...graph.core.traits import RUNTIME, Part, never
from ...graph.formats.onnx.nodes import ATTRIBUTES
from ...graph.formats.unknown_operators import EXTENSIONS_DOMAIN
from .inference import infer


def register(name: str) -> None:
    """Register the library's operator `name`, if that is installed."""
    packages = ("onnx", "onnxruntime", "onnxruntime_extensions")
    if name == EXTENSIONS_DOMAIN or not all(map(find_spec, packages)):
        return
    register_operator(
        Operator(
            name,
            "inputs*",
            "outputs*",
            {ATTRIBUTES: Attribute(Kind.STRING, "")},
            partial(infer, name),
            free,
            module=__name__,
            traits=RUNTIME,
            float16=never("its dtypes are those that the model has"),
            lacks=dict.fromkeys(Part, "onnxruntime-extensions compute it, on 'ort' devices alone"),
        )
    )
