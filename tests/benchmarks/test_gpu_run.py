"""The run of all questions: processes, limits, the file, and what is told at the end."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import run_gpu
from gpu import conformance
from gpu.question import Row, rows_apart, rows_in, text_of
from patience import WAIT_S
from run_gpu import SIDE_BY_SIDE, UNDER_WAY, Answer, Run, ask, end_session, name_of, summary

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
    answer = ask("about", ON_CPU, limit_s=0)
    assert answer.rows == ()
    assert "took more than" in answer.failure


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="it takes Linux to see others end")
def test_what_a_process_has_started_does_not_outlive_it() -> None:
    """Even in a process group of its own, as what compute-sanitizer watches is."""
    child = "import threading; threading.Event().wait()"
    program = f"""
import subprocess, sys
with subprocess.Popen([sys.executable, "-c", "{child}"], process_group=0) as child:
    print(child.pid, flush=True)
"""
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as process:
        assert process.stdout is not None
        grandchild = os.pidfd_open(int(process.stdout.readline()))
        end_session(process.pid)
    try:
        ended, _, _ = select.select([grandchild], [], [], WAIT_S)
        assert ended
    finally:
        os.close(grandchild)


def test_a_process_that_ends_badly_is_quoted() -> None:
    answer = ask("about", ["--device"], limit_s=60)
    assert answer.failure.startswith("ended with 2:")
    assert "expected one argument" in answer.failure


def test_a_line_that_was_cut_off_is_no_row() -> None:
    whole = json.dumps(Row("a", 1.5, "µs", at_most=2.0).to_dict())
    assert list(rows_in(f"chatter\n{whole}\n{whole[:9]}")) == [Row("a", 1.5, "µs", at_most=2.0)]


def test_one_file_is_written_whatever_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def asked(name: str, arguments: list[str], limit_s: float, told: object) -> Answer:
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


def run(monkeypatch: pytest.MonkeyPatch, folder: Path, *options: str) -> list[str]:
    """Run questions on a device that knows all answers but one; return those that were asked."""
    asked: list[str] = []

    def ask(name: str, arguments: list[str], limit_s: float, told: object) -> Answer:
        asked.append(name)
        if name == "copies" and len(asked) < 4:
            return Answer(name, (Row("half", 1),), 1.0, "took more than 30 s")
        return Answer(name, (Row("device", "Fast GPU 3"),), 2.0)

    monkeypatch.setattr(run_gpu, "ask", ask)
    command = ["run_gpu.py", "--only", "about,launching,copies", "--results", str(folder)]
    monkeypatch.setattr(sys, "argv", [*command, *options])
    run_gpu.main()
    return asked


def test_a_second_run_asks_for_what_the_first_one_did_not_find(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(monkeypatch, tmp_path) == ["about", "launching", "copies"]
    assert run(monkeypatch, tmp_path) == ["about", "copies"]
    (file,) = tmp_path.iterdir()
    answers = json.loads(file.read_text())["answers"]
    assert set(answers) == {"about", "launching", "copies"}
    assert run(monkeypatch, tmp_path, "--again") == ["about", "launching", "copies"]


def test_what_was_found_in_part_is_kept_until_more_is_found(tmp_path: Path) -> None:
    about = Answer("about", (Row("device", "Fast GPU 3"),), 1.0)
    for answer, rows in (
        (Answer("copies", (Row("half", 1),), 9.0, "took more than 9 s"), 1),
        (None, 1),
        (Answer("copies", (), 0.0, "there was no time left"), 1),
        (Answer("copies", (Row("half", 1), Row("whole", 2)), 9.0), 2),
    ):
        one = Run(tmp_path, "gpu", {"sources": "these"})
        one.keep(about)
        assert one.known("copies") is None
        if answer is not None:
            one.keep(answer)
        saved = json.loads(one.path.read_text())["answers"]
        assert len(saved["copies"]["rows"]) == rows
    assert Run(tmp_path, "gpu", {"sources": "others"}).known("copies") is None


def test_questions_that_time_does_not_matter_to_are_asked_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = threading.Barrier(2, timeout=60)

    def ask(name: str, arguments: list[str], limit_s: float, told: object) -> Answer:
        if name in SIDE_BY_SIDE:
            both.wait()
        return Answer(name, (Row("device", "Fast GPU 3"),), 2.0)

    monkeypatch.setattr(run_gpu, "ask", ask)
    command = ["run_gpu.py", "--only", "about,rounding,integers,copies", "--results", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", command)
    run_gpu.main()
    (file,) = tmp_path.iterdir()
    answers = json.loads(file.read_text())["answers"]
    assert list(answers) == ["about", "rounding", "integers", "copies"]
    assert all("failure" not in answer for answer in answers.values())


def test_other_sources_are_measured_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(monkeypatch, tmp_path)
    monkeypatch.setattr(run_gpu, "sources", lambda: "others")
    assert run(monkeypatch, tmp_path) == ["about", "launching", "copies"]


def test_an_answer_is_told_as_it_is_found() -> None:
    told: list[Answer] = []
    answer = ask("about", ON_CPU, limit_s=60, told=told.append)
    assert told[-1].rows == answer.rows
    assert told[-1].failure == UNDER_WAY


def test_steps_that_have_a_process_each_are_named_where_they_end_badly(tmp_path: Path) -> None:
    program = (
        "import os, sys; sys.argv[-1] == 'bad' and os.abort();"
        """print('{"what": "' + sys.argv[-1] + '", "value": 1}')"""
    )
    found = list(rows_apart(["good", "bad"], [sys.executable, "-c", program], 60))
    assert sorted((row.what, row.value) for row in found) == [("bad", "ended with -6"), ("good", 1)]
    (late,) = rows_apart(["late"], [sys.executable, "-c", "input()", "<"], 0.01)
    assert (late.status, late.what) == ("failed", "late")


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
    assert conformance.failed_in(report) == ["tests/some/test_numbers.py::test_two"]


def test_tests_are_run_by_plugins_that_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(64))
    assert conformance.side_by_side() == ["--numprocesses=12", "--dist=worksteal"]
    monkeypatch.setattr(conformance, "find_spec", lambda name: None)
    assert conformance.side_by_side() == []
    assert "xdist.plugin" not in conformance.pytest_command()


def test_tests_that_take_too_long_are_interrupted() -> None:
    command = [sys.executable, "-c", "import threading; threading.Event().wait()"]
    assert not conformance.run_within(command, limit_s=0.01)
