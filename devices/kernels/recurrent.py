"""Recurrent kernels: one product for the inputs of all steps, then a small one for each step.

Source of the formulas: ONNX LSTM, GRU and RNN. Gates are computed in place, on the inputs'
product; the state is kept apart from the outputs, in float32 or wider.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from ...graph.core.attribute import Attributes
from ...graph.core.operator import Call, Specs
from ...graph.operators.recurrent import (
    GRU_FUNCTIONS,
    LENGTHS,
    LSTM_FUNCTIONS,
    RNN_FUNCTIONS,
    Activation,
    count_directions,
    list_activations,
)
from ...graph.values.tensor import Array, TensorSpec
from .activation import elu, hard_sigmoid, leaky_relu, sigmoid, softplus, softsign
from .arguments import get_optional
from .precision import clamp, compute_dtype, declare_wide_copies, widen
from .registry import ArrayModule, Arrays, Step, kernel


def _declare_scratch(call: Call, outputs: Specs) -> Sequence[TensorSpec]:
    first, second, _ = call.spec(0).static_shape
    steps, batch = (second, first) if call.attributes["layout"] else (first, second)
    _, rows, hidden = call.spec(2).static_shape
    dtype = compute_dtype(call.spec(0).dtype)
    state = TensorSpec(dtype, (batch, hidden))
    one_step = TensorSpec(dtype, (batch * rows,))
    masked = (state, state, TensorSpec(np.bool_, (steps, batch, 1))) if call.has(LENGTHS) else ()
    return (
        *declare_wide_copies(call.inputs),
        TensorSpec(dtype, (first * second, rows)),
        TensorSpec(dtype, (rows,)),
        one_step,
        one_step,
        state,
        state,
        *masked,
    )


@dataclass(frozen=True, slots=True)
class _Cell:
    """The arrays of a step in one direction.

    `next_h` and `next_c` are `h` and `c` themselves if all sequences end together.
    """

    xp: ArrayModule
    r: Array
    r_bias: Array | None
    peepholes: Array | None
    functions: Sequence[Activation]
    attributes: Attributes
    product: Array
    temporary: Array
    h: Array
    c: Array
    next_h: Array
    next_c: Array

    def gates(self, values: Array) -> list[Array]:
        """Return the parts of `values`, (batch, gates · hidden), one for each gate."""
        hidden = self.h.shape[-1]
        return [values[:, i : i + hidden] for i in range(0, values.shape[-1], hidden)]

    def activate(self, index: int, x: Array, clipped: bool = True) -> Step:
        """Return the step that applies function `index` of the cell to `x`, in place.

        x is clipped first, if `clipped`.
        """
        t = _take_like(self.temporary, x.shape)
        clip = self.attributes["clip"] if clipped else None
        return partial(_activate, self.xp, self.functions[index], clip, x, t)

    def multiply(self, h: Array, rows: Array, product: Array) -> Step:
        if 1 < len(h) < 4:  # one by one, these take BLAS half the time
            h, product = h[:, None], product[:, None]
        return partial(self.xp.matmul, h, rows.T, out=product)

    def add_product(self, h: Array, first: int, y: Array) -> list[Step]:
        product = _take_like(self.product, y.shape)
        rows = self.r[first : first + y.shape[-1]]
        return [
            self.multiply(h, rows, product),
            partial(self.xp.add, y, product, out=y),
        ]

    def peep(self, index: int, c: Array, y: Array) -> list[Step]:
        """Return the steps that add P · `c` of peephole `index` to `y`; none without peepholes."""
        if self.peepholes is None:
            return []
        hidden, t = c.shape[-1], _take_like(self.temporary, c.shape)
        weights = self.peepholes[index * hidden : (index + 1) * hidden]
        return [partial(self.xp.multiply, weights, c, out=t), partial(self.xp.add, y, t, out=y)]


def _take_like(buffer: Array, shape: tuple[int, int]) -> Array:
    return buffer[: shape[0] * shape[1]].reshape(shape)


def _activate(
    xp: ArrayModule, function: Activation, clip: float | None, x: Array, t: Array
) -> None:
    name, alpha, beta = function
    if clip is not None:
        clamp(xp, x, -clip, clip, x)
    if name in _PLAIN:
        _PLAIN[name](xp, x, t)
    else:
        _WITH_NUMBERS[name](xp, x, t, alpha, beta)


def _apply_scaled_tanh(xp: ArrayModule, x: Array, t: Array, alpha: float, beta: float) -> None:
    xp.multiply(x, beta, out=x)
    xp.tanh(x, out=x)
    xp.multiply(x, alpha, out=x)


def _apply_affine(xp: ArrayModule, x: Array, t: Array, alpha: float, beta: float) -> None:
    xp.multiply(x, alpha, out=x)
    xp.add(x, beta, out=x)


def _apply_thresholded_relu(xp: ArrayModule, x: Array, t: Array, alpha: float, beta: float) -> None:
    below = t.reshape(-1).view(np.bool_)[: t.size].reshape(x.shape)
    xp.less_equal(x, alpha, out=below)
    xp.copyto(x, 0, where=below)


def _apply_sigmoid(xp: ArrayModule, x: Array, t: Array) -> None:
    # numpy 2.4 negates wrongly in place where x is every fourth float, as a gate of one unit is.
    sigmoid(xp, x, t, {})
    xp.copyto(x, t)


_PLAIN: dict[str, Callable[[ArrayModule, Array, Array], object]] = {
    "Relu": lambda xp, x, t: clamp(xp, x, 0, np.inf, x),
    "Sigmoid": _apply_sigmoid,
    "Softplus": lambda xp, x, t: softplus(xp, x, x, {}, t),
    "Softsign": lambda xp, x, t: softsign(xp, x, x, {}, t),
    "Tanh": lambda xp, x, t: xp.tanh(x, out=x),
}

_WITH_NUMBERS: dict[str, Callable[[ArrayModule, Array, Array, float, float], object]] = {
    "Affine": _apply_affine,
    "Elu": lambda xp, x, t, alpha, beta: elu(xp, x, x, {"alpha": alpha}, t),
    "HardSigmoid": lambda xp, x, t, alpha, beta: hard_sigmoid(
        xp, x, x, {"alpha": alpha, "beta": beta}
    ),
    "LeakyRelu": lambda xp, x, t, alpha, beta: leaky_relu(xp, x, x, {"alpha": alpha}, t),
    "ScaledTanh": _apply_scaled_tanh,
    "ThresholdedRelu": _apply_thresholded_relu,
}


def _step_lstm(cell: _Cell, values: Array) -> Iterator[Step]:
    """Yield the steps of `cell` on the gates in `values`: c ← f · c + i · g, h ← o · tanh(c)."""
    xp, (i, o, f, g) = cell.xp, cell.gates(values)
    yield from cell.add_product(cell.h, 0, values)
    coupled = cell.attributes["input_forget"]
    if cell.peepholes is None and not coupled:
        # All three at once: their parts lie side by side, and nothing comes between.
        yield cell.activate(0, values[:, : 3 * i.shape[-1]])
    else:
        yield from cell.peep(0, cell.c, i)
        yield cell.activate(0, i)
        if coupled:
            yield partial(xp.subtract, 1, i, out=f)
        else:
            yield from cell.peep(2, cell.c, f)
            yield cell.activate(0, f)
    yield cell.activate(1, g)
    yield partial(xp.multiply, f, cell.c, out=f)
    yield partial(xp.multiply, i, g, out=i)
    yield partial(xp.add, f, i, out=cell.next_c)
    if cell.peepholes is not None or coupled:
        yield from cell.peep(1, cell.next_c, o)
        yield cell.activate(0, o)
    # The candidate is not needed any more, and its place serves.
    yield partial(xp.copyto, g, cell.next_c)
    # ONNX clips "the input of activations"; ONNX Runtime, the judge here, only the gates.
    yield cell.activate(2, g, clipped=False)
    yield partial(xp.multiply, o, g, out=cell.next_h)


def _step_gru(cell: _Cell, values: Array) -> Iterator[Step]:
    """Yield the steps of `cell` on `values`: h ← (1 - z) · n + z · h; r acts on h, or R · h."""
    xp, (z, r, n) = cell.xp, cell.gates(values)
    both = values[:, : 2 * z.shape[-1]]
    t = _take_like(cell.temporary, z.shape)
    if cell.attributes["linear_before_reset"]:
        product = _take_like(cell.product, values.shape)
        *_, of_n = cell.gates(product)
        yield cell.multiply(cell.h, cell.r, product)
        yield partial(xp.add, both, product[:, : both.shape[-1]], out=both)
        yield cell.activate(0, both)
        if cell.r_bias is not None:
            yield partial(xp.add, of_n, cell.r_bias[both.shape[-1] :], out=of_n)
        yield partial(xp.multiply, of_n, r, out=of_n)
        yield partial(xp.add, n, of_n, out=n)
    else:
        yield from cell.add_product(cell.h, 0, both)
        yield cell.activate(0, both)
        yield partial(xp.multiply, r, cell.h, out=t)
        yield from cell.add_product(t, both.shape[-1], n)
    yield cell.activate(1, n)
    # As n + z · (h - n): one product less than as it is written.
    yield partial(xp.subtract, cell.h, n, out=t)
    yield partial(xp.multiply, t, z, out=t)
    yield partial(xp.add, n, t, out=cell.next_h)


def _step_rnn(cell: _Cell, values: Array) -> Iterator[Step]:
    """Yield the steps of `cell`: h ← f(x · Wᵀ + h · Rᵀ + b); `values` has x · Wᵀ."""
    yield from cell.add_product(cell.h, 0, values)
    yield cell.activate(0, values)
    yield partial(cell.xp.copyto, cell.next_h, values)


def _make_kernel(
    take_step: Callable[[_Cell, Array], Iterator[Step]], usual: Sequence[str]
) -> Callable[..., Step]:
    def bind(
        xp: ArrayModule, inputs: Arrays, outputs: Arrays, attributes: Attributes, scratch: Arrays
    ) -> Step:
        wide = widen(xp, inputs, (), scratch)
        steps: list[Step] = []
        y, lengths = get_optional(outputs, 0), get_optional(inputs, LENGTHS)
        if lengths is not None:
            mask = wide.scratch[-1]
            # For each step, which samples are that long: the others keep their states, and 0 as
            # outputs.
            times = xp.arange(len(mask), dtype=np.int64)[:, None, None]
            steps.append(partial(xp.less, times, lengths[:, None], out=mask))
            if y is not None:
                steps.append(partial(xp.copyto, y, 0))
        functions = list_activations(attributes, usual)
        for d in range(count_directions(attributes)):
            of_d = functions[d * len(usual) : (d + 1) * len(usual)]
            cell = _make_cell(xp, wide.inputs, d, of_d, attributes, wide.scratch)
            steps += _project(cell, wide.inputs, d, wide.scratch)
            steps += _walk(take_step, cell, d, outputs, wide.scratch)
        return wide.around(steps)

    return bind


def _make_cell(
    xp: ArrayModule,
    inputs: Arrays,
    d: int,
    functions: Sequence[Activation],
    attributes: Attributes,
    scratch: Arrays,
) -> _Cell:
    bias, peepholes = get_optional(inputs, 3), get_optional(inputs, 7)
    _, _, product, temporary, h, c, *masked = scratch
    return _Cell(
        xp,
        inputs[2][d],
        None if bias is None else bias[d, bias.shape[1] // 2 :],
        None if peepholes is None else peepholes[d],
        functions,
        attributes,
        product,
        temporary,
        h,
        c,
        masked[0] if masked else h,
        masked[1] if masked else c,
    )


def _project(cell: _Cell, inputs: Arrays, d: int, scratch: Arrays) -> Iterator[Step]:
    # Product with W, biases, state, for all inputs.
    xp, x, w, bias = cell.xp, inputs[0], inputs[1], get_optional(inputs, 3)
    gates, both = scratch[:2]
    # One product for all steps, since inputs, unlike states, are there beforehand.
    yield partial(xp.matmul, x.reshape(gates.shape[0], x.shape[-1]), w[d].T, out=gates)
    if bias is not None and cell.r_bias is not None:
        yield partial(xp.copyto, both, bias[d, : both.size])
        # A reset that acts on the product acts on its bias too.
        late = cell.h.shape[-1] if cell.attributes.get("linear_before_reset") else 0
        early = both[: both.size - late]
        yield partial(xp.add, early, cell.r_bias[: early.size], out=early)
        yield partial(xp.add, gates, both, out=gates)
    batch_first = cell.attributes["layout"]
    for index, state in ((5, cell.h), (6, cell.c)):
        given = get_optional(inputs, index)
        if given is not None:
            given = given[:, d] if batch_first else given[d]
        yield partial(xp.copyto, state, 0 if given is None else given)


def _walk(
    take_step: Callable[[_Cell, Array], Iterator[Step]],
    cell: _Cell,
    d: int,
    outputs: Arrays,
    scratch: Arrays,
) -> Iterator[Step]:
    xp, batch_first = cell.xp, cell.attributes["layout"]
    batch, masked = cell.h.shape[0], scratch[6:]
    length = scratch[0].shape[0] // batch if batch else 0
    has_c = "input_forget" in cell.attributes
    backward = d == 1 or cell.attributes["direction"] == "reverse"
    for t in reversed(range(length)) if backward else range(length):
        rows = slice(t, None, length) if batch_first else slice(t * batch, (t + 1) * batch)
        yield from take_step(cell, scratch[0][rows])
        where = {"where": masked[2][t]} if masked else {}
        if outputs and outputs[0] is not None:
            y = outputs[0][:, t, d] if batch_first else outputs[0][t, d]
            yield partial(xp.copyto, y, cell.next_h, casting="same_kind", **where)
        if masked:
            yield partial(xp.copyto, cell.h, cell.next_h, **where)
            if has_c:
                yield partial(xp.copyto, cell.c, cell.next_c, **where)
    for output, state in zip(outputs[1:], (cell.h, cell.c), strict=False):
        if output is not None:
            last = output[:, d] if batch_first else output[d]
            yield partial(xp.copyto, last, state, casting="same_kind")


kernel("LSTM", scratch=_declare_scratch, binds=True)(_make_kernel(_step_lstm, LSTM_FUNCTIONS))
kernel("GRU", scratch=_declare_scratch, binds=True)(_make_kernel(_step_gru, GRU_FUNCTIONS))
kernel("RNN", scratch=_declare_scratch, binds=True)(_make_kernel(_step_rnn, RNN_FUNCTIONS))
