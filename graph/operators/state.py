"""State: variables, which outlive items, assignments to them, and the order of effects.

Within an item every reader of a variable sees its value at the start of the item; assigned values
are visible from the next item on. Devices have no kernel for `Variable`: a session keeps the
values.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..core.attribute import Attribute, Kind
from ..core.ir import ASSIGN, VARIABLE, Graph
from ..core.operator import Call, define, free
from ..core.traits import FIRST_FOLLOWS, NO_FLOATS, OWN_DTYPES, PRIMITIVE, Part
from ..values.errors import ShapeError
from ..values.tensor import TensorSpec
from .inputs import may_equal
from .rules import FIRST

GROUP, AFTER = "Group", "After"


@define(
    VARIABLE,
    inputs="",
    attributes={"initial": Attribute(Kind.GRAPH)},
    cost=free,
    effects=True,
    float16=OWN_DTYPES,
    lacks=dict.fromkeys(Part, "it has no inputs, and is a tensor when anything runs"),
)
def infer_variable(call: Call) -> Sequence[TensorSpec]:
    """Infer the output of `call`: like that of the graph that computes the initial value."""
    initial: Graph = call.attributes["initial"]
    if initial.inputs or len(initial.outputs) != 1:
        raise ShapeError(
            f"the initial value's graph has {len(initial.inputs)} inputs and "
            f"{len(initial.outputs)} outputs",
            fix="let it compute one output from nothing",
        )
    spec = initial.tensors[initial.outputs[0]]
    if not spec.is_static:
        raise ShapeError(f"the initial value is {spec}", fix="use fixed lengths only")
    return (spec,)


@define(
    ASSIGN,
    inputs="variable value",
    cost=free,
    views=((0, 1),),
    effects=True,
    float16=OWN_DTYPES,
    lacks=PRIMITIVE,
)
def infer_assign(call: Call) -> Sequence[TensorSpec]:
    """Infer the output of `call`: like the variable; the value must be like it, too."""
    variable, value = call.spec(0), call.spec(1)
    fits = None in (variable.rank, value.rank) or variable.rank == value.rank
    fits = fits and all(map(may_equal, variable.shape or (), value.shape or ()))
    if value.dtype != variable.dtype or not fits:
        raise ShapeError(
            f"the variable is {variable}, the value {value}", fix="insert a Cast or Reshape"
        )
    return (variable,)


@define(
    GROUP,
    inputs="x+",
    cost=free,
    float16=NO_FLOATS,
    lacks=PRIMITIVE | {Part.GRADIENT: "it says that something happened"},
)
def infer_group(call: Call) -> Sequence[TensorSpec]:
    return (TensorSpec("bool", (0,)),)


@define(AFTER, inputs="x others+", cost=free, views=FIRST, float16=FIRST_FOLLOWS, lacks=PRIMITIVE)
def infer_after(call: Call) -> Sequence[TensorSpec]:
    return (call.spec(0),)
