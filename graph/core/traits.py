"""Facts about operators that passes ask for, stated where an operator is defined.

A trait holds for every node of the operator, so that a pass needs no list of names, and operators
of packages are treated like plait's own. Implementations of an operator are registered elsewhere,
by its name; missing ones are stated here too, with the reason.
"""

from __future__ import annotations

from enum import Enum, Flag, auto
from typing import NamedTuple, TypeAlias


class Trait(Flag):
    """A fact about an operator; several are joined by ``|``.

    Examples
    --------
    >>> from plait.operators import Trait, find_operator
    >>> Trait.ELEMENTWISE in find_operator("Relu").traits
    True
    """

    ELEMENTWISE = auto()
    """An output element follows from those at its place in inputs that broadcast together."""
    ACTIVATION = auto()
    """Elementwise in its first input, the others are single numbers: products can end in it."""
    SELECTS = auto()
    """Yields elements of its first input alone, some maybe not at all, or again."""
    MOVES = auto()
    """Yields each element of its first input once; other inputs say where."""
    EPILOGUE = auto()
    """Some device computes an activation of its results at the end of its loop."""
    PRODUCT = auto()
    """Sums of products: most of the arithmetic of a network. They have an epilogue."""
    FULLY_CONNECTED = auto()
    """Multiplies rows by a matrix and adds a bias: a layer of a network."""
    COMMUTATIVE = auto()
    """Has two inputs, the order of which makes no difference in any bit."""
    NEVER_NEGATIVE = auto()
    """Relu does not change its floats: they are nan, or at least 0, and never -0."""
    MAXIMA = auto()
    """Yields the largest element of each window of its first input, integers too."""
    ROUNDS = auto()
    """Yields whole numbers; doing it again, or another such after it, changes nothing."""
    FLAT = auto()
    """Its results do not change with small changes of inputs: no gradient flows through."""
    LENGTHS = auto()
    """Yields lengths of its first input, and reads none of its elements."""
    DECODES = auto()
    """Decompresses its inputs: constants are not decoded ahead."""
    RUNTIME = auto()
    """One of ONNX Runtime's own, which `ort` devices alone run as it is."""


NO_TRAITS = Trait(0)
ELEMENTWISE, COMMUTATIVE = Trait.ELEMENTWISE, Trait.COMMUTATIVE
ROUNDS, DECODES, SELECTS = Trait.ROUNDS, Trait.DECODES, Trait.SELECTS
LENGTHS, FLAT = Trait.LENGTHS, Trait.FLAT
RUNTIME = Trait.RUNTIME
NEVER_NEGATIVE, MAXIMA, EPILOGUE = Trait.NEVER_NEGATIVE, Trait.MAXIMA, Trait.EPILOGUE
PRODUCT = Trait.PRODUCT | EPILOGUE
FULLY_CONNECTED = Trait.FULLY_CONNECTED
ACTIVATION = Trait.ACTIVATION | ELEMENTWISE
MOVES = Trait.MOVES | SELECTS


class Float16(NamedTuple):
    """Whether an operator computes in float16 where that is allowed."""

    inputs: range
    """Those that become float16 with it; none where it stays in float32."""
    reason: str = ""
    """Why it does."""


def never(reason: str) -> Float16:
    """Return the statement that an operator stays in float32, for `reason`."""
    return Float16(range(0), reason)


FOLLOWS = Float16(range(1000))
"""It only moves numbers, or adds and multiplies a few: float16 if its inputs are."""

FIRST_FOLLOWS = Float16(range(1))
"""Float16 if its first input is; others, such as scales and statistics, stay float32."""

UNSTATED = never("it is not known to be safe in float16")
IN_SUMS = never("sums of many numbers lose digits, or overflow")
IN_POWERS = never("exponentials overflow at 11, and magnify what was rounded before")
IN_QUOTIENTS = never("small divisors overflow it, and 10⁻⁸ is 0 in it")
IN_COORDINATES = never("coordinates need more than 11 bits")
IN_GRADIENTS = never("small gradients are 0 in it")
IN_SCALES = never("scales need more than 11 bits")
IN_STEPS = never("numbers that were rounded before may fall on the other side of a step")
IN_SLOPES = never("where its slope is steep, or its argument large, it magnifies what was rounded")
OWN_DTYPES = never("its attributes, or graphs, say what its dtypes are")
NO_FLOATS = never("it computes no floats")


class Part(Enum):
    """The parts of an operator besides the shape rule and cost, which all have.

    Examples
    --------
    >>> from plait.operators import Part, find_operator
    >>> find_operator("Relu").lacks.get(Part.GRADIENT, "it has one")
    'it has one'
    >>> find_operator("NonZero").lacks[Part.GRADIENT]
    'it yields indices'
    """

    GRADIENT = "gradient"
    DECOMPOSITION = "decomposition"
    KERNEL = "kernel"
    DEFINITION = "definition"
    CODEGEN = "generated kernel"


Lacks: TypeAlias = dict[Part, str]
"""The missing parts of an operator, joined by ``|``, and the reason."""

NOTHING: Lacks = {}
PRIMITIVE: Lacks = {Part.DECOMPOSITION: "nothing simpler computes it"}
NO_SLOPE_OF_BITS: Lacks = {Part.GRADIENT: "bits are not numbers to change a little"}
NO_SLOPE_OF_TRUTH: Lacks = {Part.GRADIENT: "truth has no slope"}
NO_SLOPE_OF_PLACES: Lacks = {Part.GRADIENT: "it yields indices"}
ARRAY_KERNEL: Lacks = {Part.CODEGEN: "its kernel is one for arrays of numpy and CuPy"}
WRITTEN_OUT_ON_GPUS: Lacks = {Part.CODEGEN: "it is written out in operators that have one"}
LENGTH_BY_VALUES: Lacks = {
    Part.DECOMPOSITION: "plans put another operator in its place",
    Part.KERNEL: "plans put another operator in its place",
    Part.CODEGEN: "how long its outputs are is known when it has run",
}
IN_PLANS_ALONE: Lacks = {
    Part.GRADIENT: "it is there in plans alone",
    Part.DECOMPOSITION: "it is there in plans alone",
    Part.DEFINITION: "that of the operator in whose place it stands says what it computes",
    Part.CODEGEN: "how long its outputs are is known when it has run",
}
WRITTEN_WITH_PHILOX: Lacks = dict.fromkeys(
    (Part.DECOMPOSITION, Part.KERNEL, Part.DEFINITION, Part.CODEGEN),
    "it is written with Philox before anything is planned",
)
OF_GRAPHS: Lacks = PRIMITIVE | dict.fromkeys(
    (Part.KERNEL, Part.DEFINITION, Part.CODEGEN), "its graphs are run, not the node"
)
