from __future__ import annotations

import importlib
import json
import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import plait as pl
import pytest
from nested_graphs import doubling_body
from patience import WAIT_S

pytest.importorskip("click")
pytest.importorskip("rich")

from command_line import assert_mistake, plait, plait_process
from plait.cli.output import print_error
from plait.graph.values.errors import Argument, Fix, PlaitError
from plait.graph.values.extras import get_install_command

OPERATORS = """
import numpy as np
import plait as pl

@pl.operator(name="cli_test.refuse_negative")
def refuse_negative(x):
    if (x < 0).any():
        raise ValueError("a negative number")
    return x

@pl.operator(name="cli_test.announce", effects=True)
def announce(x):
    print("running", flush=True)
    return x
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with models, arrays, and a module of Python operators."""
    made = tmp_path_factory.mktemp("models")
    _save_affine(made / "affine.plait")
    (made / "cli_test_operators.py").write_text(OPERATORS)
    sys.path.insert(0, str(made))
    try:
        operators = importlib.import_module("cli_test_operators")
    finally:
        sys.path.remove(str(made))
    for name in ("refuse_negative", "announce"):
        b = pl.GraphBuilder(name)
        x = b.input("x", "float32", (2,))
        b.output("y", b.call(getattr(operators, name), x, name="check"))
        pl.save(b.build(), made / f"{name}.plait")
    np.save(made / "x.npy", np.arange(6, dtype=np.float32).reshape(2, 3))
    np.save(made / "wrong_dtype.npy", np.zeros((2, 3)))
    np.save(made / "wrong_rank.npy", np.zeros(3, np.float32))
    np.savez(made / "xy.npz", x=np.ones((1, 3), "f4"), y=np.full((1, 3), np.nan, "f4"))
    (made / "items").mkdir()
    for i, value in enumerate((1, -1, 2)):
        np.save(made / "items" / f"{i}.npy", np.full(2, value, np.float32))
    return made


def _save_affine(file: Path) -> None:
    b = pl.GraphBuilder("affine")
    x, y = b.input("x", "float32", ("n", 3)), b.input("y", "float32", ("n", 3))
    b.output("sum", b.op("Add", x, y, name="add"))
    b.output("twice", b.op("Add", x, x, name="double"))
    pl.save(b.build(), file)


# run


def test_run_prints_a_summary_of_each_output(folder: Path) -> None:
    result = plait(folder, "run", "affine.plait", "--input", "x=x.npy", "--input", "y=random")
    assert result.exit_code == 0
    assert result.stderr == ""
    twice = next(line for line in result.stdout.splitlines() if "twice" in line)
    assert twice.split()[:6] == ["twice", "float32[2,", "3]", "0", "10", "5"]


