"""Hosted CI calls what is there: targets of make, scripts, and the Pythons that are declared."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
HOSTED = [*(ROOT / ".github" / "workflows").glob("*.yml"), ROOT / ".gitlab-ci.yml"]
SCRIPTS = [file for file in (ROOT / ".ci").iterdir() if file.is_file()]
TARGETS = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def test_targets_that_are_called_are_there() -> None:
    called = {
        target
        for file in (*HOSTED, *SCRIPTS)
        for target in re.findall(
            r"(?:run: |^ *- |^|script: )make (\w+)", file.read_text(), re.MULTILINE
        )
    }
    assert {"check", "test", "lowest", "dist"} <= called
    assert called <= TARGETS


def test_scripts_that_are_called_are_there() -> None:
    files = (*HOSTED, *SCRIPTS, ROOT / "Makefile")
    called = {name for file in files for name in re.findall(r"\.ci/(\w+)", file.read_text())}
    assert called == {file.name for file in SCRIPTS}


def test_the_pythons_that_are_declared_are_tested() -> None:
    classifiers = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["classifiers"]
    declared = {
        version[1]
        for one in classifiers
        if (version := re.fullmatch(r"Programming Language :: Python :: (3\.\d+)", one))
    }
    for file in (ROOT / ".github" / "workflows" / "check.yml", ROOT / ".gitlab-ci.yml"):
        matrices = re.findall(r"(?:python|RELEASE): \[(.*)\]", file.read_text())
        tested = [set(re.findall(r"[\d.]+t?", matrix)) for matrix in matrices]
        assert declared in tested
