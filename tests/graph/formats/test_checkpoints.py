"""Checkpoints: the newest whole one is found, whatever became of the others and of the writer."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import plait as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from patience import WAIT_S
from plait import Checkpoints, GraphError, ParseError
from plait.graph.formats.safetensors import read_weights

SCRIPT = Path(__file__).parents[2] / "support" / "checkpoint_moments.py"


def saved(folder: Path, *steps: int, keep: int = 3) -> Checkpoints:
    checkpoints = Checkpoints(folder / "run", keep=keep)
    for step in steps:
        checkpoints.save(step, {"w": np.full(2, step)})
    return checkpoints


def file_of(checkpoints: Checkpoints, step: int) -> Path:
    return checkpoints.folder / f"step-{step:08d}.safetensors"


def damage(file: Path, place: int = -1) -> None:
    data = bytearray(file.read_bytes())
    data[place] ^= 1
    file.write_bytes(data)


def test_the_newest_is_found_with_all_that_was_saved(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    state = np.random.default_rng(3).bit_generator.state
    path = checkpoints.save(7, {"w": np.eye(2), "b": np.float32(3)}, {"rng": state})

    newest = Checkpoints(tmp_path).newest()
    assert newest is not None
    assert (newest.step, newest.path, newest.notes) == (7, path, {"rng": state})
    assert newest.variables["w"].tolist() == [[1, 0], [0, 1]]
    assert newest.variables["b"].shape == ()


@pytest.mark.parametrize("folder", [".", "nothing/here"])
def test_there_is_no_newest_where_none_was_saved(tmp_path: Path, folder: str) -> None:
    assert Checkpoints(tmp_path / folder).newest() is None


@pytest.mark.parametrize("keep", [1, 2, 5])
def test_so_many_are_kept_as_are_asked_for(tmp_path: Path, keep: int) -> None:
    assert saved(tmp_path, 1, 5, 6, 20, keep=keep).steps() == (1, 5, 6, 20)[-keep:]


def test_steps_are_ordered_as_numbers(tmp_path: Path) -> None:
    checkpoints = saved(tmp_path, 99_999_999, 100_000_000)
    newest = checkpoints.newest()
    assert newest is not None
    assert newest.step == 100_000_000


def test_other_files_in_the_folder_are_left_alone(tmp_path: Path) -> None:
    others = ["notes.txt", "step-x.safetensors", "step-00000001.safetensors.bak", ".hidden"]
    (tmp_path / "run").mkdir()
    for name in others:
        (tmp_path / "run" / name).write_text("mine")
    checkpoints = saved(tmp_path, 1, 2, keep=1)

    assert checkpoints.steps() == (2,)
    assert set(others) < {file.name for file in checkpoints.folder.iterdir()}


def test_what_a_killed_writer_left_is_cleared_away_by_the_next(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    draft = tmp_path / "run" / ".step-00000009.safetensors.0123456789abcdef"
    draft.write_bytes(b"half of it")

    assert Checkpoints(tmp_path / "run").newest() is None
    assert draft.exists()
    saved(tmp_path, 10)
    assert not draft.exists()


def test_a_damaged_one_is_left_out_with_a_warning(tmp_path: Path) -> None:
    checkpoints = saved(tmp_path, 1, 2, 3)
    damage(file_of(checkpoints, 3))
    file_of(checkpoints, 2).write_bytes(b"")

    with pytest.warns(RuntimeWarning) as caught:
        newest = checkpoints.newest()
    assert newest is not None
    assert newest.step == 1
    first, second = (str(warning.message) for warning in caught)
    assert "a checkpoint is left out: its checksum is wrong" in first
    assert "step-00000003" in first
    assert "the file is empty" in second


@pytest.fixture(scope="module")
def only(tmp_path_factory: pytest.TempPathFactory) -> Path:
    checkpoints = Checkpoints(tmp_path_factory.mktemp("only"))
    arrays = {"w": np.arange(6, dtype="float32"), "on": np.array([True])}
    return checkpoints.save(1, arrays, {"a": 1})


@settings(max_examples=150)
@given(place=st.integers(0, 10**6), change=st.integers(1, 255))
def test_no_change_of_a_byte_goes_unnoticed(only: Path, place: int, change: int) -> None:
    sound = only.read_bytes()
    data = bytearray(sound)
    data[place % len(data)] ^= change
    try:
        only.write_bytes(data)
        with pytest.warns(RuntimeWarning, match="left out"):
            assert Checkpoints(only.parent).newest() is None
    finally:
        only.write_bytes(sound)
    assert Checkpoints(only.parent).newest() is not None


@settings(max_examples=50)
@given(length=st.integers(0, 10**6), more=st.binary(max_size=3))
def test_no_other_length_goes_unnoticed(only: Path, length: int, more: bytes) -> None:
    sound = only.read_bytes()
    try:
        only.write_bytes(sound[: length % len(sound)] + more)
        with pytest.warns(RuntimeWarning, match="left out"):
            assert Checkpoints(only.parent).newest() is None
    finally:
        only.write_bytes(sound)


def test_values_are_for_exactly_the_variables_that_were_saved(tmp_path: Path) -> None:
    newest = saved(tmp_path, 1).newest()
    assert newest is not None

    assert newest.matching(["w"]) is newest.variables
    with pytest.raises(GraphError, match="it has no variable 'b', 'c'"):
        newest.matching(["w", "c", "b"])
    with pytest.raises(GraphError, match="its variable 'w' is unknown here"):
        newest.matching([])


def test_a_file_of_another_kind_is_no_checkpoint(tmp_path: Path) -> None:
    checkpoints = saved(tmp_path, 1)
    pl.save_weights({"w": np.ones(2)}, file_of(checkpoints, 1), {"step": "1"})

    with pytest.raises(ParseError, match="not a checkpoint"):
        checkpoints.load(1)


def test_a_checkpoint_is_a_safetensors_file_like_others(tmp_path: Path) -> None:
    checkpoints = saved(tmp_path, 4)
    arrays, metadata = read_weights(file_of(checkpoints, 4).read_bytes())

    assert arrays["w"].tolist() == [4, 4]
    assert metadata["step"] == "4"


def test_one_of_the_steps_that_are_kept_can_be_loaded(tmp_path: Path) -> None:
    checkpoints = saved(tmp_path, 1, 2)

    assert checkpoints.load(1).variables["w"].tolist() == [1, 1]
    with pytest.raises(ParseError, match="no checkpoint of step 3") as caught:
        checkpoints.load(3)
    assert caught.value.fix == "load one of 1, 2"


@pytest.mark.parametrize("step", [1, 2])
def test_a_run_that_begins_anew_does_not_overwrite_another(tmp_path: Path, step: int) -> None:
    checkpoints = saved(tmp_path, 1, 2)
    with pytest.raises(GraphError, match="there is a whole checkpoint of step") as caught:
        saved(tmp_path, step)

    assert "newest()" in str(caught.value.fix)
    assert checkpoints.steps() == (1, 2)


def test_a_run_goes_on_before_damaged_checkpoints_and_clears_them_away(tmp_path: Path) -> None:
    checkpoints = saved(tmp_path, 1, 2, 3)
    damage(file_of(checkpoints, 2))
    damage(file_of(checkpoints, 3))
    saved(tmp_path, 2)

    assert checkpoints.steps() == (1, 2)
    assert checkpoints.load(2).variables["w"].tolist() == [2, 2]


def test_arrays_of_a_checkpoint_outlive_its_file(tmp_path: Path) -> None:
    newest = saved(tmp_path, 1).newest()
    saved(tmp_path, 2, 3, keep=1)

    assert newest is not None
    assert not newest.path.exists()
    assert newest.variables["w"].tolist() == [1, 1]


@pytest.mark.parametrize(
    ("step", "variables", "notes", "message"),
    [
        (-1, {}, None, "-1 is not a step"),
        (True, {}, None, "True is not a step"),
        (1.5, {}, None, "1.5 is not a step"),
        (1, {"w": np.ones(1, "complex128")}, None, "hold no complex128"),
        (1, {}, {"rng": np.random.default_rng(0)}, "the notes cannot be written"),
    ],
)
def test_what_cannot_be_saved_leaves_the_folder_as_it_is(
    tmp_path: Path, step: Any, variables: Any, notes: Any, message: str
) -> None:
    with pytest.raises(GraphError, match=message) as caught:
        Checkpoints(tmp_path / "run").save(step, variables, notes)
    assert caught.value.fix
    assert list(tmp_path.iterdir()) == []


def test_a_step_may_be_what_a_session_counted(tmp_path: Path) -> None:
    assert Checkpoints(tmp_path).save(np.array(3), {}).name == "step-00000003.safetensors"


def test_notes_that_no_reader_would_take_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("plait.graph.formats.safetensors.LONGEST", 1000)
    with pytest.raises(GraphError, match="names and metadata take 2"):
        Checkpoints(tmp_path).save(1, {}, {"losses": [0.5] * 500})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("keep", [0, -1, 1.5, True])
def test_a_number_to_keep_that_is_none_is_refused(tmp_path: Path, keep: Any) -> None:
    with pytest.raises(GraphError, match="cannot be kept"):
        Checkpoints(tmp_path, keep=keep)


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(GraphError, match="cannot list"):
        Checkpoints(tmp_path / "file").save(1, {})


def test_older_ones_go_only_when_the_new_one_is_safe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Data, then its name, then what it replaces: else a loss of power may take both."""
    checkpoints = saved(tmp_path, 1, keep=1)
    seen: list[str] = []
    fsync, replace, unlink = os.fsync, os.replace, os.unlink

    def synced(number: int) -> None:
        seen.append("sync folder" if stat.S_ISDIR(os.fstat(number).st_mode) else "sync file")
        fsync(number)

    def renamed(source: Any, target: Any) -> None:
        seen.append("rename")
        replace(source, target)

    def deleted(path: Any, **options: Any) -> None:
        unlink(path, **options)
        seen.append(f"delete {Path(path).name}")

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", renamed)
    monkeypatch.setattr(os, "unlink", deleted)
    checkpoints.save(2, {"w": np.ones(2)})

    last = "delete step-00000001.safetensors"
    assert seen == ["sync file", "rename", "sync folder", last]


