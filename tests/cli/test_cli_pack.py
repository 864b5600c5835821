from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("click")
pytest.importorskip("rich")

from click.testing import CliRunner, Result
from plait.cli import cli

TEXT = "id,lower,upper,size\na,0,3,8\nb,1,2,16\nc,5,6,24\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    made = tmp_path / "blocks.csv"
    made.write_text(TEXT)
    return made


def plait(*arguments: object) -> Result:
    return CliRunner().invoke(cli, ["pack", *map(str, arguments)])


def test_offsets_go_to_stdout_and_the_summary_to_stderr(file: Path) -> None:
    result = plait(file)
    assert result.exit_code == 0
    assert result.stdout.splitlines()[0] == "id,lower,upper,size,offset"
    assert len(result.stdout.splitlines()) == 4
    assert "24 bytes (optimal)" in result.stderr


def test_offsets_are_written_to_a_file(file: Path, tmp_path: Path) -> None:
    result = plait(file, "--output", tmp_path / "packed.csv")
    assert (result.exit_code, result.stdout) == (0, "")
    assert (tmp_path / "packed.csv").read_text().startswith("id,lower,upper,size,offset\n")


def test_what_was_packed_can_be_packed_again(file: Path, tmp_path: Path) -> None:
    plait(file, "--output", tmp_path / "packed.csv")
    assert plait(tmp_path / "packed.csv").stdout == (tmp_path / "packed.csv").read_text()


def test_json_is_all_that_is_printed(file: Path) -> None:
    summary = json.loads(plait(file, "--json", "--capacity", 24).stdout)
    assert (summary["nbytes"], summary["is_optimal"], summary["fits"]) == (24, True, True)
    assert len(summary["offsets"]) == 3


def test_what_does_not_fit_makes_the_exit_code_1(file: Path) -> None:
    result = plait(file, "--capacity", 23)
    assert result.exit_code == 1
    assert "no packing inside 23 bytes" in result.stderr
    assert result.stdout.count("\n") == 4  # the best found is still worth having


def test_a_damaged_file_is_a_mistake(file: Path) -> None:
    file.write_text(TEXT + "d,0,x,8\n")
    result = plait(file)
    assert result.exit_code == 2
    assert "line 5" in result.stderr


def test_a_file_that_is_not_there_is_a_mistake(tmp_path: Path) -> None:
    result = plait(tmp_path / "none.csv")
    assert result.exit_code == 2
    assert "there is no such file" in result.stderr


def test_bytes_that_are_no_text_are_a_mistake(file: Path) -> None:
    file.write_bytes(b"\xff\xfe\x00")
    assert plait(file).exit_code == 2
