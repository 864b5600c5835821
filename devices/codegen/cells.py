"""Kernels with one thread for each element of the output."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod

from ...graph.values.tensor import TensorSpec
from .copying import WORDS
from .functions import find_functions
from .indexing import choose_index_type, declare_coordinates
from .registry import THREADS, Kernel, Parameter, Role, count_groups
from .types import to_ctype


def make_cell_kernel(
    title: str,
    shape: Sequence[int],
    parameters: Sequence[Parameter],
    statements: Iterable[str],
    sizes: Iterable[int] = (),
) -> Kernel:
    """Return the kernel `title` that runs `statements` for each element of `shape`.

    They may use `parameters`, the element's number in C order as ``i``, its coordinates as ``k0``,
    ``k1``..., and the index type as ``index``, which is wide enough for the `sizes` of all indexed
    tensors.
    """
    size = prod(shape)
    c = choose_index_type(size + THREADS, *sizes)
    lines = [
        f"typedef {c} index;",
        f"const index i = (index)GROUP * {THREADS} + THREAD;",
        f"if (i >= {size}) return;",
        *declare_coordinates("i", shape, "k", "index"),
        *statements,
    ]
    body = "\n".join(lines)
    return Kernel(
        title, tuple(parameters), body, count_groups(size), functions=find_functions(body)
    )


def declare_words(name: str, spec: TensorSpec, role: Role, index: int = 0) -> Parameter:
    return declare_sized_words(name, spec.dtype.itemsize, role, index)


def declare_sized_words(name: str, itemsize: int, role: Role, index: int = 0) -> Parameter:
    return Parameter(name, WORDS[itemsize], role, index)


def declare_numbers(name: str, spec: TensorSpec, role: Role, index: int = 0) -> Parameter:
    return Parameter(name, to_ctype(spec.dtype), role, index)


def declare_place(name: str, value: str, length: int) -> list[str]:
    """Return the statements that declare `name`, the place of index `value` on an axis of `length`.

    Negative indices count from the end. An index outside the axis is stored in `TRAP` and read as
    the first place, so that no memory outside of the tensor is accessed.
    """
    given = f"given_{name}"
    return [
        f"i64 {given} = {value};",
        f"if ({given} < 0) {given} += {length};",
        f"if ({given} < 0 || {given} >= {length}) {{ trap[0] = {value}; {given} = 0; }}",
        f"const index {name} = (index){given};",
    ]
