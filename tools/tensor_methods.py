"""Write graph/building/tensor_methods.pyi: the operators as methods of tensors, for type checkers.

The methods are made when they are asked for, from the operators' definitions. Type checkers and
editors run nothing: they read this file, which has the same names, arguments, defaults and lines of
help. `make methods` writes it, and a test fails where it differs.
"""

from __future__ import annotations

from collections.abc import Iterator
from inspect import Parameter
from pathlib import Path

from plait import Tensor
from plait.graph.building.operator_methods import Method, list_methods
from plait.graph.core.attribute import Attribute, Kind
from plait.graph.core.operator import Operator, find_operator

STUB = Path(__file__).parents[1] / "graph" / "building" / "tensor_methods.pyi"
LONGEST = 100

HEAD = '''"""Operators as methods of tensors; `make methods` writes this file."""

from collections.abc import Sequence
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from .arithmetic import Arithmetic
from .named_tensor import Tensor

Integers: TypeAlias = Sequence[int] | NDArray[np.integer]

class OperatorMethods(Arithmetic):
'''

TYPES = {
    Kind.INT: "int",
    Kind.FLOAT: "float",
    Kind.BOOL: "bool",
    Kind.STRING: "str",
    Kind.BOOLS: "Sequence[bool]",
    Kind.INTS: "Integers",
    Kind.FLOATS: "Sequence[float]",
    Kind.STRINGS: "Sequence[str]",
    Kind.DTYPE: "DTypeLike",
    Kind.NUMBER: "float",
    Kind.TENSOR: "NDArray[np.generic]",
}
"""How the values of attributes are annotated; operators with graphs are not methods."""

OF_METHODS = {
    "axis": "int | Integers | Tensor | None",
    "keepdims": "bool",
    "name": "str | None",
}
"""The arguments that methods have beside those of their operators."""


def main() -> None:
    """Write the file."""
    STUB.write_text(stub())


def stub() -> str:
    """Return the text of the file."""
    names = list_methods()
    own = (name for name in sorted(names) if name not in vars(Tensor) and is_own(names[name]))
    return HEAD + "".join(text for name in own for text in method_lines(name, names[name]))


def is_own(method: Method) -> bool:
    """Return whether an operator is one of plait's, and not of another package."""
    return find_operator(method.op).module.startswith("plait.graph.operators.")


def method_lines(name: str, method: Method) -> Iterator[str]:
    """Yield a method, on one line or with a line for each argument."""
    operator = find_operator(method.op)
    count = operator.usual_outputs
    yields = "Tensor" if count == 1 else f"tuple[{', '.join(['Tensor'] * count)}]"
    arguments = ["self", *argument_texts(method, operator)]
    line = f"    def {name}({', '.join(arguments)}) -> {yields}:"
    if len(line) > LONGEST:
        listed = "".join(f"        {one},\n" for one in arguments)
        line = f"    def {name}(\n{listed}    ) -> {yields}:"
    yield f'{line}\n        """{method.describe()}"""\n'


def argument_texts(method: Method, operator: Operator) -> Iterator[str]:
    """Yield the arguments of a method, annotated."""
    starred = False
    for one in method.signature().parameters.values():
        if one.kind is Parameter.VAR_POSITIONAL:
            starred = True
            yield f"*{one.name}: ArrayLike"
            continue
        if one.kind is Parameter.KEYWORD_ONLY and not starred:
            starred = True
            yield "*"
        default = "" if one.default is Parameter.empty else f" = {one.default!r}"
        yield f"{one.name}: {annotation(one, method, operator)}{default}"


def annotation(argument: Parameter, method: Method, operator: Operator) -> str:
    """Return the type of an argument."""
    attribute = operator.attributes.get(argument.name)
    if method.reduces or argument.name == "name":
        return OF_METHODS[argument.name]
    if attribute is not None:
        return type_of(attribute)
    if argument.kind is Parameter.KEYWORD_ONLY:
        return OF_METHODS[argument.name]
    return "ArrayLike" if argument.default is Parameter.empty else "ArrayLike | None"


def type_of(attribute: Attribute) -> str:
    """Return the type of an attribute's values, or None where that is the default."""
    text = TYPES[attribute.kind]
    if attribute.choices and attribute.kind in (Kind.STRING, Kind.INT):
        text = f"Literal[{', '.join(map(repr, attribute.choices))}]"
    return f"{text} | None" if attribute.default is None else text


if __name__ == "__main__":
    main()
