"""The face of operators: definitions, and their kernels, gradients, decompositions and oracles.

Examples
--------
>>> import plait as pl
>>> from plait.operators import Attribute, Kind, define, unregister_operator
>>> @define("Shift", inputs="x", attributes={"by": Attribute(Kind.FLOAT, 1.0)})
... def infer_shift(call):
...     return (call.spec(0),)
>>> b = pl.GraphBuilder("shift")
>>> b.op("Shift", b.input("x", "float32", ("n",)), by=2).shape
('n',)
>>> unregister_operator("Shift")
"""

from typing import TYPE_CHECKING

from .lazily import lazily

if TYPE_CHECKING:
    from .devices.codegen.elementwise import elementwise
    from .devices.codegen.epilogue import generates_product
    from .devices.codegen.fusing import fuse
    from .devices.codegen.registry import generates
    from .devices.codegen.types import is_float, to_computed_type, write_literal
    from .devices.formal import ieee
    from .devices.formal.registry import definition, per_element
    from .devices.kernels.registry import kernel
    from .graph.core import traits
    from .graph.core.attribute import REQUIRED, Attribute, Kind
    from .graph.core.checks import Checks
    from .graph.core.operator import (
        Call,
        Cost,
        Operator,
        Specs,
        alias_operator,
        define,
        find_operator,
        list_operators,
        remove_alias,
        unregister_operator,
    )
    from .graph.core.parameters import FLT_MAX, Parameters
    from .graph.core.traits import Float16, Part, Trait
    from .graph.decompositions.rules import DecompositionBuilder, decomposition
    from .graph.functions.operator_lifecycle import OperatorLifecycle, State
    from .graph.gradients.formula import Term
    from .graph.gradients.registry import Adjoint, gradient
    from .graph.values import dims
    from .graph.values.dims import UNKNOWN

__all__ = [
    "FLT_MAX",
    "REQUIRED",
    "UNKNOWN",
    "Adjoint",
    "Attribute",
    "Call",
    "Checks",
    "Cost",
    "DecompositionBuilder",
    "Float16",
    "Kind",
    "Operator",
    "OperatorLifecycle",
    "Parameters",
    "Part",
    "Specs",
    "State",
    "Term",
    "Trait",
    "alias_operator",
    "decomposition",
    "define",
    "definition",
    "dims",
    "elementwise",
    "find_operator",
    "fuse",
    "generates",
    "generates_product",
    "gradient",
    "ieee",
    "is_float",
    "kernel",
    "list_operators",
    "per_element",
    "remove_alias",
    "to_computed_type",
    "traits",
    "unregister_operator",
    "write_literal",
]

__getattr__, __dir__ = lazily(
    __name__,
    {
        ".devices.codegen.elementwise": "elementwise",
        ".devices.codegen.epilogue": "generates_product",
        ".devices.codegen.fusing": "fuse",
        ".devices.codegen.registry": "generates",
        ".devices.codegen.types": "is_float to_computed_type write_literal",
        ".devices.formal.ieee": ".",
        ".devices.formal.registry": "definition per_element",
        ".devices.kernels.registry": "kernel",
        ".graph.core.attribute": "Attribute Kind REQUIRED",
        ".graph.core.checks": "Checks",
        ".graph.decompositions.rules": "DecompositionBuilder decomposition",
        ".graph.values.dims": ". UNKNOWN",
        ".graph.gradients.formula": "Term",
        ".graph.gradients.registry": "Adjoint gradient",
        ".graph.core.operator": "Call Cost Operator Specs alias_operator define find_operator"
        " list_operators remove_alias unregister_operator",
        ".graph.functions.operator_lifecycle": "OperatorLifecycle State",
        ".graph.core.parameters": "FLT_MAX Parameters",
        ".graph.core.traits": ". Float16 Part Trait",
    },
)
