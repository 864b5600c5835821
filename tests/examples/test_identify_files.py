from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import plait as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from patience import WAIT_S

pytest.importorskip("onnx")
magika = pytest.importorskip("magika")

import identify_files  # noqa: E402 - needs the path that conftest.py adds
import magika_pipeline  # noqa: E402

SCRIPT = Path(__file__).resolve().parents[2] / "examples" / "identify_files.py"
BLANKS = b" \t\n\r\x0b\x0c"


@pytest.fixture(scope="module")
def oracle() -> Any:
    return magika.Magika()


def contents() -> st.SearchStrategy[bytes]:
    """Bytes with long blank runs, of lengths around those where the rules change."""
    blank = _repeated(st.sampled_from([b" ", b"\n", b"\r\n", BLANKS]))
    dense = _repeated(st.binary(min_size=1, max_size=9))
    pieces = st.one_of(blank, dense, st.binary(max_size=40), st.text(max_size=20).map(str.encode))
    return st.lists(pieces, max_size=6).map(b"".join)


def _repeated(unit: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    times = st.one_of(st.integers(0, 12), st.sampled_from([200, 1023, 1024, 4090, 4096, 5000]))
    return st.builds(lambda body, n: (body * n)[:9000], unit, times)


def ends(content: bytes) -> tuple[bytes, bytes]:
    return content[:4096], content[-4096:]


@pytest.mark.extended
@given(content=contents())
@settings(max_examples=150, deadline=None)
def test_features_are_those_that_magika_cuts(content: bytes) -> None:
    stream = magika.types.Seekable(io.BytesIO(content))
    wanted = magika.Magika._extract_features_from_seekable(stream, 1024, 0, 1024, 256, 4096, False)
    got = magika_pipeline.cut_features(*ends(content))
    assert got.tolist() == wanted.beg + wanted.end


@given(content=contents())
@settings(max_examples=150, deadline=None)
def test_verdicts_are_those_of_magika(content: bytes, oracle: Any) -> None:
    stream = magika.types.Seekable(io.BytesIO(content))
    result, features = oracle._get_result_or_features_from_seekable(stream)
    tokens = magika_pipeline.cut_features(*ends(content))
    verdict = magika_pipeline.judge(ends(content)[0], tokens)
    if features is not None:
        assert verdict == magika_pipeline.ASK_MODEL
    else:
        assert magika_pipeline.labels()[verdict] == str(result.output.label)


@given(
    best=st.integers(0, magika_pipeline.N_SCORES - 1),
    top=st.one_of(st.floats(0, 1, width=32), st.sampled_from([0.5, 0.75, 0.9, 0.95])),
)
@settings(max_examples=200, deadline=None)
def test_the_chosen_label_obeys_magikas_thresholds(best: int, top: float, oracle: Any) -> None:
    scores = np.zeros((1, magika_pipeline.N_SCORES), np.float32)
    scores[0, best] = top
    best = int(scores[0].argmax())
    model_label = oracle._model_config.target_labels_space[best]
    score = scores[0].tolist()[best]
    wanted, _ = oracle._get_output_label_from_dl_label_and_score(model_label, score)
    ask = np.array([magika_pipeline.ASK_MODEL], np.int32)
    label, got = magika_pipeline.choose_label(scores, ask)
    assert (magika_pipeline.labels()[label[0]], got[0]) == (str(wanted), scores[0, best])


def test_a_verdict_outranks_the_scores() -> None:
    scores = np.full((1, magika_pipeline.N_SCORES), 0.99, np.float32)
    label, score = magika_pipeline.choose_label(scores, np.array([17], np.int32))
    assert (label.tolist(), score.tolist()) == ([17], [1.0])


@pytest.mark.parametrize("path", ["a", "/tmp/ü/日本", os.fsdecode(b"/x/\xff\xfe"), "x" * 4096])
def test_a_path_survives_encoding(path: str) -> None:
    assert magika_pipeline.decode_path(magika_pipeline.encode_path(path)) == path


def test_a_path_that_is_too_long_is_refused() -> None:
    with pytest.raises(ValueError, match="4097 bytes, 4096 are possible"):
        magika_pipeline.encode_path("x" * 4097)


def test_only_regular_files_outside_hidden_folders_are_listed(tmp_path: Path) -> None:
    for name in ("b.txt", "a/c.txt", ".git/config", "a/.hidden"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")
    (tmp_path / "link").symlink_to(tmp_path / "b.txt")
    os.mkfifo(tmp_path / "pipe")
    listed = [str(path.relative_to(tmp_path)) for path in identify_files.list_files(tmp_path)]
    assert listed == ["b.txt", "a/.hidden", "a/c.txt"]


@pytest.fixture(scope="module")
def plan() -> pl.Plan:
    return identify_files.plan_for(("worker:0", "cpu"), max_in_flight=4)


def test_files_are_read_in_the_worker_and_scored_on_the_cpu(plan: pl.Plan) -> None:
    where = dict(plan.assignment)
    assert where.pop("read") == "worker:0"
    assert set(where.values()) == {"cpu"}


@pytest.mark.extended
async def test_every_file_of_the_corpus_gets_magikas_label(
    plan: pl.Plan, corpus: list[Path], oracle: Any
) -> None:
    found = await identify_files.identify(plan, corpus, max_in_flight=4)
    results = oracle.identify_paths(corpus)
    wanted = {result.path: str(result.output.label) for result in results}
    assert len(corpus) >= 100
    assert len(set(wanted.values())) >= 50
    assert {file.path: file.label for file in found} == wanted


@pytest.mark.extended
async def test_scores_are_close_to_those_of_magika(
    plan: pl.Plan, corpus: list[Path], oracle: Any
) -> None:
    # The network's variances cancel: batched or not, its scores differ by 1e-4 in onnxruntime
    # itself, and on a few bytes double precision changes them by 0.3.
    files = [path for path in corpus if path.stat().st_size > 100][:30]
    found = await identify_files.identify(plan, files, max_in_flight=4)
    wanted = [result.score for result in oracle.identify_paths(files)]
    np.testing.assert_allclose([file.score for file in found], wanted, atol=1e-3)


async def test_a_file_that_vanished_does_not_stop_the_others(
    plan: pl.Plan, corpus: list[Path], tmp_path: Path
) -> None:
    gone = tmp_path / "gone"
    first, second = corpus[:2]
    found = await identify_files.identify(plan, [first, gone, second], max_in_flight=2)
    assert [file.path for file in found] == [first, gone, second]
    assert [file.error is None for file in found] == [True, False, True]
    assert "No such file" in str(found[1].error)


def run_script(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=False)


@pytest.mark.slow
def test_the_script_prints_types_and_a_rate(tmp_path: Path) -> None:
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/tiny\xff")).write_text("hi")
    (tmp_path / "page.json").write_text('{"key": [1, 2, 3], "other": {"a": null}}')
    trace = tmp_path / "trace.json"
    done = run_script(tmp_path, "--limit", "2", "--trace", trace)
    assert (done.returncode, done.stderr) == (0, "")
    assert "page.json" in done.stdout
    assert "tiny\N{REPLACEMENT CHARACTER}" in done.stdout
    assert "2 files in" in done.stdout
    assert trace.stat().st_size > 0


@pytest.mark.extended
def test_the_script_lists_the_first_files_and_saves_a_page(tmp_path: Path) -> None:
    for name in ("a.txt", "b.txt", "c.txt"):
        (tmp_path / name).write_text("hi")
    page = tmp_path / "page.html"
    done = run_script(tmp_path, "--show", "1", "--html", page)
    assert (done.returncode, done.stderr) == (0, "")
    assert "a.txt" in done.stdout
    assert "b.txt" not in done.stdout
    assert "and 2 more: --show 3" in done.stdout
    assert f"{page}, for a browser" in done.stdout
    assert "</html>" in page.read_text()


def test_the_script_names_a_folder_that_is_not_there(tmp_path: Path) -> None:
    done = run_script(tmp_path / "nowhere")
    assert done.returncode == 2
    assert "nowhere is not a folder" in done.stderr


def test_the_pipeline_needs_magikas_files_but_not_its_code() -> None:
    code = (
        "import sys, identify_files; identify_files.plan_for(['cpu'], 1)\n"
        "print([name for name in ('magika', 'onnxruntime') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=SCRIPT.parent
    )
    assert done.stdout == "[]\n"
