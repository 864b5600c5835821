from __future__ import annotations

from typing import Any

import plait as pl
import pytest
from plait.dialects.cvm.gas import count_gas, count_operations, sum_storage
from plait.graph.core.ir import Graph
from plait.graph.values.errors import LogicError, ShapeError

Shape = tuple[int | str, ...]


def built(op: str, *inputs: Shape, outputs: int = 1, **attributes: Any) -> Graph:
    b = pl.GraphBuilder("cost")
    names = [b.input(f"x{i}", "int32", shape) for i, shape in enumerate(inputs)]
    made = b.op(op, *names, outputs=outputs, **attributes)
    for name in [made] if outputs == 1 else made:
        b.output(name, name)
    return b.build()


@pytest.mark.parametrize(
    ("op", "inputs", "attributes", "moved", "computed"),
    [
        ("relu", [(2, 3)], {}, 12, 6),
        ("broadcast_add", [(2, 3), (3,)], {}, 15, 6),
        ("sum", [(4, 6)], {"axis": (1,)}, 28, 4 * 6),
        ("max", [(4, 6)], {"axis": (1,)}, 28, 4),
        ("dense", [(2, 8), (3, 8)], {"units": 3, "use_bias": False}, 46, 6 * 24),
        ("dense", [(2, 8), (3, 8), (3,)], {"units": 3}, 49, 6 * 25),
        (
            "conv2d",
            [(1, 2, 5, 5), (4, 2, 3, 3), (4,)],
            {"channels": 4, "kernel_size": (3, 3)},
            50 + 72 + 4 + 36,
            36 * (18 * 3 + 1),
        ),
        ("max_pool2d", [(1, 1, 4, 4)], {"pool_size": (2, 3)}, 22, 6 * 6),
        ("non_max_suppression", [(2, 5, 6), (2,)], {}, 122, 60 * 2 * 20),
    ],
)
def test_operations_are_five_for_each_element_and_the_base_for_each_result(
    op: str, inputs: list[Shape], attributes: dict[str, Any], moved: int, computed: int
) -> None:
    assert count_operations(built(f"cvm.{op}", *inputs, **attributes)) == 5 * moved + computed


def test_all_outputs_are_moved_but_only_the_first_is_computed() -> None:
    graph = built("cvm.get_valid_counts", (2, 5, 6), outputs=2)
    assert count_operations(graph) == 5 * (60 + 2 + 60) + 2


def test_a_copy_under_another_name_costs_nothing() -> None:
    b = pl.GraphBuilder()
    x = b.input("x", "int32", (4,))
    y = b.op("cvm.relu", x)
    b.output("y", y)
    b.output("again", y)
    assert count_operations(b.build()) == 5 * 8 + 4


def test_other_operators_have_no_cost_in_operations() -> None:
    with pytest.raises(LogicError, match="Neg has no cost"):
        count_operations(built("Neg", (2,)))


def test_only_fixed_shapes_can_be_counted() -> None:
    with pytest.raises(ShapeError, match="no fixed shape"):
        count_operations(built("cvm.relu", ("n",)))


def test_an_element_of_too_much_work_is_refused() -> None:
    graph = built("cvm.dense", (1, 2**24), (1, 2**24), units=1, use_bias=False)
    assert count_operations(graph) == 5 * (2**25 + 1) + 3 * 2**24
    wide: tuple[Shape, Shape] = (1, 2**7, 2**12, 2**11), (1, 2**7, 2**12, 2**11)
    graph = built("cvm.conv2d", *wide, channels=1, kernel_size=(2**12, 2**11), use_bias=False)
    with pytest.raises(LogicError, match="operations for an element") as caught:
        count_operations(graph)
    assert caught.value.code == 1


def test_a_graph_of_too_many_operations_is_refused() -> None:
    b = pl.GraphBuilder()
    x, w = b.input("x", "int32", (2**10, 2**20)), b.input("w", "int32", (2**10, 2**20))
    b.output("y", b.op("cvm.dense", x, w, units=2**10, use_bias=False))
    with pytest.raises(LogicError, match="operations are over the limit of 1099511627776"):
        count_operations(b.build())


def test_storage_is_counted_in_whole_words() -> None:
    assert sum_storage([1, 4, 5]) == 16
    assert sum_storage([2**31, 2**31]) == 2**32
    with pytest.raises(LogicError, match="storage"):
        sum_storage([2**32, 1])


def test_gas_is_a_twenty_thousandth_and_arrays_have_a_floor() -> None:
    assert count_gas(19_999) == 0
    assert count_gas(40_000_000_000) == 2_000_000
    assert count_gas(20_000, array=True) == 1_000_000
    assert count_gas(40_000_000_000, array=True) == 2_000_000
