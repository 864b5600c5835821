"""The layers: what may import what, and how large a file may grow."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
LAYERS = ("graph", "devices", "scheduler", "dialects", "cli")
BUILDER = ROOT / "setup.py"
"""Builds the package, and is no module of it."""

PACKAGE = sorted(
    [*ROOT.glob("*.py"), *(file for layer in LAYERS for file in (ROOT / layer).rglob("*.py"))]
)
PACKAGE.remove(BUILDER)
BESIDE = ("tests", "examples", "benchmarks", "tools")
OUTSIDE = sorted(file for folder in BESIDE for file in (ROOT / folder).rglob("*.py"))
OUTSIDE.append(BUILDER)
MAX_LINES = 600
BANNED_NAMES = {"utils", "util", "helpers", "helper", "common", "misc"}

# What a layer must never import, at the top of a file or inside a function.
FORBIDDEN = {
    "graph": ("devices", "scheduler", "dialects", "cli"),
    "devices": ("scheduler", "dialects", "cli"),
    "scheduler": ("dialects", "cli"),
    "dialects": ("cli",),
    "cli": ("dialects",),
}
DIALECTS = sorted(
    folder.name for folder in (ROOT / "dialects").iterdir() if (folder / "__init__.py").exists()
)


class Import(NamedTuple):
    """One import: the file it stands in, its line, and the module by its full name."""

    file: str
    line: int
    module: str
    relative: bool

    def __str__(self) -> str:
        return f"{self.file}:{self.line} imports {self.module}"


def imports(file: Path) -> Iterator[Import]:
    """Yield all imports of a file, also those inside functions; relative ones made absolute."""
    where = file.relative_to(ROOT)
    package = ("plait", *where.parts[:-1])
    for node in ast.walk(ast.parse(file.read_text(), str(file))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(str(where), node.lineno, alias.name, False)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join((*base, *filter(None, [node.module])))
            # `from . import cpu` imports a module too, when cpu is one.
            for name in (module, *(f"{module}.{alias.name}" for alias in node.names)):
                yield Import(str(where), node.lineno, name, bool(node.level))
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("lazily", "import_later"):
            told = ast.literal_eval(node.args[-1]) if node.args[-1:] else ()
            for key in [told.partition(":")[0]] if isinstance(told, str) else told:
                names = key.lstrip(".")
                base = package[: len(package) - (len(key) - len(names)) + 1]
                yield Import(str(where), node.lineno, ".".join((*base, names)), relative=True)


@cache
def all_imports() -> list[Import]:
    """Return those of the package."""
    return [found for file in PACKAGE for found in imports(file)]


def reaches(found: Import, module: str) -> bool:
    return found.module == module or found.module.startswith(f"{module}.")


def importers(module: str) -> list[Import]:
    return [found for found in all_imports() if reaches(found, module)]


def test_imports_inside_functions_and_relative_ones_are_seen() -> None:
    assert any(
        one.file == "devices/__init__.py" and one.module == "plait.devices.cpu" and one.relative
        for one in all_imports()
    )


@pytest.mark.parametrize("layer", FORBIDDEN)
def test_a_layer_never_imports_upward(layer: str) -> None:
    upward = [
        str(found)
        for found in all_imports()
        if found.file.startswith(f"{layer}/")
        and any(reaches(found, f"plait.{above}") for above in FORBIDDEN[layer])
    ]
    assert upward == []


@pytest.mark.parametrize("dialect", DIALECTS)
def test_nothing_outside_of_a_dialect_names_it(dialect: str) -> None:
    """But for the list of entry points, `plait.cvm`, and the face of formats."""
    allowed = {"dialects/__init__.py", "__init__.py", "formats.py"}
    name = re.compile(rf"(?<![a-z]){dialect}", re.IGNORECASE)
    outside = [
        f"{where}:{number}"
        for file in PACKAGE
        if not (where := str(file.relative_to(ROOT))).startswith(f"dialects/{dialect}/")
        for number, line in enumerate(file.read_text().splitlines(), 1)
        if where not in allowed and name.search(line)
    ]
    assert outside == []


SCHEDULER = (
    "errors", "packing", "costs", "plans", "shapes", "dispatch", "profile", "simulation",
    "planner", "runtime", "reports", "bridges",
)  # fmt: skip
"""The layers inside the scheduler: each uses those before it. Errors are its only loose module."""

ENTRIES = ("jobs", "pipelines", "quantization", "ray", "sources", "tuning")
"""Use all layers; not one another, and nothing uses them."""

FACADES = {
    "costs/costs.py": {"plans.plan", "profile", "profile.figures"},
    "plans/plan.py": {
        "planner.replanning", "profile", "reports.html",
        "reports.plain", "reports.plan_file", "reports.report", "simulation.simulation",
    },
    "profile/profile.py": {"reports.chrome", "reports.html", "reports.what_if"},
    "simulation/simulation.py": {"reports.html"},
}  # fmt: skip
"""Methods that users look for on a value, and the modules above it that do the work."""


GRAPH = (
    ("values",), ("core",), ("functions",), ("operators",), ("decompositions",), ("passes",),
    ("building",), ("gradients",), ("learning", "formats"),
)  # fmt: skip
"""The rooms of the graph, from below: each uses those before it."""

GRAPH_FACADES = {
    ("core/ir.py", "building.editing"),
    ("core/operator.py", "operators"),
    ("core/operator.py", "operators.families"),
    ("decompositions/rules.py", "passes.rewriting"),
}
"""A graph makes its editor, an operator that is looked up imports the families; for types alone."""


def test_rooms_of_the_graph_use_those_below_them() -> None:
    assert {file.stem for file in (ROOT / "graph").glob("*.py")} == {"__init__"}
    floor = {room: height for height, rooms in enumerate(GRAPH) for room in rooms}
    modules = {file.relative_to(ROOT).with_suffix("").as_posix() for file in PACKAGE}
    seen, upward = set(), set()
    for found in all_imports():
        top, _, file = found.file.partition("/")
        target = found.module.removeprefix("plait.graph.")
        path = "/".join(("graph", *target.split(".")))
        if top != "graph" or "/" not in file or not modules & {path, f"{path}/__init__"}:
            continue
        one, other = file.split("/")[0], target.split(".")[0]
        seen.add(one)
        if one != other and floor[other] >= floor[one]:
            upward.add((file, target))
    assert seen == floor.keys()
    assert upward == GRAPH_FACADES


def rank(part: str) -> int:
    return SCHEDULER.index(part) if part in SCHEDULER else len(SCHEDULER)


def inside_scheduler() -> Iterator[tuple[str, str, str]]:
    """Yield file, layer and module of each import from a part of the scheduler of another one."""
    modules = {
        ".".join(("plait", *file.relative_to(ROOT).with_suffix("").parts)) for file in PACKAGE
    }
    for found in all_imports():
        top, _, file = found.file.partition("/")
        module = found.module.removeprefix("plait.scheduler.")
        known = found.module in modules or f"{found.module}.__init__" in modules
        if top == "scheduler" and "/" in file and module != found.module and known:
            layer = file.split("/")[0]
            if module.split(".")[0] != layer:
                yield file, layer, module


RUNTIME = ("faults", "opened", "items", "variables", "running", "streaming")
"""The rooms of the runtime: each uses those before it, and modules beside them."""


def test_rooms_of_the_runtime_use_those_below_them() -> None:
    upward: dict[str, set[str]] = {}
    for found in all_imports():
        folders, parts = found.file.split("/")[2:-1], found.module.split(".")[3:]
        is_inside = found.file.startswith("scheduler/runtime/") and reaches(
            found, "plait.scheduler.runtime"
        )
        if is_inside and folders and len(parts) == 2 and parts[0] in RUNTIME:
            one, other = folders[0], parts[0]
            if RUNTIME.index(other) > RUNTIME.index(one):
                upward.setdefault(found.file.partition("runtime/")[2], set()).add(".".join(parts))
    assert upward == {}


def test_the_scheduler_has_no_loose_modules() -> None:
    loose = {file.stem for file in (ROOT / "scheduler").glob("*.py")}
    assert loose == {"__init__", "errors"}
    folders = {file.parent.name for file in (ROOT / "scheduler").glob("*/__init__.py")}
    assert folders == {*SCHEDULER[1:], *ENTRIES}


def test_inside_the_scheduler_only_facades_look_upward() -> None:
    upward: dict[str, set[str]] = {}
    for file, layer, module in inside_scheduler():
        part = module.split(".")[0]
        if rank(part) > rank(layer) or (part in ENTRIES and part != layer):
            upward.setdefault(file, set()).add(module)
    assert upward == FACADES


@pytest.mark.parametrize("file", FACADES)
def test_facades_are_one_line(file: str) -> None:
    tree = ast.parse((ROOT / "scheduler" / file).read_text())
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef) and any(
            isinstance(one, ast.ImportFrom)
            and "/".join((one.module or "").split("."))
            in {module.replace(".", "/") for module in FACADES[file]}
            for one in function.body
        ):
            imported, line = function.body[ast.get_docstring(function) is not None :]
            assert isinstance(imported, ast.ImportFrom)
            assert isinstance(line, ast.Return | ast.Expr)


def test_typing_and_lazy_imports_of_the_scheduler_are_seen() -> None:
    seen = {(file, module) for file, _, module in inside_scheduler()}
    assert ("plans/plan.py", "simulation.simulation") in seen
    assert ("plans/plan.py", "reports.plan_file") in seen


@pytest.mark.parametrize("kind", ["cpu", "formal", "ort", "cuda", "opencl", "worker.device"])
def test_the_scheduler_asks_devices_what_they_are_like_and_names_no_class(kind: str) -> None:
    strays = [
        one for one in importers(f"plait.devices.{kind}") if one.file.startswith("scheduler/")
    ]
    assert [str(one) for one in strays] == []


def test_the_package_imports_itself_relatively() -> None:
    """An absolute import would find another installed plait, or none."""
    own = ("plait", *LAYERS)
    absolute = [
        one for one in all_imports() if not one.relative and one.module.split(".")[0] in own
    ]
    assert [str(one) for one in absolute] == []


def test_only_what_runs_and_the_command_line_import_trio() -> None:
    """Who plans needs no event loop."""
    running = ("runtime", "bridges", *ENTRIES)
    allowed = (*(f"scheduler/{layer}/" for layer in running), "cli/", "__main__.py")
    assert [str(one) for one in importers("trio") if not one.file.startswith(allowed)] == []


def test_only_cuda_files_import_cupy() -> None:
    strays = [one for one in importers("cupy") if not one.file.startswith("devices/cuda/")]
    assert [str(one) for one in strays] == []


@pytest.mark.parametrize("module", ["numba", "llvmlite"])
def test_only_the_compiled_device_imports_its_compiler(module: str) -> None:
    strays = [one for one in importers(module) if not one.file.startswith("devices/compiled/")]
    assert [str(one) for one in strays] == []


def test_onnx_is_imported_by_formats_only() -> None:
    allowed = ("graph/formats/", "conformance.py")
    strays = [one for one in importers("onnx") if not one.file.startswith(allowed)]
    assert [str(one) for one in strays] == []


def test_onnxruntime_is_imported_by_devices_only() -> None:
    strays = [one for one in importers("onnxruntime") if not one.file.startswith("devices/")]
    assert [str(one) for one in strays] == []


@pytest.mark.parametrize("module", ["click", "rich"])
def test_only_the_command_line_imports_terminal_libraries(module: str) -> None:
    strays = [one for one in importers(module) if not one.file.startswith(("cli", "__main__"))]
    assert [str(one) for one in strays] == []


def test_importing_plait_leaves_optional_and_slow_modules_alone() -> None:
    optional = ["onnx", "onnxruntime", "cupy", "numba", "click", "rich", "multiprocessing",
                "asyncio", "ray"]  # fmt: skip
    code = f"import plait, sys; print([m for m in {optional} if m in sys.modules])"
    answer = subprocess.run(
        [sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True
    )
    assert answer.stdout.strip() == "[]"


def test_no_file_grows_over_600_lines() -> None:
    lengths = {
        str(file.relative_to(ROOT)): len(file.read_text().splitlines())
        for file in (*PACKAGE, *OUTSIDE)
    }
    assert {name: count for name, count in lengths.items() if count > MAX_LINES} == {}


def test_no_file_is_named_after_nothing() -> None:
    assert [str(file) for file in (*PACKAGE, *OUTSIDE) if file.stem in BANNED_NAMES] == []


def test_tests_are_no_packages() -> None:
    """An __init__.py there would let tests/graph shadow the folder graph."""
    assert list((ROOT / "tests").rglob("__init__.py")) == []


def test_every_package_folder_is_listed_for_the_wheel() -> None:
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())
    folders = {
        ".".join(("plait", *file.parent.relative_to(ROOT).parts))
        for file in PACKAGE
        if file.name == "__init__.py"
    }
    data = set(listed["tool"]["setuptools"]["package-data"])
    assert set(listed["tool"]["setuptools"]["packages"]) == folders | data


def test_every_folder_with_modules_is_a_package() -> None:
    bare = {file.parent for file in PACKAGE if not (file.parent / "__init__.py").exists()}
    assert bare == set()


def test_make_names_tests_that_are_there() -> None:
    named = re.findall(r"\btests/[\w/.]+", (ROOT / "Makefile").read_text())
    assert [path for path in named if not (ROOT / path).exists()] == []
