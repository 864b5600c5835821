"""Operators of onnxruntime-extensions, such as tokenizers: any name of their domain.

Nothing tells their inputs and attributes but the library that computes them: attributes stay as the
model has them, in one piece, and shapes are asked of a session.
"""

from __future__ import annotations

from functools import partial
from importlib.util import find_spec

from ...graph.attribute import Attribute, Kind
from ...graph.formats.onnx.nodes import ATTRIBUTES
from ...graph.operator import Operator, free, register_operator
from ...graph.traits import RUNTIME, Part, never
from ...graph.unknown_operators import EXTENSIONS_DOMAIN
from .inference import infer


def register(name: str) -> None:
    """Register an operator of the library, where that is installed."""
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
