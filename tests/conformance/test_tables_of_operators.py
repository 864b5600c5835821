"""Tables of operators' names beside their definitions: few, and each for a reason.

What holds for an operator is stated where it is defined, or by the one who registers something for
it; a list of names elsewhere does not know the operators that are defined after it was written.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import plait as pl
from plait.graph.core.operator import list_operators

ROOT = Path(pl.__file__).parent
FOLDERS = ("graph", "devices", "scheduler", "dialects", "cli")
NAMES = frozenset(list_operators())

MOST = 22
TEXTS = "what computes each, as text"
TABLES = {
    "devices/codegen/activation.py FORMULAS": TEXTS,
    "devices/codegen/arithmetic.py EITHER": TEXTS,
    "devices/codegen/arithmetic.py FLOATS": TEXTS,
    "devices/codegen/arithmetic.py INTEGERS": TEXTS,
    "devices/compiled/program.py CODES": "the numbers by which machine code tells them apart",
    "devices/cuda/support.py DENIED": "what CuPy's functions lack, in kernels that know no device",
    "devices/formal/recurrent.py _ALPHAS": "a definition of the defaults that rests on no other",
    "devices/kernel_factors.py _MEASURED": "measured",
    "devices/kernels/elementwise.py UFUNCS": TEXTS,
    "devices/kernels/families.py FAMILIES": "what to import for which, and nothing else",
    "devices/ort/openvino.py _POSITIONS": "int64 that OpenVINO may compute in 32 bits",
    "devices/ort/saturation.py _OPERANDS": "in which order ONNX Runtime's kernels take bytes",
    "devices/ort/differences.py SPECIAL_VALUES": "measured",
    "dialects/cvm/files/operators.py _NAMES": "how cvm's files name them",
    "dialects/cvm/kernels/elementwise.py UFUNCS": TEXTS,
    "dialects/lightnet/arithmetic.py ELEMENTWISE": "how LightNet's files name them",
    "graph/formats/onnx/forms.py _CHANGES": "how ONNX writes what plait has in another form",
    "graph/formats/onnx/upgrade.py _MOVED": "what versions of ONNX changed",
    "graph/formats/onnx/upgrade.py _RENAMED": "what versions of ONNX changed",
    "graph/passes/bounds.py _BOUNDING": "the forms of which the functions below it read bounds",
    "scheduler/runtime/opened/open_plan.py WRITE_PARTS": "of which kernels keep an undo log",
    "scheduler/quantization/products.py FEATURES": "all products that can be quantized",
}


def listings(value: ast.expr) -> Iterator[list[str]]:
    """Yield what a collection lists, as texts: elements, words, keys, and the same of values."""
    match value:
        case ast.Tuple(elts=parts) | ast.List(elts=parts) | ast.Set(elts=parts):
            yield [*texts(parts)]
        case ast.Dict(keys=keys, values=values):
            yield [*texts(keys)]
            yield " ".join(texts(values)).split()
            for one in values:
                yield from listings(one) if isinstance(one, ast.Dict) else ()
        case ast.BinOp(left=left, right=right):
            yield from (*listings(left), *listings(right))
        case ast.Call(func=ast.Attribute(value=ast.Constant(value=str(text)), attr="split")):
            yield text.split()
        case ast.Call(args=[first, *_]):
            yield from listings(first)


def texts(parts: Iterable[ast.expr | None]) -> Iterator[str]:
    for part in parts:
        if isinstance(part, ast.Constant) and isinstance(part.value, str):
            yield part.value


def is_code(value: Any) -> bool:
    """True for what registers functions by operator: the table is where they are."""
    return isinstance(value, Mapping) and all(
        callable(one) or (isinstance(one, tuple) and all(map(callable, one)))
        for one in value.values()
    )


def is_of_operators(listed: list[str]) -> bool:
    """True for at least two names of operators, and half of what is listed."""
    named = [text for text in listed if text in NAMES]
    return len({*named}) >= 2 and 2 * len(named) >= len(listed)


def tables() -> Iterator[str]:
    """Yield the tables at the top of modules, by file and name."""
    for path in sorted(file for folder in FOLDERS for file in (ROOT / folder).rglob("*.py")):
        where = path.relative_to(ROOT)
        if where.parts[:2] == ("graph", "operators"):
            continue
        for statement in ast.parse(path.read_text()).body:
            if not isinstance(statement, ast.Assign | ast.AnnAssign) or statement.value is None:
                continue
            target = statement.targets[0] if isinstance(statement, ast.Assign) else statement.target
            if not isinstance(target, ast.Name) or isinstance(statement.value, ast.Constant):
                continue
            if any(map(is_of_operators, listings(statement.value))):
                module = import_module(".".join(("plait", *where.with_suffix("").parts)))
                if not is_code(getattr(module, target.id)):
                    yield f"{where} {target.id}"


def test_tables_are_seen_in_all_forms() -> None:
    for text in (
        "('Add', 'Mul')",
        "frozenset({'Add', 'Mul'})",
        "'Add Mul'.split()",
        "{'Add': 1, 'Mul': 2}",
        "{'sums': 'Add', 'products': 'Mul Div'}",
        "{'cpu': {'Add': 1.5, 'Mul': 2}}",
        "('Add', 'x') + ('Mul', 'Div')",
        "dict.fromkeys(('Add', 'Mul'), 3)",
    ):
        value = ast.parse(text, mode="eval").body
        assert any(map(is_of_operators, listings(value))), text


def test_tables_of_operators_are_few_and_have_reasons() -> None:
    assert set(tables()) == TABLES.keys()
    assert len(TABLES) <= MOST
