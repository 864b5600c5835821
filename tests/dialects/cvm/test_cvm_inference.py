"""cvm's own calls: what goes in, what comes out, and which kind of error everything else is."""

from __future__ import annotations

import json
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest
from cvm_models import (
    changed,
    convolution_graph,
    dense_graph,
    dense_params,
    dense_symbol,
    handmade,
    no_params,
)
from plait import cvm
from plait.dialects.cvm.files.params import write_params
from plait.dialects.cvm.gas import count_operations
from plait.graph.values.errors import PlaitError

LOGIC, RUNTIME = 1, 2
FORMAL = "formal"


Load = Callable[..., cvm.Model]


@pytest.fixture
def load() -> Iterator[Load]:
    """Load models given as symbols in Python's own lists and dicts; close them at the end."""
    with ExitStack() as opened:

        def loaded(symbol: dict[str, Any], params: bytes | None = None) -> cvm.Model:
            text = json.dumps(symbol).encode()
            return opened.enter_context(cvm.load_model(text, params or no_params(), FORMAL))

        yield loaded


def through(
    shapes: list[list[int]], precision: int = 8, postprocess: str = "", op: str = "negative"
) -> dict[str, Any]:
    """Return a symbol that yields the data through an operator, reshaped to each of some shapes."""
    size = int(np.prod(shapes[0]))
    nodes: list[tuple[str, str | None, list[list[int]]]] = [("data", None, []), ("y", op, [[0, 0]])]
    nodes += [(f"out{i}", "reshape", [[1, 0]]) for i in range(len(shapes))]
    entries = [([size], precision), ([size], -1), *((shape, -1) for shape in shapes)]
    attributes = {i: {"shape": str(tuple(shape))} for i, shape in enumerate(shapes, 2)}
    heads = [[i, 0] for i in range(2, len(nodes))]
    return handmade(nodes, entries, heads, attributes, postprocess=postprocess)


def code_of(call: Any, *arguments: Any) -> int:
    with pytest.raises(PlaitError) as caught:
        call(*arguments)
    return cvm.status(caught.value)


def test_a_convolutional_network_yields_what_its_definition_yields_on_every_device() -> None:
    symbol, params = cvm.dump_cvm(convolution_graph())
    image = np.random.default_rng(3).integers(-127, 128, 192).astype(np.int8).tobytes()
    outputs = {}
    for device in (FORMAL, "cpu"):
        with cvm.load_model(symbol, params, device) as model:
            outputs[device] = [model.inference(image), model.inference(bytes(192))]
    assert outputs["cpu"] == outputs[FORMAL]
    assert len(set(outputs["cpu"])) == 2
    assert max(np.frombuffer(outputs["cpu"][0], np.int8)) > 0


def test_a_dense_layer_by_hand(load: Load) -> None:
    data = np.array([[1, 2, 3, 4], [-1, 0, 0, 1]], np.int8)
    # w is -6 … 5 in rows of 4; relu, then division by 4 with halves upwards.
    products = [[-40, 0, 40], [3, 3, 3]]
    assert (data.astype(int) @ np.arange(-6, 6).reshape(3, 4).T).tolist() == products
    answer = load(dense_symbol(), dense_params()).inference(data.tobytes())
    assert np.frombuffer(answer, np.int8).tolist() == [0, 0, 10, 1, 1, 1]


def test_a_model_tells_its_sizes(load: Load) -> None:
    model = load(dense_symbol(), dense_params())
    assert (model.input_length, model.input_type_size) == (8, 1)
    assert (model.output_length, model.output_type_size) == (6, 1)
    assert (model.version, model.postprocess_method) == ("cvm_1.0.0", "")
    assert model.storage_size == 4 * (8 + 12 + 6 + 6 + 6) - 4 * 6
    moved = 8 + 12 + 6 + 6 + 6
    assert model.operations == 5 * moved + 6 * (4 * 3) + 6 + 6
    assert model.gas == 0


@pytest.mark.parametrize(("precision", "size"), [(1, 1), (8, 1), (9, 4), (32, 4)])
def test_values_take_a_byte_up_to_a_precision_of_8(load: Load, precision: int, size: int) -> None:
    model = load(through([[3]], precision))
    assert (model.input_type_size, model.output_type_size) == (size, size)
    assert model.input_length == model.output_length == 3 * size
    values = np.array([0, 1, -1], f"<i{size}")
    bound = 2 ** (precision - 1) - 1
    wanted = [max(-bound, min(bound, -int(value))) for value in values]
    assert np.frombuffer(model.inference(values.tobytes()), values.dtype).tolist() == wanted


def test_data_beyond_its_precision_is_clipped(load: Load) -> None:
    narrow = load(through([[4]], 5))
    data = np.array([-128, -16, 15, 127], np.int8)
    assert np.frombuffer(narrow.inference(data.tobytes()), np.int8).tolist() == [15, 15, -15, -15]
    wide = load(through([[2]], 32))
    extremes = np.array([-(2**31), 2**31 - 1], "<i4")
    answer = np.frombuffer(wide.inference(extremes.tobytes()), "<i4")
    assert answer.tolist() == [2**31 - 1, -(2**31) + 1]


def test_the_data_need_not_be_the_first_variable(load: Load) -> None:
    symbol = handmade(
        [("w", None, []), ("data", None, []), ("y", "broadcast_sub", [[1, 0], [0, 0]])],
        [([3], 8), ([2, 3], 6), ([2, 3], -1)],
        [[2, 0]],
    )
    model = load(symbol, write_params({"w": np.array([10, 20, 30], np.int8)}))
    assert model.input_length == 6
    data = np.arange(6, dtype=np.int8)
    answer = np.frombuffer(model.inference(data.tobytes()), "<i4")
    assert answer.tolist() == [-10, -19, -28, -7, -16, -25]


