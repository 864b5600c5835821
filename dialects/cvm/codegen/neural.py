"""Exact generators of layers: products of matrices and of windows modulo 2³², maxima of windows."""

from __future__ import annotations

from ....devices.codegen.cells import declare_numbers, make_cell_kernel
from ....devices.codegen.convolution import Convolution
from ....devices.codegen.epilogue import Epilogue, generates_product
from ....devices.codegen.folds import find_extreme
from ....devices.codegen.matmul import Matrices, Stack
from ....devices.codegen.reduction import declare_input
from ....devices.codegen.registry import Code, Parameter, generates
from ....devices.codegen.types import write_literal
from ....devices.codegen.windows import Sliding
from ....graph.core.operator import Call, Specs
from ....graph.operators.windows import Window
from ..operators.neural import list_pooling_steps, make_window


def _list_parameters(call: Call, epilogue: Epilogue) -> tuple[Parameter, ...]:
    bias = [declare_input(call.spec(2), "bias", 2)] if call.has(2) else []
    return (
        declare_input(call.spec(0)),
        declare_input(call.spec(1), "w", 1),
        *epilogue.parameters,
        *bias,
    )


def _add_bias(call: Call, total: str, feature: str) -> str:
    return f"(i32)({total} + (u32)bias[{feature}])" if call.has(2) else f"(i32){total}"


@generates_product("cvm.dense")
def dense(call: Call, outputs: Specs, epilogue: Epilogue) -> Code:
    (rows, depth), units = call.spec(0).static_shape, outputs[0].static_shape[1]

    def finish(row: str, column: str, total: str) -> list[str]:
        return epilogue.write(f"{row} * {units} + {column}", _add_bias(call, total, column))

    return Matrices(
        Stack((), rows, depth),
        Stack((), depth, units, is_transposed=True),
        (),
        "u32",
        lambda at, row: f"x[{at}]",
        lambda at, column: f"w[{at}]",
        finish,
        _list_parameters(call, epilogue),
    ).code()


@generates_product("cvm.conv2d")
def conv2d(call: Call, outputs: Specs, epilogue: Epilogue) -> Code:
    batch, channels, *spatial = call.spec(0).static_shape
    _, features, *cells = outputs[0].static_shape
    window = make_window(call.attributes)
    return Convolution(
        batch,
        channels,
        features,
        call.attributes["groups"],
        Sliding(tuple(spatial), tuple(cells), window),
        "u32",
        lambda at: f"x[{at}]",
        lambda at, feature: f"w[{at}]",
        lambda at, feature, total: epilogue.write(at, _add_bias(call, total, feature)),
        _list_parameters(call, epilogue),
    ).code()


def _make_sliding(call: Call) -> Sliding:
    steps = list_pooling_steps(call.spec(0).static_shape[2:], call.attributes)
    spatial, outputs, pools, strides, pads = zip(*steps, strict=True)
    return Sliding(spatial, outputs, Window(pools, strides, (1, 1), pads, pads))


@generates("cvm.max_pool2d")
def max_pool(call: Call, outputs: Specs) -> Code:
    x, y, sliding = call.spec(0), outputs[0], _make_sliding(call)
    cell = sliding.read("", "index")
    value = f"x[plane * {sliding.cells} + {cell.offset}]"
    if cell.condition:
        value = f"{cell.condition} ? {value} : best"
    take = f"best = max_i32(best, {value});"
    statements = [
        f"const index plane = i / {sliding.planes};",
        *sliding.place(f"(i % {sliding.planes})", "", "index"),
        f"i32 best = {write_literal(find_extreme(x.dtype, 'min'), 'i32')};",
        *sliding.over_taps([*cell.statements, take]),
        "y[i] = best;",
    ]
    parameters = (declare_numbers("x", x, "input"), declare_numbers("y", y, "output"))
    return Code((make_cell_kernel("max_pool", y.static_shape, parameters, statements, [x.size]),))
