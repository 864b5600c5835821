"""The names that `import plait` offers: all of them there, all documented, nothing else."""

from __future__ import annotations

import doctest
import importlib
import inspect
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

import plait as pl
import pytest

ROOT = Path(__file__).parents[1]
PUBLIC = {name: getattr(pl, name) for name in pl.__all__}
CALLABLES = {name: value for name, value in PUBLIC.items() if callable(value)}
OPTIONAL = {"onnx", "cupy", "click", "rich", "onnxruntime"}


def files_of_modules() -> dict[str, Path]:
    """Return the file of each module of the package, by its name."""
    files = [file for file in ROOT.glob("*.py") if file.name != "setup.py"]
    for layer in ("graph", "devices", "scheduler", "dialects"):
        files += (ROOT / layer).rglob("*.py")
    parts = {file: ("plait", *file.relative_to(ROOT).with_suffix("").parts) for file in files}
    return {".".join(one for one in parts[file] if one != "__init__"): file for file in files}


FILES = files_of_modules()
MODULES = sorted(FILES.keys() - {"plait.__main__"})
WITH_EXAMPLES = [name for name in MODULES if ">>>" in FILES[name].read_text()]


def load(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name not in OPTIONAL:
            raise
        pytest.skip(f"{error.name} is not installed")


def test_the_names_in_the_documents_are_public() -> None:
    promised = {"Graph", "GraphBuilder", "TensorSpec", "Plan", "Session", "Item", "Profile"}
    promised |= {"load", "save", "plan", "run", "operator", "check", "devices"}
    promised |= {"load_plan", "diff", "simulate", "Costs"}
    promised |= {"PlaitError", "GraphError", "ShapeError", "OperatorError", "PlanError"}
    promised |= {"UnsupportedOpError", "DoesNotFitError", "DeviceError", "KernelError"}
    assert promised <= set(pl.__all__)


def test_public_names_are_listed_sorted() -> None:
    assert list(pl.__all__) == sorted(pl.__all__)


def test_every_error_that_callers_may_meet_is_public_or_has_a_base_that_is() -> None:
    """PlaitError itself is too general to be that base."""
    found = {
        value
        for name in MODULES
        if not name.startswith("plait.cli")
        for value in vars(load(name)).values()
        if isinstance(value, type) and issubclass(value, pl.PlaitError)
    }
    public = {value for value in PUBLIC.values() if value is not pl.PlaitError}
    homeless = {kind.__name__ for kind in found if public.isdisjoint(kind.__mro__)}
    assert homeless == {"PlaitError"}


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = pl.nothing


def test_the_version_is_that_of_the_package() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert declared["project"]["version"] == pl.__version__


def test_importing_plait_imports_no_event_loop() -> None:
    """Workers start with `import plait`; they need neither trio nor the scheduler."""
    code = "import plait, sys; print('trio' in sys.modules, 'plait.scheduler' in sys.modules)"
    answer = subprocess.run(
        [sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True
    )
    assert answer.stdout.split() == ["False", "False"]


def test_everything_public_is_documented() -> None:
    assert [name for name, value in CALLABLES.items() if not inspect.getdoc(value)] == []


def test_every_public_method_is_documented() -> None:
    methods: dict[str, Any] = {
        f"{name}.{key}": value
        for name, kind in CALLABLES.items()
        if inspect.isclass(kind)
        for key, value in vars(kind).items()
        if not key.startswith("_") and (inspect.isroutine(value) or isinstance(value, property))
    }
    assert [name for name, method in methods.items() if not inspect.getdoc(method)] == []


def bare_parameters(value: Any) -> list[str]:
    """Return the parameters of a function, or of what makes a class's objects, without a type."""
    if inspect.isclass(value) and value.__init__ is object.__init__:
        return []
    function = value.__init__ if inspect.isclass(value) else value
    parameters = list(inspect.signature(function).parameters.values())
    own = parameters[1:] if inspect.isclass(value) else parameters
    return [one.name for one in own if one.annotation is one.empty]


def test_every_public_signature_is_typed() -> None:
    bare = {name: bare_parameters(value) for name, value in CALLABLES.items()}
    assert {name: parameters for name, parameters in bare.items() if parameters} == {}


@pytest.mark.parametrize("name", WITH_EXAMPLES)
def test_the_examples_in_docstrings_work(name: str) -> None:
    result = doctest.testmod(load(name))
    assert result.failed == 0


def test_every_module_says_what_it_decides() -> None:
    assert [name for name in MODULES if not load(name).__doc__] == []
