from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from plait.graph.values.errors import ShapeError
from plait.graph.values.tensor import TensorSpec, spec_of

NUMERIC = (
    npst.boolean_dtypes()
    | npst.integer_dtypes()
    | npst.unsigned_integer_dtypes()
    | npst.floating_dtypes(sizes=(16, 32, 64))
    | npst.complex_number_dtypes(sizes=(64, 128))
)


@given(npst.arrays(NUMERIC, npst.array_shapes(min_dims=0, min_side=0, max_side=4)))
def test_a_spec_counts_elements_and_bytes_as_numpy_does(array: np.ndarray[Any, Any]) -> None:
    spec = spec_of(array)
    assert (spec.static_shape, spec.size, spec.nbytes, spec.rank) == (
        array.shape,
        array.size,
        array.nbytes,
        array.ndim,
    )


@given(NUMERIC, st.lists(st.integers(0, 9) | st.sampled_from(["batch", "(h+1)//2"])))
def test_equal_dtype_and_shape_make_equal_specs_with_equal_hashes(
    dtype: np.dtype[Any], shape: list[int | str]
) -> None:
    one, other = TensorSpec(dtype, shape), TensorSpec(dtype.name, tuple(shape))
    assert one == other
    assert hash(one) == hash(other)


def test_specs_of_different_shape_differ() -> None:
    assert TensorSpec("float32", (2, 3)) != TensorSpec("float32", (3, 2))


def test_specs_of_different_dtype_differ() -> None:
    assert TensorSpec("float32", (2,)) != TensorSpec("int32", (2,))


def test_a_spec_is_frozen() -> None:
    spec = TensorSpec("float32", (2,))
    with pytest.raises(AttributeError):
        spec.shape = (3,)  # type: ignore[misc]


def test_foreign_byte_order_becomes_native() -> None:
    assert TensorSpec(">f4", (2,)) == TensorSpec("float32", (2,))


def test_numpy_integers_become_plain_ones() -> None:
    shape = TensorSpec("float32", (np.int64(2), np.uint8(3))).shape  # type: ignore[arg-type]
    assert shape == (2, 3)
    assert all(type(dim) is int for dim in shape)


def test_a_scalar_has_rank_zero_and_one_element() -> None:
    spec = TensorSpec("float64", ())
    assert (spec.rank, spec.size, spec.nbytes) == (0, 1, 8)


def test_a_spec_without_shape_has_no_rank() -> None:
    spec = TensorSpec("float32")
    assert spec.rank is None
    assert not spec.is_static


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        (TensorSpec("float32", (1, "w", 3)), "float32[1, w, 3]"),
        (TensorSpec("int8", ()), "int8[]"),
        (TensorSpec("bool", None), "bool[*]"),
    ],
)
def test_a_spec_prints_its_dtype_and_dimensions(spec: TensorSpec, text: str) -> None:
    assert str(spec) == text


@pytest.mark.parametrize("shape", [("batch", 3), None])
def test_a_symbolic_spec_has_no_fixed_shape(shape: tuple[int | str, ...] | None) -> None:
    spec = TensorSpec("float32", shape)
    with pytest.raises(ShapeError) as caught:
        _ = spec.nbytes
    assert str(caught.value) == (
        f"{spec} has no fixed shape yet\n"
        "  fix: plan for given shapes: plan(graph, shapes={'input': (1, 3, 224, 224)})"
    )


@pytest.mark.parametrize("dim", [-1, 1.0, True, None, "", 2**63])
def test_a_dimension_is_a_length_or_a_name(dim: object) -> None:
    with pytest.raises(ShapeError) as caught:
        TensorSpec("float32", (dim,))  # type: ignore[arg-type]
    assert str(caught.value) == (
        f"{dim!r} is not a dimension\n"
        "  fix: use a length ≥ 0 that an int64 holds, or a name: 'batch'"
    )


@pytest.mark.parametrize("dtype", ["U3", "S3", "datetime64[s]", "timedelta64[s]", "f4,f4"])
def test_only_numbers_booleans_and_text_are_tensors(dtype: str) -> None:
    with pytest.raises(ShapeError) as caught:
        TensorSpec(dtype, (2,))
    assert str(caught.value) == (
        f"dtype {np.dtype(dtype).name!r} cannot live in an arena\n"
        "  fix: use a boolean or numeric dtype, 'str' for text, or 'object'"
    )


@pytest.mark.parametrize("dtype", [str, "str", np.dtypes.StringDType()])
def test_text_is_objects(dtype: Any) -> None:
    spec = TensorSpec(dtype, ("n", 2))
    assert spec.dtype == object
    assert str(spec) == "str[n, 2]"
    assert TensorSpec(spec.dtype, None) == TensorSpec("str", None)


@pytest.mark.parametrize("shape", ["batch", 3])
def test_a_shape_is_a_sequence_of_dimensions(shape: Any) -> None:
    with pytest.raises(ShapeError) as caught:
        TensorSpec("float32", shape)
    assert f"write a tuple: ({shape!r},)" in str(caught.value)


def test_a_spec_has_no_more_dimensions_than_an_array() -> None:
    assert TensorSpec("float32", (1,) * 64).rank == np.ones((1,) * 64).ndim
    with pytest.raises(ShapeError, match="cannot have 65 dimensions"):
        TensorSpec("float32", (1,) * 65)


def test_an_unknown_dtype_is_refused() -> None:
    with pytest.raises(ShapeError) as caught:
        TensorSpec("float31", (2,))
    assert str(caught.value) == ("'float31' is not a dtype\n  fix: use a numpy dtype: 'float32'")


def test_symbols_are_plain_text_whatever_they_were() -> None:
    shape: Any = (np.str_("n"), np.int64(3))
    spec = TensorSpec("float32", shape)
    assert [type(dim) for dim in spec.shape or ()] == [str, int]
    assert not spec.is_static
    with pytest.raises(ShapeError, match="no fixed shape yet"):
        spec.static_shape  # noqa: B018
