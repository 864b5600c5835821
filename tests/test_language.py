"""The language of the package: how its docstrings begin, and how its words are spelled."""

from __future__ import annotations

import ast
import re
from collections import Counter
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
    "_find_reason", "_translate", "_rebuild", "_why", "_wrap", "again", "get_cause",
    "combine_errors", "lose", "rebuild", "watch",
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


SEVERAL = {
    "Arithmetic": "of tensors by name; of cuBLAS",
    "Command": "of the command line; to a device on another host",
    "Constant": "a schedule of learning; a pattern of passes",
    "DeviceStatus": "a device that was looked for; one of a session at work",
    "Factor": "of cuBLAS's products; of generated ones",
    "Kernel": "one written for numpy; a generated one",
    "Model": "one of ONNX, of ONNX Runtime, of cvm: each in its own file",
    "Option": "a device that a node could have had; of the command line",
    "Parameter": "of an operator; of a generated kernel",
    "Part": "what an operator has; what a graph on a GPU is cut into",
    "Pool": "of memory; of replicas on a cluster",
    "Product": "by cuBLAS; by generated kernels",
    "Recorder": "of CUDA graphs; of a session's items",
    "Rule": "of passes; of generated code",
    "Session": "plait's; ONNX Runtime's",
    "Transfer": "a planned step; a piece of generated code",
}
"""Names of classes that mean several things, where they do not meet: there are to be no more."""

CLASS = re.compile(r"^class ([A-Z]\w*)", re.MULTILINE)


def test_a_class_name_has_one_meaning() -> None:
    found = Counter(name for file in PACKAGE for name in CLASS.findall(file.read_text()))
    assert {name for name, count in found.items() if count > 1} <= SEVERAL.keys()


IS_NO = re.compile(r"(?<!here )\bis no (?!longer|earlier|part\b)[a-z]")


def test_errors_say_what_is_not_a_thing() -> None:
    """As in "is not a number"; "is no number" is not how one says it."""
    found = [
        f"{file.relative_to(ROOT)}:{node.lineno}"
        for file in PACKAGE
        if IS_NO.search(text := file.read_text())
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Raise) and IS_NO.search(ast.unparse(node))
    ]
    assert found == []
