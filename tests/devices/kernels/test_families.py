"""Families of kernels: listed by operator, imported when one is wanted."""

from __future__ import annotations

import subprocess
import sys

from plait.devices.kernels.families import FAMILIES, FAMILY_OF
from plait.devices.kernels.registry import ANY

_IMPORTED = "[name[22:] for name in sys.modules if name.startswith('plait.devices.kernels.')]"


def _answer(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def test_each_operator_is_listed_with_the_family_that_registers_it() -> None:
    """Each family is imported in an order of its own, so none relies on another to be there."""
    code = (
        "import sys, importlib; from plait.devices.kernels import registry\n"
        "from plait.devices.kernels.families import FAMILIES\n"
        "places, kernel = {}, registry.kernel\n"
        "def noted(op, **options):\n"
        "    frame = sys._getframe(1)\n"
        "    while frame.f_code.co_name != '<module>':\n"
        "        frame = frame.f_back\n"
        "    places.setdefault(frame.f_globals['__name__'][22:], set()).add(op)\n"
        "    return kernel(op, **options)\n"
        "registry.kernel = noted\n"
        "for family in reversed(FAMILIES):\n"
        "    importlib.import_module('plait.devices.kernels.' + family)\n"
        "print(places == {name: set(ops.split()) for name, ops in FAMILIES.items()})"
    )
    assert _answer(code) == "True"


def test_operators_are_in_one_family() -> None:
    assert sum(len(operators.split()) for operators in FAMILIES.values()) == len(FAMILY_OF)


def test_a_kernel_is_imported_when_it_is_looked_for() -> None:
    name = "'linear_algebra'"
    code = (
        "import sys; from plait.devices.kernels.registry import find_kernel\n"
        f"before = {_IMPORTED}\n"
        "found = find_kernel('Einsum', 'cpu')\n"
        f"print({name} in before, found.op, {name} in {_IMPORTED}, 'resize' in {_IMPORTED})"
    )
    assert _answer(code) == "False Einsum True False"


def test_a_second_kernel_is_refused_before_the_first_was_looked_for() -> None:
    code = (
        "from plait import GraphError; from plait.devices.kernels.registry import kernel\n"
        "try:\n    kernel('Einsum')(print)\nexcept GraphError as error:\n    print(error.what)"
    )
    assert _answer(code) == f"two kernels for 'Einsum' on {ANY!r}"


def test_operators_without_kernels_are_looked_for_in_all_families() -> None:
    code = (
        "import sys; from plait.devices.kernels.registry import find_kernel\n"
        f"print(find_kernel('If', 'cpu'), 'resize' in {_IMPORTED})"
    )
    assert _answer(code) == "None True"
