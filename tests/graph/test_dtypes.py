from __future__ import annotations

import subprocess
import sys

import numpy as np
import plait as pl
import pytest
from plait.graph.core.operator import find_operator
from plait.graph.values.dtypes import EXTENSIONS, dtype_of, get_largest, is_extension, kind_of
from plait.graph.values.errors import OperatorError, ShapeError
from plait.graph.values.extras import get_install_command


@pytest.mark.parametrize("name", EXTENSIONS)
def test_small_floats_are_known_by_name(name: str) -> None:
    spec = pl.TensorSpec(name, (2, 3))

    assert str(spec) == f"{name}[2, 3]"
    assert spec.nbytes == 6 * (2 if name == "bfloat16" else 1)
    assert is_extension(spec.dtype)


@pytest.mark.parametrize("name", ["bool", "int8", "uint64", "float16", "complex64"])
def test_other_dtypes_are_numpys(name: str) -> None:
    assert dtype_of(name) == np.dtype(name)
    assert kind_of(np.dtype(name)) == np.dtype(name).kind
    assert not is_extension(np.dtype(name))


def test_bfloat16_is_a_float_and_floats_of_8_bits_are_of_their_own_kind() -> None:
    assert [kind_of(dtype_of(name)) for name in EXTENSIONS] == ["f", "e", "e", "e", "e"]


def test_the_largest_number_is_that_of_the_format() -> None:
    assert [get_largest(dtype_of(name)) for name in EXTENSIONS[1:]] == [448, 240, 57344, 57344]


def test_an_attribute_names_a_small_float() -> None:
    assert find_operator("Cast").complete({"to": "bfloat16"}, "here")["to"] == "bfloat16"
    with pytest.raises(OperatorError):
        find_operator("Cast").complete({"to": "bfloat17"}, "here")


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    with pytest.raises(ShapeError, match="takes the package 'ml_dtypes'") as caught:
        pl.TensorSpec("bfloat16", ())
    assert caught.value.fix == get_install_command("ml-dtypes")


def test_the_package_is_not_imported_before_it_is_needed() -> None:
    code = "import sys, plait; print('ml_dtypes' in sys.modules)"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "False"
