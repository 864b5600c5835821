from __future__ import annotations

import subprocess
import sys
import wave
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("onnx")
if find_spec("silero_vad") is None:
    pytest.skip("pip install --no-deps silero-vad==6.2.3", allow_module_level=True)

import voice_activity
from voice_activity import Recording

SCRIPT = Path(__file__).resolve().parents[2] / "examples" / "voice_activity.py"


def write(path: Path, samples: np.ndarray, rate: int, n_channels: int = 1) -> Path:
    with wave.open(str(path), "wb") as sound:
        sound.setnchannels(n_channels)
        sound.setsampwidth(2)
        sound.setframerate(rate)
        sound.writeframes((samples * 32768).astype("<i2").tobytes())
    return path


def run_script(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error", str(SCRIPT), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize(
    ("loud", "wanted"),
    [
        ([], []),
        ([3], [(3, 4)]),
        ([0, 1, 2], [(0, 3)]),
        ([0, 1, 5], [(0, 6)]),
        ([0, 1, 6, 9], [(0, 2), (6, 10)]),
    ],
)
def test_short_pauses_do_not_end_a_segment(loud: list[int], wanted: list[tuple[int, int]]) -> None:
    probabilities = np.zeros(12)
    probabilities[loud] = 0.7
    assert voice_activity.segments(probabilities.tolist(), 0.7) == wanted


@pytest.mark.parametrize(("rate", "width"), [(8000, 288), (16000, 576)])
def test_chunks_overlap_by_their_context_and_cover_the_recording(rate: int, width: int) -> None:
    samples = np.arange(1, 2001, dtype=np.float32)
    pieces = list(voice_activity.cut(Recording("ramp", samples, rate)))
    context = width // 9
    assert {piece.shape for piece in pieces} == {(1, width)}
    assert not pieces[0][0, :context].any()
    for before, after in pairwise(pieces):
        np.testing.assert_array_equal(before[0, -context:], after[0, :context])
    together = np.concatenate([piece[0, context:] for piece in pieces])
    np.testing.assert_array_equal(together[: len(samples)], samples)
    assert not together[len(samples) :].any()


def test_the_channels_of_a_file_are_averaged(tmp_path: Path) -> None:
    frames = np.array([[0.5, 0.25], [-0.5, 0.0]])
    recording = voice_activity.read(write(tmp_path / "two.wav", frames, 8000, n_channels=2))
    assert recording.rate == 8000
    np.testing.assert_array_equal(recording.samples, np.array([0.375, -0.25], np.float32))


def test_a_rate_that_the_network_does_not_know_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "cd.wav", np.zeros(10), 44100)
    with pytest.raises(ValueError, match="16 bits at 44100 Hz, not 16 at 8000 or 16000"):
        voice_activity.read(path)


def test_the_script_finds_speech_in_what_it_makes_up() -> None:
    done = run_script()
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("made up at") == 2
    assert " s to " in done.stdout


def test_the_script_hears_nothing_in_silence_on_two_devices(tmp_path: Path) -> None:
    path = write(tmp_path / "silence.wav", np.zeros(16000), 16000)
    done = run_script(path, "--devices", "worker:0,cpu")
    assert (done.returncode, done.stderr) == (0, "")
    assert "silence.wav\n1.0 s of sound" in done.stdout


def test_the_script_names_a_file_that_is_no_recording(tmp_path: Path) -> None:
    path = tmp_path / "words.wav"
    path.write_text("no sound")
    done = run_script(path)
    assert done.returncode == 2
    assert "RIFF" in done.stderr
    assert "Traceback" not in done.stderr