def test_run_writes_outputs_to_a_file(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.npz"
    arguments = ("--input", "x=x.npy", "--input", "y=x.npy", "--output", str(out))
    result = plait(folder, "run", "affine.plait", *arguments)
    assert result.stdout == f"wrote sum, twice to {out}\n"
    with np.load(out) as written:
        assert sorted(written) == ["sum", "twice"]
        assert written["sum"].tolist() == [[0, 2, 4], [6, 8, 10]]


def test_run_prints_json_without_nan(folder: Path) -> None:
    result = plait(folder, "run", "affine.plait", "--input", "xy.npz", "--json")
    answer = json.loads(result.stdout, parse_constant=pytest.fail)
    assert answer["outputs"][0] == {
        "name": "sum",
        "dtype": "float32",
        "shape": [1, 3],
        "min": None,
        "max": None,
        "mean": None,
        "values": [[None, None, None]],
    }
    assert answer["outputs"][1]["mean"] == 2
    assert answer["seconds"] > 0


def test_an_output_may_be_called_file(folder: Path, tmp_path: Path) -> None:
    b = pl.GraphBuilder()
    b.output("file", b.op("Relu", b.input("x", "float32", (2,))))
    pl.save(b.build(), tmp_path / "m.plait")
    arguments = ("--input", "random", "--output", str(tmp_path / "o.npz"))
    assert plait(folder, "run", str(tmp_path / "m.plait"), *arguments).exit_code == 0
    with np.load(tmp_path / "o.npz") as written:
        assert written.files == ["file"]


def test_random_inputs_depend_on_the_seed_only(folder: Path) -> None:
    def mean(seed: int) -> float:
        arguments = ("--input", "random", "--seed", str(seed), "--json", "--shape", "x=9,3")
        result = plait(folder, "run", "affine.plait", *arguments)
        return float(json.loads(result.stdout)["outputs"][0]["mean"])

    assert mean(1) == mean(1) != mean(2)


def test_run_notes_symbolic_dimensions_that_it_proposes(folder: Path) -> None:
    result = plait(folder, "run", "affine.plait", "--input", "random")
    assert "float32[1, 3]" in result.stdout
    assert "note: input 'x': n = 1 proposed; --shape x=1,3 sets others" in result.stderr


def test_shape_sets_symbolic_dimensions(folder: Path) -> None:
    arguments = ("--input", "random", "--shape", "x=4,3")
    result = plait(folder, "run", "affine.plait", *arguments)
    assert "float32[4, 3]" in result.stdout
    assert result.stderr == ""


def test_run_saves_a_trace(folder: Path, tmp_path: Path) -> None:
    arguments = ("--input", "random", "--trace", str(tmp_path / "t.json"))
    assert plait(folder, "run", "affine.plait", *arguments).exit_code == 0
    assert json.loads((tmp_path / "t.json").read_text())


def test_pins_and_devices_reach_the_plan(folder: Path) -> None:
    arguments = ("--devices", "worker:0,cpu", "--pin", "doub*=cpu", "--json")
    result = plait(folder, "plan", "affine.plait", *arguments)
    nodes = json.loads(result.stdout)["nodes"]
    assert {name: node["device"] for name, node in nodes.items()} == {
        "add": "worker:0",
        "double": "cpu",
    }


def test_run_uses_a_worker(folder: Path) -> None:
    arguments = ("--devices", "worker:0,cpu", "--pin", "double=cpu", "--input", "x=x.npy")
    result = plait(folder, "run", "affine.plait", *arguments, "--input", "y=x.npy")
    assert (result.exit_code, result.stderr) == (0, "")


# plan, convert, devices


def test_plan_reports_a_symbolic_model_without_inputs(folder: Path) -> None:
    result = plait(folder, "plan", "affine.plait")
    assert result.exit_code == 0
    assert "float32[n, 3]" in result.stdout


def test_plan_for_a_shape_reports_memory(folder: Path) -> None:
    result = plait(folder, "plan", "affine.plait", "--shape", "x=100,3", "--max-in-flight", "3")
    assert "float32[100, 3]" in result.stdout
    assert "3 in flight" in result.stdout


def test_plan_prints_the_graph_for_graphviz(folder: Path) -> None:
    dot = plait(folder, "plan", "affine.plait", "--dot").stdout
    assert dot.startswith("digraph")
    assert 'label="cpu"' in dot


def test_plan_shows_loops_and_what_they_wait_for(tmp_path: Path) -> None:
    b = pl.GraphBuilder("looping")
    trips, x = b.input("trips", "int64", ()), b.input("x", "float32", (3,))
    last, rows = b.op("Loop", trips, None, x, body=doubling_body(limit=9), outputs=2, name="loop")
    b.output("last", last)
    b.output("rows", rows)
    pl.save(b.build(), tmp_path / "loop.plait")
    assert (
        "'loop' (Loop): needs the values of 'trips'" in plait(tmp_path, "plan", "loop.plait").stdout
    )
    assert 'label="session"' in plait(tmp_path, "plan", "loop.plait", "--dot").stdout
    shown = json.loads(plait(tmp_path, "plan", "loop.plait", "--json").stdout)
    assert shown["nodes"]["loop/double"]["device"] == "cpu"


def test_plan_lists_nodes_when_asked(folder: Path) -> None:
    brief = plait(folder, "plan", "affine.plait").stdout
    long = plait(folder, "plan", "affine.plait", "--nodes").stdout
    assert len(long.splitlines()) >= len(brief.splitlines()) + 2


def test_convert_reads_onnx_and_writes_plait(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    kind = onnx.TensorProto.FLOAT
    x, y = (onnx.helper.make_tensor_value_info(name, kind, [2]) for name in "xy")
    node = onnx.helper.make_node("Relu", ["x"], ["y"])
    model = onnx.helper.make_model(
        onnx.helper.make_graph([node], "g", [x], [y]),
        opset_imports=[onnx.helper.make_opsetid("", 17)],
        ir_version=8,
    )
    onnx.save(model, tmp_path / "m.onnx")
    result = plait(tmp_path, "convert", "m.onnx", "m.plait")
    assert result.stdout.startswith("wrote m.plait: 1 nodes, 0 constants")
    assert pl.load(tmp_path / "m.plait").nodes[0].op == "Relu"


def test_convert_prints_json(folder: Path, tmp_path: Path) -> None:
    output = str(tmp_path / "o.plait")
    result = plait(folder, "convert", "affine.plait", output, "--json")
    assert json.loads(result.stdout) == {
        "output": output,
        "nodes": 2,
        "constants": 0,
        "constants_nbytes": 0,
    }


def test_devices_lists_all_with_a_reason(folder: Path) -> None:
    result = plait(folder, "devices")
    assert result.exit_code == 0
    lines = {line.split()[0]: line for line in result.stdout.splitlines()}
    assert "found" in lines["cpu"]
    assert "self-check passed" in lines["cpu"]
    assert set(pl.devices.names()) <= set(lines)


def test_devices_prints_json(folder: Path) -> None:
    (status,) = json.loads(plait(folder, "devices", "cpu", "--json").stdout)
    assert (status["name"], status["found"]) == ("cpu", True)


def test_a_missing_device_asked_for_by_name_is_a_failure(folder: Path) -> None:
    result = plait(folder, "devices", "abacus:0", "cpu")
    assert result.exit_code == 1
    assert "missing" in result.stdout
    assert "there is no device 'abacus:0'" in result.stdout


# profile, stream


def test_profile_prints_a_table(folder: Path) -> None:
    result = plait(folder, "profile", "affine.plait", "--repeat", "3", "--shape", "x=1,3")
    assert (result.exit_code, result.stderr) == (0, "")
    assert "3 items" in result.stdout
    assert "double" in result.stdout


def test_profile_prints_json_and_saves_a_trace(folder: Path, tmp_path: Path) -> None:
    trace = tmp_path / "t.json"
    arguments = ("--repeat", "4", "--json", "--trace", str(trace))
    result = plait(folder, "profile", "affine.plait", *arguments)
    assert json.loads(result.stdout)["items"] == 4
    assert json.loads(trace.read_text())


def test_stream_counts_random_items(folder: Path) -> None:
    result = plait(folder, "stream", "affine.plait", "--count", "7", "--json")
    answer = json.loads(result.stdout)
    assert (answer["done"], answer["failures"]) == (7, [])
    assert answer["items_per_second"] > 0


def test_stream_writes_one_file_per_item(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "made" / "out"
    arguments = ("--count", "3", "--input", "xy.npz", "--output", str(out))
    result = plait(folder, "stream", "affine.plait", *arguments)
    assert result.stdout.startswith("3 items in ")
    assert "items/s" in result.stdout
    assert sorted(file.name for file in out.iterdir()) == ["0000.npz", "0001.npz", "0002.npz"]
    with np.load(out / "0002.npz") as written:
        assert written["twice"].tolist() == [[2, 2, 2]]


REFUSE = ("stream", "refuse_negative.plait", "--import", "cli_test_operators.py", "--input")


def test_an_item_that_fails_is_reported_and_the_others_go_on(folder: Path, tmp_path: Path) -> None:
    result = plait(folder, *REFUSE, "x=items", "--output", str(tmp_path))
    assert result.exit_code == 1
    assert result.stdout.startswith("2 items in ")
    assert "1 failed" in result.stdout
    assert "error: item 1: ValueError: a negative number" in result.stderr
    assert sorted(file.name for file in tmp_path.iterdir()) == ["0000.npz", "0002.npz"]


def test_a_file_that_cannot_be_read_fails_its_item_only(folder: Path, tmp_path: Path) -> None:
    for i in (0, 2):
        np.save(tmp_path / f"{i}.npy", np.ones(2, np.float32))
    (tmp_path / "1.npy").write_bytes(b"damaged")
    result = plait(folder, *REFUSE, f"x={tmp_path}/*.npy", "--json")
    answer = json.loads(result.stdout)
    assert (result.exit_code, answer["done"]) == (1, 2)
    assert [failure["item"] for failure in answer["failures"]] == [1]
    assert "cannot read" in answer["failures"][0]["error"]


def test_only_the_first_failures_are_printed(folder: Path, tmp_path: Path) -> None:
    for i in range(13):
        np.save(tmp_path / f"{i:02d}.npy", np.full(2, -1, np.float32))
    result = plait(folder, *REFUSE, f"x={tmp_path}")
    assert result.stderr.count("error: item") == 10
    assert "3 more items failed" in result.stderr


def test_items_of_different_shapes_go_through_one_stream(folder: Path, tmp_path: Path) -> None:
    for n in (1, 2, 3):
        np.save(tmp_path / f"{n}.npy", np.ones((n, 3), np.float32))
    out = tmp_path / "out"
    arguments = ("--input", f"x={tmp_path}/*.npy", "--output", str(out))
    assert plait(folder, "stream", "affine.plait", *arguments).exit_code == 0
    shapes = [np.load(file)["sum"].shape for file in sorted(out.iterdir())]
    assert shapes == [(1, 3), (2, 3), (3, 3)]


# mistakes


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["run", "nowhere.plait"], ["there is no such file", "nowhere.plait"]),
        (["run", "."], ["this is a folder"]),
        (["run", "x.npy"], ["x.npy"]),
        (["run", "affine.plait", "--devices", "abacus"], ["no device 'abacus'", "cpu, worker"]),
        (["run", "affine.plait", "--devices", "cpu,"], ["empty name"]),
        (["run", "affine.plait", "--devices", "cpu,cpu"], ["each once"]),
        (["run", "affine.plait"], ["nothing is given for x, y", "--input x="]),
        (["run", "affine.plait", "--input", "z=random"], ["no input 'z'", "x, y"]),
        (["run", "affine.plait", "--input", "x=gone.npy"], ["finds no file"]),
        (["run", "affine.plait", "--input", "="], ["is not NAME=FILE"]),
        (["run", "affine.plait", "--input", "x.npy"], ["which input it feeds"]),
        (["run", "affine.plait", "--input", "x=affine.plait"], ["cannot read affine.plait"]),
        (
            ["run", "affine.plait", "--input", "random", "--input", "x=wrong_dtype.npy"],
            ["'x' must be float32[n, 3], got dtype 'float64'", "asarray"],
        ),
        (
            ["run", "affine.plait", "--input", "random", "--input", "x=wrong_rank.npy"],
            ["'x' must be float32[n, 3]", "got shape [3]"],
        ),
        (["run", "refuse_negative.plait", "--input", "items"], ["make 3 items", "plait stream"]),
        (["run", "affine.plait", "--output", "gone/o.npz"], ["no folder 'gone'"]),
        (["run", "affine.plait", "--trace", "gone/t.json"], ["no folder 'gone'"]),
        (["run", "affine.plait", "--import", "no_such_module"], ["cannot import"]),
        (["plan", "affine.plait", "--pin", "add"], ["is not NODE=DEVICE"]),
        (["plan", "affine.plait", "--pin", "gone=cpu"], ["pin 'gone' matches no node"]),
        (["plan", "affine.plait", "--pin", "add=sim:x"], ["sim:x"]),
        (["plan", "affine.plait", "--shape", "x=2;3"], ["is not NAME=LENGTH"]),
        (["plan", "affine.plait", "--shape", "z=2,3"], ["no input 'z'"]),
        (["plan", "affine.plait", "--shape", "x=2,4"], ["'x' must be", "[2, 4]"]),
        (["plan", "affine.plait", "--max-in-flight", "0"], ["--max-in-flight"]),
        (["profile", "affine.plait", "--repeat", "0"], ["--repeat"]),
        (["stream", "affine.plait"], ["--count"]),
        (["stream", "affine.plait", "--count", "1", "--output", "x.npy"], ["cannot write x.npy"]),
        (["convert", "affine.plait", "o.pb"], ["does not write .pb"]),
        (["convert", "affine.plait", "gone/o.plait"], ["cannot write"]),
        (["stream", "affine.plait", "--output", "-"], ["'-' is not the name of a file", "./-"]),
        (["run", "affine.plait", "--trace", "-"], ["'-' is not the name of a file"]),
        (["plan", "affine.plait", "--save", "-"], ["'-' is not the name of a file"]),
        (["plan", "affine.plait", "--html", "-"], ["'-' is not the name of a file"]),
        (["convert", "affine.plait", "-"], ["'-' is not the name of a file"]),
        (["profile", "affine.plait", "--costs", "-"], ["'-' is not the name of a file"]),
        (["devices", "cpu", "--measure", "-"], ["'-' is not the name of a file"]),
        (["pack", "-"], ["'-' is not the name of a file"]),
        (["fly", "affine.plait"], ["No such command 'fly'"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_a_mistake_gets_one_message_and_exit_code_2(
    folder: Path, arguments: Sequence[str], expected: Sequence[str]
) -> None:
    assert_mistake(plait(folder, *arguments), *expected)


@pytest.mark.parametrize("saved", ["affine.plait", "affine.plan"])
def test_a_dash_is_a_model_or_plan_that_comes_in_on_the_standard_input(
    folder: Path, saved: str
) -> None:
    pl.plan(pl.load(folder / "affine.plait")).save(folder / "affine.plan")
    expected = plait(folder, "plan", saved, "--shape", "x=2,3", "--nodes")
    stdin = (folder / saved).read_bytes()
    found = plait(folder, "plan", "-", "--shape", "x=2,3", "--nodes", stdin=stdin)
    assert "double" in expected.stdout
    assert (found.exit_code, found.stdout) == (0, expected.stdout)


def test_an_empty_standard_input_is_a_mistake(folder: Path) -> None:
    assert_mistake(plait(folder, "plan", "-", stdin=b""), "the file is empty")


def test_a_kernel_that_fails_is_no_mistake_of_the_command_line(folder: Path) -> None:
    arguments = ("--import", "cli_test_operators.py", "--input", "x=items/1.npy")
    result = plait(folder, "run", "refuse_negative.plait", *arguments)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("error: ValueError: a negative number\n  at:  node 'check'")


def test_a_model_of_unknown_operators_says_how_to_get_them(folder: Path) -> None:
    done = plait_process(folder, "plan", "announce.plait")
    assert (done.returncode, done.stdout) == (2, "")
    assert "cli_test.announce" in done.stderr
    assert "Traceback" not in done.stderr


# processes


def test_a_process_prints_json_and_nothing_else(folder: Path) -> None:
    done = plait_process(
        folder, "stream", "affine.plait", "--count", "5", "--json", "--shape", "x=1,3"
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["done"] == 5


def test_a_process_ends_with_the_code_of_a_mistake(folder: Path) -> None:
    done = plait_process(folder, "run", "nowhere.plait")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: there is no such file\n  at:  nowhere.plait\n  fix: ")


@pytest.mark.skipif(
    signal.getsignal(signal.SIGINT) is signal.SIG_IGN, reason="Ctrl-C is ignored here, as by nohup"
)
@pytest.mark.parametrize("as_json", [False, True], ids=["text", "json"])
def test_ctrl_c_ends_a_stream_with_code_130_and_says_what_was_done(
    folder: Path, as_json: bool
) -> None:
    command = [sys.executable, "-m", "plait", "stream", "announce.plait", "--count", "100000000"]
    command += ["--json"] if as_json else []
    process = subprocess.Popen(
        [*command, "--import", "cli_test_operators.py"],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdout is not None
        for _ in range(4):  # one item is under way: some before it are done
            assert process.stdout.readline() == "running\n"
        process.send_signal(signal.SIGINT)
        told, errors = process.communicate(timeout=WAIT_S)
    assert (process.returncode, errors) == (130, "")
    summary = told[told.rindex("running\n") + len("running\n") :] if "running" in told else told
    if as_json:
        found = json.loads(summary)
        assert found["interrupted"]
        assert found["done"] >= 1
        assert found["failures"] == []
    else:
        assert re.match(r"interrupted after [1-9]\d* items in \S+ s: \S+ items/s, up to", summary)


def test_a_terminal_sees_progress(folder: Path) -> None:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "plait", "stream", "affine.plait", "--count", "20"]
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100"}
    process = subprocess.Popen(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=theirs, env=environment
    )
    os.close(theirs)
    with process:
        shown = _read_all(ours)
        process.communicate(timeout=WAIT_S)
    os.close(ours)
    assert process.returncode == 0
    assert "streaming" in shown
    assert "20/20" in shown


def _read_all(descriptor: int) -> str:
    chunks = []
    while True:
        try:
            chunk = os.read(descriptor, 65536)
        except OSError:  # how Linux says that the other end is closed
            break
        if not chunk:
            break
        chunks.append(chunk)
    return b"".join(chunks).decode()


def test_without_click_one_line_names_the_extra(tmp_path: Path) -> None:
    code = (
        "import sys, importlib.util as u; real = u.find_spec\n"
        "u.find_spec = lambda name, *rest: None if name == 'click' else real(name, *rest)\n"
        "from plait.__main__ import main; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"the command line needs click: {get_install_command('cli')}\n"


@pytest.mark.parametrize(
    "command", ["run", "plan", "profile", "stream", "devices", "convert", "simulate"]
)
def test_every_command_explains_its_exit_codes(folder: Path, command: str) -> None:
    result = plait(folder, command, "--help")
    assert result.exit_code == 0
    assert "130  interrupted" in result.stdout


def test_version_is_the_package_s(folder: Path) -> None:
    assert plait(folder, "--version").stdout == f"plait {pl.__version__}\n"


def test_help_needs_neither_trio_nor_rich() -> None:
    code = (
        "import sys; from plait.cli import cli; cli(['--help'], standalone_mode=False)\n"
        "print([name for name in ('trio', 'rich', 'onnx') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("[]\n")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
def test_a_full_disk_gets_one_line(folder: Path) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "plait", "plan", "affine.plait"],
            cwd=folder,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        "error: cannot write the output: No space left on device",
    ]


def test_an_imported_module_that_exits_is_named(folder: Path) -> None:
    (folder / "leaves.py").write_text("import sys; sys.exit(3)")
    result = plait(folder, "plan", "affine.plait", "--import", "leaves.py")
    assert_mistake(result, "cannot import 'leaves.py': SystemExit: 3")


@pytest.mark.parametrize(
    ("argument", "shown"),
    [
        (Argument("bounds", {"n": 64}), "--bound n=64"),
        (Argument("bounds", {"a.shape[1]": (2, 64)}), "--bound 'a.shape[1]=2:64'"),
        (Argument("shapes", {"x": (1, 3), "y": (2,)}), "--shape x=1,3 --shape y=2"),
    ],
)
def test_errors_spell_arguments_as_options(
    argument: Argument, shown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    error = PlaitError("too long", fix=Fix("plan by ", argument, " alone"))
    print_error(error, where="item 1: ")
    assert capsys.readouterr().err == f"error: item 1: too long\n  fix: plan by {shown} alone\n"


def test_what_a_user_wrote_is_not_taken_for_an_argument(capsys: pytest.CaptureFixture[str]) -> None:
    print_error(PlaitError("too long", fix="call it bounds={'n': 64}"))
    assert "call it bounds={'n': 64}" in capsys.readouterr().err
