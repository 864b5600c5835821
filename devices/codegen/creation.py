"""Generators of tensors that depend on shapes, scalars and coordinates.

Each takes a `call` and the specs of its `outputs`, and returns the `Code`.
"""

from __future__ import annotations

import numpy as np

from ...graph.core.operator import Call, Specs
from ...graph.operators.reshaping import list_shape_axes
from ...graph.values.tensor import TensorSpec
from .cells import declare_numbers, declare_words, make_cell_kernel
from .conversion import convert
from .copying import Layout, copy
from .functions import choose_word
from .indexing import make_strides, write_offset
from .registry import TRAP, Code, Kernel, generates
from .types import is_float, load, store, to_computed_type, to_ctype, write_literal


def _fill(y: TensorSpec, value: float | int | bool, index: int = 0) -> Kernel:
    constant = write_literal(value, to_computed_type(y.dtype))
    statement = store(y.dtype, "y", "i", constant)
    return make_cell_kernel(
        "fill", y.static_shape, [declare_numbers("y", y, "output", index)], [statement]
    )


@generates("ConstantOfShape")
def constant_of_shape(call: Call, outputs: Specs) -> Code:
    value = outputs[0].dtype.type(call.attributes["value"]).item()
    return Code((_fill(outputs[0], value),))


@generates("Size")
def size(call: Call, outputs: Specs) -> Code:
    return Code((_fill(outputs[0], call.spec(0).size),))


@generates("Shape")
def shape_of(call: Call, outputs: Specs) -> Code:
    lengths = call.spec(0).static_shape
    axes = list_shape_axes(len(lengths), call.attributes)
    chosen = " : ".join([*(f"i == {n} ? {lengths[axis]}" for n, axis in enumerate(axes)), "0"])
    y = outputs[0]
    return Code(
        (
            make_cell_kernel(
                "shape", y.static_shape, [declare_numbers("y", y, "output")], [f"y[i] = {chosen};"]
            ),
        )
    )


@generates("Dropout")
def dropout(call: Call, outputs: Specs) -> Code:
    """Return code for `call` and `outputs`: x, and a mask that keeps all elements."""
    x = call.spec(0)
    source = Layout(make_strides(x.static_shape))
    kernel = copy("copy", x.dtype.itemsize, x.static_shape, source)
    return Code((kernel, _fill(TensorSpec("bool", x.shape), True, 1)))


@generates("Group")
def group(call: Call, outputs: Specs) -> Code:
    """Return no kernels for `call`, since its `outputs` are empty."""
    return Code(())


@generates("Range", float64=lambda call: is_float(call.spec(0).dtype))
def range_(call: Call, outputs: Specs) -> Code:
    """Return code for `call` and `outputs`: start + i·delta; floats in f64, integers modulo 2ⁿ."""
    y = outputs[0]
    t = to_ctype(y.dtype)
    if is_float(y.dtype):
        start, delta = (f"(f64){load(y.dtype, name, '0')}" for name in ("start", "delta"))
        value = convert(f"{start} + (f64)i * {delta}", "f64", y.dtype)
    else:
        w = choose_word(t)
        value = f"({t})(({w})start[0] + ({w})i * ({w})delta[0])"
    parameters = [
        declare_numbers("start", y, "input", 0),
        declare_numbers("delta", y, "input", 2),
        declare_numbers("y", y, "output"),
    ]
    return Code(
        (make_cell_kernel("range", y.static_shape, parameters, [store(y.dtype, "y", "i", value)]),)
    )


@generates("EyeLike")
def eye_like(call: Call, outputs: Specs) -> Code:
    y = outputs[0]
    value = f"({to_computed_type(y.dtype)})(k1 - k0 == ({call.attributes['k']}))"
    parameters = [declare_numbers("y", y, "output")]
    return Code(
        (
            make_cell_kernel(
                "eye_like", y.static_shape, parameters, [store(y.dtype, "y", "i", value)]
            ),
        )
    )


@generates("OneHot")
def one_hot(call: Call, outputs: Specs) -> Code:
    indices, values, y = call.spec(0), call.spec(2), outputs[0]
    shape = y.static_shape
    axis = call.attributes["axis"] % len(shape)
    where = [stride if i != axis else 0 for i, stride in enumerate(_skip_axis(shape, axis))]
    found = convert(
        load(indices.dtype, "indices", write_offset(where, "k")),
        to_computed_type(indices.dtype),
        np.dtype(np.int64),
    )
    statements = [
        f"const i64 hot = {found};",
        f"y[i] = values[hot == k{axis} || hot == k{axis} - ({shape[axis]}) ? 1 : 0];",
    ]
    parameters = [
        declare_numbers("indices", indices, "input"),
        declare_words("values", values, "input", 2),
        declare_words("y", y, "output"),
    ]
    return Code((make_cell_kernel("one_hot", shape, parameters, statements),))


def _skip_axis(shape: tuple[int, ...], axis: int) -> tuple[int, ...]:
    """Return the strides of a tensor that lacks `axis` of `shape`; the axis's own is arbitrary."""
    return make_strides([1 if i == axis else length for i, length in enumerate(shape)])


@generates("ReverseSequence")
def reverse_sequence(call: Call, outputs: Specs) -> Code:
    x, lengths = call.spec(0), call.spec(1)
    shape, strides = x.static_shape, make_strides(x.static_shape)
    time, batch = call.attributes["time_axis"], call.attributes["batch_axis"]
    statements = [
        f"const i64 given = lengths[k{batch}];",
        f"if (given < 0 || given > {shape[time]}) trap[0] = given;",
        f"const i64 count = given < {shape[time]} ? given : {shape[time]};",
        f"const index t = k{time} < count ? (index)count - 1 - k{time} : k{time};",
        f"y[i] = x[i + (t - k{time}) * {strides[time]}];",
    ]
    parameters = [
        declare_words("x", x, "input"),
        declare_numbers("lengths", lengths, "input", 1),
        declare_words("y", x, "output"),
        TRAP,
    ]
    kernel = make_cell_kernel("reverse_sequence", shape, parameters, statements)
    return Code((kernel,), trap=f"sequence length {{}} is not in [0, {shape[time]}]")
