"""The language of the package: how its docstrings begin, and how its words are spelled."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDERS = ("graph", "devices", "dialects", "scheduler", "cli")
PACKAGE = sorted(
    [*ROOT.glob("*.py"), *(file for folder in FOLDERS for file in (ROOT / folder).rglob("*.py"))]
)
QUESTION = re.compile(r"(What|Which|Who|Whom|Whose|How|Whether|When|Where|Why)\b")


STRING = re.compile(r'(?:#.*\n|\s)*[rR]?"""\s*(.*)')


def opening(file: Path) -> str:
    """Return the first line of a module's docstring."""
    found = STRING.match(file.read_text())
    return found[1] if found else ""


def test_no_module_docstring_opens_with_an_indirect_question() -> None:
    """A noun phrase or a verb says what a file is, or does."""
    files = [*PACKAGE, *(ROOT / "tests").rglob("*.py")]
    assert [str(file) for file in files if QUESTION.match(opening(file))] == []


BRITISH = re.compile(
    r"(?:quant|optim|normal|summar|vector|recogn|synchron|standard|parametr|initial|minim)is"
    r"(?:e|ed|es|er|ers|ing|ation|ations)(?![a-z])",
    re.IGNORECASE,
)


def test_words_are_spelled_with_z_as_onnx_and_the_public_names_are() -> None:
    found = [
        f"{file.relative_to(ROOT)}: {word}"
        for file in (*PACKAGE, *(ROOT / "docs").glob("*.md"), *ROOT.glob("*.md"))
        for word in BRITISH.findall(file.read_text())
    ]
    assert found == []


def test_installing_plait_is_told_by_the_name_that_it_has_on_package_indices() -> None:
    """In a checkout it is a dot; the name alone is another project's."""
    told = re.compile(r"'plait\[\w|pip install '?plait(?![\w-])")
    files = [
        *PACKAGE,
        *(ROOT / "examples").rglob("*.py"),
        *(ROOT / "docs").rglob("*.md"),
        *ROOT.glob("*.md"),
    ]
    assert [str(file) for file in files if told.search(file.read_text())] == []


FOUND = {
    "_because", "_failed", "_reason", "_rebuild", "_rebuilt", "_translated", "_why", "again",
    "all_told", "cause_of", "lose", "rebuild", "watch",
}  # fmt: skip
"""Functions that do not write an error, but find, copy, translate or keep one."""


RETURNS = re.compile(r"->\s*\w*(Error|Exception)\b")


def test_what_writes_an_error_is_called_so() -> None:
    found = {
        node.name
        for file in PACKAGE
        if RETURNS.search(text := file.read_text())  # parsing all takes seconds
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.returns is not None
        if re.fullmatch(r"\w*(Error|Exception)", ast.unparse(node.returns))
        if not node.name.endswith("_error")
    }
    assert found == FOUND