def test_positions_are_found_row_by_row_and_the_first_largest_wins(load: Load) -> None:
    model = load(through([[3, 4]], 16, "argmax"))
    # Cast to int8, as cvm compares them, 256 would be 0 and 300 would be 44.
    data = -np.array([[0, 256, 1, 2], [7, 7, 7, 7], [-300, -5, -1, -1]], "<i4")
    answer = model.inference(data.tobytes())
    assert np.frombuffer(answer, "<i4").tolist() == [1, 0, 2]
    assert model.output_length == len(answer) == 12


def test_positions_of_several_outputs_follow_each_other(load: Load) -> None:
    model = load(through([[2, 3], [3, 2]], 8, "argmax"))
    data = -np.array([1, 2, 3, 6, 5, 4], np.int8)
    assert np.frombuffer(model.inference(data.tobytes()), "<i4").tolist() == [2, 0, 1, 1, 0]
    assert model.output_length == 20


@pytest.mark.parametrize(("postprocess", "dtype"), [("detection", "<i4"), ("", "<i1")])
def test_several_outputs_stand_side_by_side(load: Load, postprocess: str, dtype: str) -> None:
    symbol = through([[2, 3], [2, 1, 3]], 8, postprocess)
    symbol["attrs"]["shape"][1][3] = [1, 2, 3]
    symbol["attrs"]["op_attrs"][1][3] = '{"shape": "(1, 2, 3)"}'
    model = load(symbol)
    data = -np.arange(6, dtype=np.int8)
    answer = np.frombuffer(model.inference(data.tobytes()), dtype).tolist()
    assert answer == [0, 1, 2, 0, 1, 2, 3, 4, 5, 3, 4, 5]
    assert model.output_length == 12 * model.output_type_size


def test_one_detection_is_yielded_as_it_is_in_four_bytes(load: Load) -> None:
    model = load(through([[2, 3]], 8, "detection"))
    answer = model.inference(np.arange(6, dtype=np.int8).tobytes())
    assert np.frombuffer(answer, "<i4").tolist() == [0, -1, -2, -3, -4, -5]


@pytest.mark.parametrize("postprocess", ["detection", ""])
def test_outputs_of_different_numbers_of_rows_are_refused(postprocess: str) -> None:
    symbol = json.dumps(through([[2, 3], [3, 2]], 8, postprocess)).encode()
    assert code_of(cvm.load_model, symbol, no_params(), FORMAL) == LOGIC


def test_what_is_yielded_twice_or_not_computed_at_all_comes_out_too(load: Load) -> None:
    symbol = handmade(
        [("data", None, []), ("y", "relu", [[0, 0]])], [([1, 2], 8)] * 2, [[1, 0], [0, 0], [1, 0]]
    )
    answer = load(symbol).inference(np.array([-128, 5], np.int8).tobytes())
    assert np.frombuffer(answer, np.int8).tolist() == [0, 5, -127, 5, 0, 5]


def test_an_input_of_another_length_is_the_callers_mistake(load: Load) -> None:
    model = load(dense_symbol(), dense_params())
    assert code_of(model.inference, bytes(7)) == LOGIC
    assert code_of(model.inference, b"") == LOGIC


def test_no_input_at_all_or_a_closed_model_is_a_runtime_failure(load: Load) -> None:
    model = load(dense_symbol(), dense_params())
    assert code_of(model.inference, None) == RUNTIME
    model.close()
    model.close()
    assert code_of(model.inference, bytes(8)) == RUNTIME


def test_an_unknown_device_is_a_runtime_failure() -> None:
    symbol, params = cvm.dump_cvm(dense_graph())
    assert code_of(cvm.load_model, symbol, params, "tpu") == RUNTIME


def test_empty_parameters_are_a_mistake_of_the_model() -> None:
    symbol, _ = cvm.dump_cvm(dense_graph())
    assert code_of(cvm.load_model, symbol, b"", FORMAL) == LOGIC


def test_success_has_the_number_0_and_foreign_errors_are_free_of_charge() -> None:
    assert cvm.status(None) == 0
    assert cvm.status(MemoryError()) == RUNTIME


def test_operations_and_gas_are_told_from_the_symbol_alone() -> None:
    """Rows C20 and C30 to C32: cvm's own call counts operations, a ledger divides them."""
    symbol, params = cvm.dump_cvm(convolution_graph())
    with cvm.load_model(symbol, params, FORMAL) as model:
        assert cvm.gas_from_graph_file(symbol) == model.gas
        assert cvm.operations_from_graph_file(symbol) == model.operations
        assert model.operations == count_operations(convolution_graph())
        assert model.gas == model.operations // 20_000 > 0


def test_gas_of_a_giant_is_told_without_allocating_it() -> None:
    symbol = changed(
        through([[2**9, 2**20]]),
        ("attrs.shape.1", [[2**9, 2**20]] * 3),
        ("attrs.storage_id.1", [0, 1, 1]),
    )
    tracemalloc.start()
    try:
        gas = cvm.gas_from_graph_file(symbol)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()
    assert gas == (5 * 3 + 2) * 2**29 // 20_000


def test_a_run_on_an_array_of_the_ledger_has_a_least_charge() -> None:
    symbol, _ = cvm.dump_cvm(dense_graph())
    assert cvm.gas_from_graph_file(symbol) == 0
    assert cvm.gas_from_graph_file(symbol, array=True) == 1_000_000


def test_the_calls_are_imported_when_first_asked_for() -> None:
    code = "import plait, sys; print('plait.dialects.cvm' in sys.modules, plait.cvm.status(None))"
    answer = subprocess.run(
        [sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True
    )
    assert answer.stdout.split() == ["False", "0"]
