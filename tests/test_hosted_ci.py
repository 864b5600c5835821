"""Hosted CI calls what is there: targets of make, scripts, and the Pythons that are declared."""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

yaml = pytest.importorskip("yaml", reason="PyYAML comes with [docs]")

ROOT = Path(__file__).parents[1]
HOSTED = [*(ROOT / ".github" / "workflows").glob("*.yml"), ROOT / ".gitlab-ci.yml"]
SCRIPTS = [file for file in (ROOT / ".ci").iterdir() if file.is_file()]
TARGETS = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def test_targets_that_are_called_are_there() -> None:
    called = {
        target
        for file in (*HOSTED, *SCRIPTS)
        for targets in re.findall(
            r"(?:run: |^ *- |^|script: )make ([\w-]+(?: [a-z-]+\b(?!=))*)",
            file.read_text(),
            re.MULTILINE,
        )
        for target in targets.split()
    }
    assert {"check", "test", "test-all", "fuzz", "lowest", "dist"} <= called
    assert called <= TARGETS


def test_scripts_that_are_called_are_there() -> None:
    files = (*HOSTED, *SCRIPTS, ROOT / "Makefile")
    called = {name for file in files for name in re.findall(r"\.ci/(\w+)", file.read_text())}
    assert called == {file.name for file in SCRIPTS}


def declared_pythons() -> set[str]:
    classifiers = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["classifiers"]
    found = (
        re.fullmatch(r"Programming Language :: Python :: (3\.\d+)", one) for one in classifiers
    )
    return {version[1] for version in found if version}


def test_the_pythons_that_are_declared_are_tested() -> None:
    for file in (ROOT / ".github" / "workflows" / "check.yml", ROOT / ".gitlab-ci.yml"):
        tested = set(re.findall(r"""["':](3\.1\d)(?=["'\s])""", file.read_text()))
        assert tested == declared_pythons()


def test_a_python_that_is_not_declared_may_fail() -> None:
    check = yaml.safe_load((ROOT / ".github" / "workflows" / "check.yml").read_text())
    job = check["jobs"]["quick"]
    tested = set(job["strategy"]["matrix"]["python"])
    assert tested - declared_pythons() == {"3.14t"}
    assert job["continue-on-error"] == "${{ endsWith(matrix.python, 't') }}"


def repeated_keys(node: Any) -> Iterator[str]:
    """Yield keys that stand twice in a mapping: hosts refuse such a file, parsers take the last."""
    if isinstance(node, yaml.MappingNode):
        keys = Counter(key.value for key, _ in node.value)
        yield from (key for key, count in keys.items() if count > 1)
        for _, value in node.value:
            yield from repeated_keys(value)
    elif isinstance(node, yaml.SequenceNode):
        for value in node.value:
            yield from repeated_keys(value)


def test_no_job_is_there_twice() -> None:
    assert list(repeated_keys(yaml.compose("jobs: {docs: 1, test: {a: 1}, docs: 2}"))) == ["docs"]
    files = [*HOSTED, *(ROOT / ".github").rglob("*.yml"), ROOT / "CITATION.cff"]
    found = {file: list(repeated_keys(yaml.compose(file.read_text()))) for file in files}
    assert {file: keys for file, keys in found.items() if keys} == {}
