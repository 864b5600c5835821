"""Optional packages that are missing, or installed and broken: the difference is told."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import numpy as np
import plait as pl
import pytest
from plait.devices.compiled.device import CompiledDevice
from plait.devices.cuda.driver import load_cupy
from plait.devices.opencl.driver import load_pyopencl
from plait.devices.ort.device import OrtDevice
from plait.devices.ort.runtime import load_runtime
from plait.graph.formats.onnx import writer
from plait.graph.values.dtypes import get_largest
from plait.scheduler.ray.engine import load_ray
from plait.version import DISTRIBUTION


class Broken:
    """Finds a package, and raises when that is imported."""

    def __init__(self, name: str, error: Exception) -> None:
        self._name, self._error = name, error

    def find_spec(self, name: str, *_: object) -> ModuleSpec | None:
        return ModuleSpec(name, self) if name == self._name else None  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        raise self._error


def compute_with_numba() -> None:
    b = pl.GraphBuilder("conv")
    w = np.ones((8, 8, 3, 3), "float32")
    b.output("y", b.op("Conv", b.input("x", "float32", (1, 8, 8, 8)), w))
    pl.run(b.build(), {"x": np.ones((1, 8, 8, 8), "float32")}, devices=[CompiledDevice()])


def ask_ort() -> None:
    load_runtime.cache_clear()
    try:
        _ = OrtDevice().capabilities
    finally:
        load_runtime.cache_clear()


USERS: dict[str, Callable[[], Any]] = {
    "onnx": writer._import_onnx,
    "onnxruntime": ask_ort,
    "ml_dtypes": lambda: get_largest(np.dtype("float32")),
    "numba": compute_with_numba,
    "cupy": load_cupy,
    "pyopencl": load_pyopencl,
    "ray": load_ray,
}
ERRORS = {
    "a library is missing": (ImportError("libfoo.so.1: cannot open"), "libfoo.so.1: cannot open"),
    "another package is missing": (
        ModuleNotFoundError("No module named 'bar'", name="bar"),
        "No module named 'bar'",
    ),
    "a library is damaged": (
        OSError("libfoo.so.1: bad header"),
        "OSError: libfoo.so.1: bad header",
    ),
    "a library is too old": (AttributeError("no 'uint'\nmore"), "AttributeError: no 'uint'"),
}


@pytest.mark.parametrize("package", USERS)
@pytest.mark.parametrize("how", ERRORS)
def test_a_broken_package_is_not_told_as_missing(
    package: str, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    error, reason = ERRORS[how]
    if package in ("numba", "onnxruntime"):
        pytest.importorskip(package)
    for name in [name for name in sys.modules if name.split(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [Broken(package, error), *sys.meta_path])
    with pytest.raises(pl.PlaitError) as raised:
        USERS[package]()
    expected = f"the package '{package}' is installed, but does not load: {reason}"
    assert raised.value.what == expected
    assert raised.value.fix is not None
    assert "pip install" in raised.value.fix
    assert raised.value.__cause__ is error


@pytest.mark.parametrize("package", USERS)
def test_a_missing_package_is_named_with_what_installs_it(
    package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if package == "numba":
        pytest.skip("looked for when the device is made: see test_compiled_device")
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(pl.PlaitError) as raised:
        USERS[package]()
    assert "does not load" not in raised.value.what
    assert raised.value.fix is not None
    assert f"pip install '{DISTRIBUTION}[" in raised.value.fix