def test_a_full_disk_leaves_the_older_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoints = saved(tmp_path, 1, keep=1)

    def full(number: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(GraphError, match="No space left on device"):
            checkpoints.save(2, {"w": np.ones(2)})
    assert [file.name for file in checkpoints.folder.iterdir()] == ["step-00000001.safetensors"]


def test_one_that_cannot_be_read_just_now_is_not_taken_for_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints = saved(tmp_path, 1, 2)

    def busy(path: Any) -> Any:
        raise ParseError("cannot read the file") from OSError(24, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr("plait.graph.formats.checkpoints.read_file", busy)
        for act in (checkpoints.newest, lambda: checkpoints.save(1, {})):
            with pytest.raises(ParseError, match="cannot read the file"):
                act()
    assert checkpoints.steps() == (1, 2)


STEPS = st.integers(0, 9)
ACTIONS = st.lists(
    st.tuples(st.sampled_from(["save", "save", "save", "damage"]), STEPS), max_size=12
)


@settings(max_examples=60)
@given(actions=ACTIONS, keep=st.integers(1, 3))
def test_whatever_happens_the_newest_whole_one_is_found(
    tmp_path_factory: pytest.TempPathFactory, actions: list[tuple[str, int]], keep: int
) -> None:
    checkpoints = Checkpoints(tmp_path_factory.mktemp("run"), keep=keep)
    whole: dict[int, bool] = {}
    for action, step in actions:
        later_ones = [known for known in whole if known >= step]
        if action == "damage":
            if whole.get(step):
                damage(file_of(checkpoints, step))
                whole[step] = False
        elif any(whole[known] for known in later_ones):
            with pytest.raises(GraphError, match="already"):
                checkpoints.save(step, {"w": np.full(2, step)})
        else:
            checkpoints.save(step, {"w": np.full(2, step)})
            left = {known: is_whole for known, is_whole in whole.items() if known < step}
            whole = dict([*sorted(left.items()), (step, True)][-keep:])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            newest = checkpoints.newest()
        assert checkpoints.steps() == tuple(sorted(whole))
        expected = max((known for known in whole if whole[known]), default=None)
        assert (newest.step if newest else None) == expected


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_writer_that_is_killed_at_any_line_leaves_a_whole_newest(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-P", "-W", "error", str(SCRIPT), str(tmp_path)],
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=WAIT_S,
    )
    assert ran.returncode == 0, ran.stderr
    moments, saved_although_killed = map(int, ran.stdout.split())
    assert moments > 100
    assert 0 < saved_although_killed < moments
