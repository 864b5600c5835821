"""Facts about operators that passes ask for, stated where an operator is defined.

A trait says what holds for every node of the operator, so that a pass needs no list of names, and
operators of packages are treated as plait's own are.
"""

from __future__ import annotations

from enum import Flag, auto
from typing import NamedTuple


class Trait(Flag):
    """A fact about an operator; several are joined by ``|``."""

    ELEMENTWISE = auto()
    """An output element follows from those at its place in inputs that broadcast together."""
    ACTIVATION = auto()
    """Elementwise in its first input, the others are single numbers: products can end in it."""
    SELECTS = auto()
    """Yields elements of its first input alone, some maybe not at all, or again."""
    MOVES = auto()
    """Yields each element of its first input once; other inputs say where."""
    EPILOGUE = auto()
    """Some device computes an activation of what it yields on the way, as the end of its loop."""
    PRODUCT = auto()
    """Sums of products: most of the arithmetic of a network. They have an epilogue."""
    FULLY_CONNECTED = auto()
    """Multiplies rows by a matrix and adds a bias: a layer of a network."""
    COMMUTATIVE = auto()
    """Has two inputs, the order of which makes no difference in any bit."""
    NEVER_NEGATIVE = auto()
    """Floats that it yields are what Relu makes of them: nan, or at least 0, and none is -0."""
    MAXIMA = auto()
    """Yields the largest element of each window of its first input, integers too."""
    ROUNDS = auto()
    """Yields whole numbers; doing it again, or another such after it, changes nothing."""
    DECODES = auto()
    """Yields what its inputs hold in fewer bytes: constants are not decoded ahead."""


NO_TRAITS = Trait(0)
ELEMENTWISE, COMMUTATIVE = Trait.ELEMENTWISE, Trait.COMMUTATIVE
ROUNDS, DECODES, SELECTS = Trait.ROUNDS, Trait.DECODES, Trait.SELECTS
NEVER_NEGATIVE, MAXIMA, EPILOGUE = Trait.NEVER_NEGATIVE, Trait.MAXIMA, Trait.EPILOGUE
PRODUCT = Trait.PRODUCT | EPILOGUE
FULLY_CONNECTED = Trait.FULLY_CONNECTED
ACTIVATION = Trait.ACTIVATION | ELEMENTWISE
MOVES = Trait.MOVES | SELECTS


class Float16(NamedTuple):
    """Whether an operator computes in float16 where that is allowed.

    Attributes
    ----------
    inputs : range
        Those that become float16 with it; none where it stays in float32.
    reason : str
        Why it does.
    """

    inputs: range
    reason: str = ""


def never(reason: str) -> Float16:
    """Return the statement that an operator stays in float32, and why."""
    return Float16(range(0), reason)


FOLLOWS = Float16(range(1000))
"""It only moves numbers, or adds and multiplies a few: float16 where what it reads is that."""

FIRST_FOLLOWS = Float16(range(1))
"""The same of its first input; others, such as scales and statistics, stay float32."""

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
