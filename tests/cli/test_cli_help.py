"""Help and completion: what a shell shows before anything is run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import plait as pl
import pytest

pytest.importorskip("click")
pytest.importorskip("rich")

import click
from click.shell_completion import ShellComplete
from command_line import plait
from plait.cli import cli
from plait.cli.completion import FILE

COMMANDS = sorted(cli.commands)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("completed")
    b = pl.GraphBuilder("model")
    x = b.input("features", "float32", ("batch", 4))
    h = b.op("MatMul", x, np.ones((4, 4), "float32"), name="hidden.product")
    b.output("scores", b.op("Relu", h, name="hidden.relu") + b.input("flag", "float32", ()))
    graph = b.build()
    pl.save(graph, made / "model.plait")
    pl.plan(graph).save(made / "model.plan")
    return made


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_shows_options_in_groups_and_examples_that_are_its_own(
    tmp_path: Path, command: str
) -> None:
    long, short = plait(tmp_path, command, "--help"), plait(tmp_path, command, "-h")
    assert long.stdout == short.stdout
    lines = long.stdout.splitlines()
    examples = lines[lines.index("Examples:") + 1 : lines.index("Exit codes:")]
    assert all(line.startswith(f"  plait {command}") for line in examples if line)
    assert "  130  interrupted" in lines


@pytest.mark.parametrize("command", COMMANDS)
def test_examples_name_options_that_the_command_has(command: str) -> None:
    asked = cli.commands[command]
    parts = (asked, *getattr(asked, "commands", {}).values())
    known = {name for part in parts for one in part.params for name in one.opts}
    text = getattr(asked, "examples", "")
    assert {word for word in text.split() if word.startswith("--")} <= known


def test_every_option_is_listed_under_one_heading() -> None:
    command = cli.commands["stream"]
    shown = plait(Path(), "stream", "--help").stdout
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            assert shown.count(f"\n  {parameter.opts[0]} ") == 1
    headings = [line for line in shown.splitlines() if line.endswith(":") and line[0] != " "]
    assert headings[0] == "Options:"
    assert len(headings) == len(set(headings)) > 7


def completed(folder: Path, *words: str) -> list[str]:
    """Return what stands in the place of the last word; files are left to the shell."""
    before = os.getcwd()
    os.chdir(folder)
    try:
        found = ShellComplete(cli, {}, "plait", "_PLAIT_COMPLETE").get_completions(
            list(words[:-1]), words[-1]
        )
    finally:
        os.chdir(before)
    return [one.value for one in found if one.type == "plain"]


@pytest.mark.parametrize("model", ["model.plait", "model.plan"])
@pytest.mark.parametrize(
    ("option", "text", "expected"),
    [
        ("--pin", "hid", ["hidden.product=", "hidden.relu="]),
        ("--pin", "hidden.relu=cp", ["hidden.relu=cpu"]),
        ("--fetch", "hidden.p", ["hidden.product"]),
        ("--input", "f", ["features=", "flag="]),
        ("--input", "flag=r", ["flag=random"]),
        ("--shape", "fe", ["features=batch,4"]),
        ("--bound", "", ["batch="]),
        ("--devices", "cpu,work", ["cpu,worker:0"]),
        ("--devices", "form", ["formal"]),
    ],
)
def test_what_is_in_the_model_is_completed(
    folder: Path, model: str, option: str, text: str, expected: list[str]
) -> None:
    assert completed(folder, "run", model, option, text) == expected


def test_a_device_that_is_there_already_is_not_completed_again(folder: Path) -> None:
    assert "cpu,cpu" not in completed(folder, "plan", "model.plait", "--devices", "cpu,")
    assert completed(folder, "devices", "wor") == ["worker:0"]


def test_without_a_model_or_with_a_damaged_one_nothing_is_completed(folder: Path) -> None:
    (folder / "damaged.plait").write_bytes(b"nothing")
    for words in (
        ["run", "--pin"],
        ["run", "none.plait", "--pin"],
        ["run", "damaged.plait", "--pin"],
    ):
        assert completed(folder, *words, "") == []


def test_files_are_left_to_the_shell(folder: Path) -> None:
    assert FILE[0].type == "file"
    complete = ShellComplete(cli, {}, "plait", "_PLAIT_COMPLETE")
    for words in (["run"], ["run", "model.plait", "--output"], ["run", "model.plait", "--input"]):
        assert "file" in {one.type for one in complete.get_completions(words, "m")}


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_gets_its_script(shell: str) -> None:
    asked = {**os.environ, "_PLAIT_COMPLETE": f"{shell}_source"}
    command = [sys.executable, "-m", "plait"]
    done = subprocess.run(command, env=asked, capture_output=True, text=True)
    if shell == "bash" and "Couldn't detect Bash version" in done.stderr:
        pytest.skip("there is no bash")
    assert (done.returncode, "_PLAIT_COMPLETE" in done.stdout) == (0, True)
