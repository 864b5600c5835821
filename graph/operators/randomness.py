"""Operators that draw random numbers, and their generator.

Those of ONNX are not functions of their inputs: `plait.graph.passes.randomness` rewrites them with
`Philox`, which is a function of a key, before a graph is planned.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..core.attribute import Attribute, Kind
from ..core.operator import Call, define
from ..core.traits import FLAT, IN_STEPS, OWN_DTYPES, PRIMITIVE, WRITTEN_WITH_PHILOX
from ..values.dims import UNKNOWN
from ..values.errors import ShapeError
from ..values.tensor import TensorSpec
from .inputs import (
    FLOATS,
    check_dtype,
    check_rank,
    forget_shape,
    may_equal,
    read_integers,
    read_rank,
)

PHILOX = "Philox"
UNIFORM, NORMAL, INTEGER = "uniform", "normal", "integer"
RANDOM_KEY = "random_key"
"""The input of a graph that sessions feed, unless callers do."""
KEY_SPEC = TensorSpec("uint64", (2,))
"""The seed, and the number of the item."""

_DTYPES = {"uint64": (INTEGER,), "float32": (UNIFORM, NORMAL), "float64": (UNIFORM, NORMAL)}
_OPERATIONS = 25
"""About the number of operations for an element."""


def accept_any(inputs: Sequence[str]) -> bool:
    return True


@define(
    PHILOX,
    inputs="key shape",
    attributes={
        "distribution": Attribute(Kind.STRING, UNIFORM, choices=(INTEGER, UNIFORM, NORMAL)),
        "dtype": Attribute(Kind.DTYPE, "float32"),
        "sequence": Attribute(Kind.INT, 0, minimum=0, maximum=2**63 - 1),
        "seeded": Attribute(Kind.BOOL, False),
    },
    cost=lambda call, outputs: _OPERATIONS * outputs[0].size,
    traits=FLAT,
    float16=OWN_DTYPES,
    lacks=PRIMITIVE,
)
def infer_philox(call: Call) -> Sequence[TensorSpec]:
    """Infer the output of `call`: the shape given, in the dtype given.

    The generator is Philox4x64-10, keyed by (seed, `sequence`), or (0, `sequence`) unless `seeded`.
    Block b, from 1 on, is its result for the counter (b, item, 0, 0): four words of 64 bits, or
    eight of 32, the lower half of a word first. Element i comes from word i, with as many bits as
    its own dtype:

    ========  ======================  ============================
    numbers   float32                 float64, of integers uint64
    ========  ======================  ============================
    integer                           word
    uniform   ⌊word / 2⁸⌋ / 2²⁴       ⌊word / 2¹¹⌋ / 2⁵³
    normal    Φ⁻¹((word + ½) / 2³²)   Φ⁻¹((⌊word / 2¹²⌋ + ½) / 2⁵²)
    ========  ======================  ============================

    Φ⁻¹ is `plait.graph.operators.normal_quantile`, in double precision, rounded once.
    Source: Salmon, Moraes, Dror, Shaw, *Parallel Random Numbers: As Easy as 1, 2, 3* (2011).
    """
    key, dtype = call.spec(0), TensorSpec(call.attributes["dtype"], ()).dtype
    # Inside of a Loop the key is made by nodes, so that its length may be known only later.
    fits = key.shape is None or (key.rank == 1 and may_equal(key.shape[0], 2))
    if key.dtype != KEY_SPEC.dtype or not fits:
        raise ShapeError(f"the key is {key}", fix=f"pass {KEY_SPEC}: a seed and a number")
    if call.attributes["distribution"] not in _DTYPES.get(dtype.name, ()):
        raise ShapeError(
            f"there are no {call.attributes['distribution']} numbers of {dtype.name}",
            fix="draw integers as uint64, others as float32 or float64, and insert a Cast",
        )
    # Computed shapes depend on values: only their rank is known then.
    shape = read_integers(call, 1, "the shape")
    if shape is None:
        return (forget_shape(TensorSpec(dtype), read_rank(call, 1)),)
    return (TensorSpec(dtype, _check_shape(shape)),)


_SEED = {"seed": Attribute(Kind.FLOAT, None)}
_SHAPE = {"shape": Attribute(Kind.INTS), "dtype": Attribute(Kind.DTYPE, "float32")}
_LIKE = {"dtype": Attribute(Kind.DTYPE, None)}
_NORMAL = {"mean": Attribute(Kind.FLOAT, 0.0), "scale": Attribute(Kind.FLOAT, 1.0)}
_UNIFORM = {"low": Attribute(Kind.FLOAT, 0.0), "high": Attribute(Kind.FLOAT, 1.0)}


def _infer_made(call: Call) -> Sequence[TensorSpec]:
    made = TensorSpec(call.attributes["dtype"], _check_shape(call.attributes["shape"]))
    check_dtype(made, FLOATS, "the output")
    return (made,)


def _infer_like(call: Call) -> Sequence[TensorSpec]:
    # A dtype left out is the input's, which may be of integers: those are not drawn.
    made = TensorSpec(call.attributes["dtype"] or call.spec(0).dtype, call.spec(0).shape)
    check_dtype(made, FLOATS, "the output")
    return (made,)


for _op, _numbers in (("RandomNormal", _NORMAL), ("RandomUniform", _UNIFORM)):
    for _name, _inputs, _own, _rule in (
        (_op, "", _SHAPE, _infer_made),
        (f"{_op}Like", "x", _LIKE, _infer_like),
    ):
        define(
            _name,
            inputs=_inputs,
            attributes={**_numbers, **_SEED, **_own},
            draws=accept_any,
            traits=FLAT,
            float16=OWN_DTYPES,
            lacks=WRITTEN_WITH_PHILOX,
        )(_rule)


@define(
    "Bernoulli",
    inputs="x",
    attributes={**_SEED, **_LIKE},
    draws=accept_any,
    traits=FLAT,
    float16=IN_STEPS,
    lacks=WRITTEN_WITH_PHILOX,
)
def infer_bernoulli(call: Call) -> Sequence[TensorSpec]:
    check_dtype(call.spec(0), FLOATS)
    return (TensorSpec(call.attributes["dtype"] or call.spec(0).dtype, call.spec(0).shape),)


@define(
    "Multinomial",
    inputs="x",
    attributes={
        "dtype": Attribute(Kind.DTYPE, "int32", choices=("int32", "int64")),
        "sample_size": Attribute(Kind.INT, 1, minimum=0),
        **_SEED,
    },
    draws=accept_any,
    traits=FLAT,
    float16=IN_STEPS,
    lacks=WRITTEN_WITH_PHILOX,
)
def infer_multinomial(call: Call) -> Sequence[TensorSpec]:
    """Infer the output of `call`: `sample_size` classes for each row of log-probabilities."""
    x = call.spec(0)
    check_dtype(x, FLOATS)
    check_rank(x, 2, "(samples, classes)")
    if x.rank is not None and x.rank > 2:
        raise ShapeError(f"the input is {x}", fix="reshape it to (samples, classes)")
    if x.shape is not None and x.shape[1] == 0:
        raise ShapeError("there are no classes to choose from", fix="pass one or more")
    rows = UNKNOWN if x.shape is None else x.shape[0]
    return (TensorSpec(call.attributes["dtype"], (rows, call.attributes["sample_size"])),)


def _check_shape(shape: Sequence[int]) -> tuple[int, ...]:
    if min(shape, default=0) < 0:
        raise ShapeError(f"{list(shape)} is not a shape", fix="use lengths ≥ 0")
    return tuple(shape)
