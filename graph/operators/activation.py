"""Activation functions, with ONNX's attributes and defaults."""

from __future__ import annotations

from collections.abc import Sequence

from ..core.attribute import Attribute, Kind
from ..core.operator import Call, define
from ..core.traits import ACTIVATION, ELEMENTWISE, FOLLOWS, IN_POWERS, NEVER_NEGATIVE, NO_TRAITS
from ..values.tensor import TensorSpec
from .inputs import FLOATS, NUMBERS, SIGNED, check_broadcastable, find_common_dtype
from .rules import FIRST, TRANSCENDENTAL, per_element, same_of


def _number(default: float) -> Attribute:
    return Attribute(Kind.FLOAT, default)


define("Relu", inputs="x", inplace=FIRST, traits=ACTIVATION | NEVER_NEGATIVE, float16=FOLLOWS)(
    same_of(SIGNED)
)

_ALPHA, _GAMMA = 1.67326319217681884765625, 1.05070102214813232421875

for _op, _operations, _attributes in (
    ("LeakyRelu", 2, {"alpha": _number(0.01)}),
    ("ThresholdedRelu", 2, {"alpha": _number(1.0)}),
    ("HardSigmoid", 4, {"alpha": _number(0.2), "beta": _number(0.5)}),
    ("HardSwish", 5, {}),
    ("Softsign", 3, {}),
    ("Sigmoid", TRANSCENDENTAL, {}),
    ("Swish", TRANSCENDENTAL, {"alpha": _number(1.0)}),
    ("Elu", TRANSCENDENTAL, {"alpha": _number(1.0)}),
    ("Celu", TRANSCENDENTAL, {"alpha": _number(1.0)}),
    # The defaults of ONNX, to the last digit: those of the paper, rounded to float32.
    ("Selu", TRANSCENDENTAL, {"alpha": _number(_ALPHA), "gamma": _number(_GAMMA)}),
    ("Softplus", 2 * TRANSCENDENTAL, {}),
    ("Mish", 3 * TRANSCENDENTAL, {}),
    ("Gelu", 28, {"approximate": Attribute(Kind.STRING, "none", choices=("none", "tanh"))}),
):
    define(
        _op,
        inputs="x",
        attributes=_attributes,
        cost=per_element(_operations),
        inplace=FIRST,
        traits=ACTIVATION | (NEVER_NEGATIVE if _op in ("Sigmoid", "Softplus") else NO_TRAITS),
        float16=IN_POWERS if _op in ("Softplus", "Mish") else FOLLOWS,
    )(same_of(FLOATS))

define(
    "Shrink",
    inputs="x",
    attributes={"bias": _number(0.0), "lambd": _number(0.5)},
    cost=per_element(4),
    inplace=FIRST,
    traits=ACTIVATION,
    float16=FOLLOWS,
)(same_of(NUMBERS))


@define(
    "PRelu",
    inputs="x slope",
    cost=per_element(4),
    inplace=FIRST,
    traits=ELEMENTWISE,
    float16=FOLLOWS,
)
def infer_prelu(call: Call) -> Sequence[TensorSpec]:
    """Infer the output of `call`: like x; the slope broadcasts to it, not the other way round."""
    x, slope = call.spec(0), call.spec(1)
    find_common_dtype((x, slope), NUMBERS)
    if x.shape is not None:
        check_broadcastable(slope, x.shape, "the slope")
    return (x,)
