"""Kernels with a thread for each element of a tensor, which says where that comes from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod

from ...graph.tensor import TensorSpec
from .copying import WORDS
from .functions import called_in
from .indexing import coordinates, index_type
from .kernel import THREADS, Kernel, Parameter, Role, groups_of
from .types import ctype


def cells(
    title: str,
    shape: Sequence[int],
    parameters: Sequence[Parameter],
    statements: Iterable[str],
    sizes: Iterable[int] = (),
) -> Kernel:
    """Return the kernel that runs statements for each element of a shape.

    They find its number in C order as ``i``, its coordinates as ``k0``, ``k1``..., and the type of
    indices as ``index``: it holds the `sizes` of all tensors that are indexed, too.
    """
    size = prod(shape)
    c = index_type(size + THREADS, *sizes)
    lines = [
        f"typedef {c} index;",
        f"const index i = (index)GROUP * {THREADS} + THREAD;",
        f"if (i >= {size}) return;",
        *coordinates("i", shape, "k", "index"),
        *statements,
    ]
    body = "\n".join(lines)
    return Kernel(title, tuple(parameters), body, groups_of(size), functions=called_in(body))


def moved(name: str, spec: TensorSpec, role: Role, index: int = 0) -> Parameter:
    """Return the parameter of a tensor whose elements are moved as words, whatever they mean."""
    return in_words(name, spec.dtype.itemsize, role, index)


def in_words(name: str, itemsize: int, role: Role, index: int = 0) -> Parameter:
    """Return the parameter of a tensor that is moved in words of a size: see `words_of`."""
    return Parameter(name, WORDS[itemsize], role, index)


def typed(name: str, spec: TensorSpec, role: Role, index: int = 0) -> Parameter:
    """Return the parameter of a tensor whose elements are numbers."""
    return Parameter(name, ctype(spec.dtype), role, index)


def place(name: str, value: str, length: int) -> list[str]:
    """Return the statements that declare `name`, the place on an axis that an index stands for.

    Negative ones count from the end. One outside the axis is left in `TRAP`, and stands for the
    first place: nothing beside the tensor is read, nor written.
    """
    given = f"given_{name}"
    return [
        f"i64 {given} = {value};",
        f"if ({given} < 0) {given} += {length};",
        f"if ({given} < 0 || {given} >= {length}) {{ trap[0] = {value}; {given} = 0; }}",
        f"const index {name} = (index){given};",
    ]
