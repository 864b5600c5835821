"""The command line as tests call it: in this process, or in one of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from click.testing import CliRunner, Result
from patience import WAIT_S
from plait.cli import cli


def plait(folder: Path, *arguments: str, stdin: bytes | None = None) -> Result:
    """Run the command line in this process, in the folder of the models."""
    before = os.getcwd()
    os.chdir(folder)
    try:
        return CliRunner().invoke(cli, list(arguments), stdin, prog_name="plait")
    finally:
        os.chdir(before)


def plait_process(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "plait", *arguments]
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=WAIT_S, check=False
    )


def assert_mistake(result: Result, *expected: str) -> None:
    """Check for exit code 2, nothing on stdout, and one message without a traceback."""
    assert (result.exit_code, result.stdout) == (2, "")
    for text in expected:
        assert text in result.stderr
    assert "Traceback" not in result.stderr
    errors = [line for line in result.stderr.splitlines() if line.lower().startswith("error:")]
    assert len(errors) == 1
