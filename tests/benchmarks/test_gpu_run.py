"""The run of all questions: processes, limits, the file, and what is told at the end."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import run_gpu
from gpu import conformance
from gpu.question import Row, text_of
from run_gpu import Answer, ask, name_of, rows_in, summary

ON_CPU = ["--device", "cpu", "--small"]

TESTS = """
import pytest
def test_one(): pass
def test_two(): raise ValueError("two is wrong")
def test_three(): pytest.skip("no three")
"""


def test_a_question_is_asked_in_a_process_of_its_own() -> None:
    answer = ask("about", ON_CPU, limit_s=60)
    assert answer.failure == ""
    assert answer.rows == (Row("device", "cpu"),)


def test_a_process_that_takes_too_long_is_ended() -> None:
    answer = ask("about", ON_CPU, limit_s=0.01)
    assert answer.rows == ()
    assert "took more than" in answer.failure


def test_a_process_that_ends_badly_is_quoted() -> None:
    answer = ask("about", ["--device"], limit_s=60)
    assert answer.failure.startswith("ended with 2: ")
    assert "expected one argument" in answer.failure


def test_a_line_that_was_cut_off_is_no_row() -> None:
    whole = json.dumps(Row("a", 1.5, "µs", at_most=2.0).to_dict())
    assert list(rows_in(f"chatter\n{whole}\n{whole[:9]}")) == [Row("a", 1.5, "µs", at_most=2.0)]


def test_one_file_is_written_whatever_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def asked(name: str, arguments: list[str], limit_s: float) -> Answer:
        if name == "copies":
            return Answer(name, (), 1.0, "ended with 1: out of luck")
        return Answer(name, (Row("device", "Fast GPU 3"), Row("a", 3, at_most=2)), 2.0)

    monkeypatch.setattr(run_gpu, "ask", asked)
    command = ["run_gpu.py", "--only", "about,copies", "--results", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", command)
    run_gpu.main()
    (file,) = tmp_path.iterdir()
    assert file.name.startswith("gpu-fast-gpu-3-20")
    found = json.loads(file.read_text())
    assert {"date", "versions", "cpu"} <= found.keys()
    assert found["answers"]["about"]["rows"][1] == {
        "what": "a",
        "value": 3,
        "at_most": 2,
        "met": False,
    }
    assert found["answers"]["copies"]["failure"] == "ended with 1: out of luck"
    told = capsys.readouterr().out
    assert "0 of 1 goals and expectations are met" in told
    assert "copies did not end well: ended with 1: out of luck" in told


def test_questions_for_which_there_is_no_time_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ["run_gpu.py", "--only", "copies", "--minutes", "0", "--results", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", [*command, "--device", "cpu"])
    run_gpu.main()
    (file,) = tmp_path.iterdir()
    assert json.loads(file.read_text())["answers"]["copies"]["failure"] == "there was no time left"


def test_without_the_device_nothing_is_asked_and_nothing_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ["run_gpu.py", "--device", "sim", "--results", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", command)
    lacking = Answer("about", (Row("The device", "no driver", status="failed"),), 1.0)
    monkeypatch.setattr(run_gpu, "ask", lambda name, *_: lacking)
    with pytest.raises(SystemExit, match="there is nothing to measure") as caught:
        run_gpu.main()
    assert "no driver" in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_the_summary_tells_what_was_missed_and_what_is_missing() -> None:
    rows = (Row("fast", 1, at_most=2), Row("slow", 3, at_most=2),
            Row("torch", "not installed", status="left out"))  # fmt: skip
    lines = list(summary([Answer("q", rows, 1.0)]))
    assert lines[0] == "1 of 2 goals and expectations are met"
    assert "slow" in lines[1]
    assert "  q: torch: not installed" in lines


def test_whole_numbers_are_told_to_the_last_digit() -> None:
    assert text_of(Row("CUDA of the driver", 13020)).split()[-1] == "13020"
    assert text_of(Row("time", 1234.5678, "µs")).endswith("1235 µs")


def test_a_device_without_a_name_is_called_as_it_was_asked_for() -> None:
    assert name_of([], "cuda:0") == "cuda-0"


def test_tests_are_counted_by_folder(tmp_path: Path) -> None:
    (tmp_path / "tests" / "some").mkdir(parents=True)
    (tmp_path / "tests" / "some" / "test_numbers.py").write_text(TESTS)
    (tmp_path / "tests" / "test_uncollected.py").write_text("import missing_one")
    report = tmp_path / "report.xml"
    options = ["-q", "-p", "no:cacheprovider", "-c", "/dev/null", "--rootdir", str(tmp_path)]
    options += ["--continue-on-collection-errors", f"--junitxml={report}", str(tmp_path)]
    command = [sys.executable, "-m", "pytest", *options]
    assert conformance.run_within(command, limit_s=60)
    rows = {row.what: row for row in conformance.results(report)}
    for outcome in ("passed", "failed", "skipped"):
        assert rows[f"tests/some: {outcome}"].value == 1
    assert rows["tests/some: failed"].met is False
    assert rows["skipped: no three"].value == 1
    assert any("test_two: ValueError: two is wrong" in what for what in rows)
    assert any("No module named 'missing_one'" in what for what in rows)
    assert rows["not collected: failed"].value == 1


def test_tests_that_take_too_long_are_interrupted() -> None:
    command = [sys.executable, "-c", "import threading; threading.Event().wait()"]
    assert not conformance.run_within(command, limit_s=0.01)
