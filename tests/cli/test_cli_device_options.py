"""``--device-option``. Rows T19, T20 of the seeds."""

from __future__ import annotations

from pathlib import Path

import plait as pl
import pytest
from command_line import assert_mistake, plait
from plait.cli.parsing import parse_device_options
from plait.devices import find
from small_graphs import doubling


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    pl.save(doubling(), tmp_path / "doubling.plait")
    return tmp_path


def test_devices_are_made_with_options(folder: Path) -> None:
    said = ("--device-option", "worker:0.threads=1", "--device-option", "cpu.threads=2")
    more = ("--devices", "cpu,worker:0", "--save", "doubling.plan")
    assert plait(folder, "plan", "doubling.plait", *said, *more).exit_code == 0
    made = pl.load_plan(folder / "doubling.plan").prototypes
    assert made["cpu"].options == {"threads": 2}  # type: ignore[attr-defined]
    assert made["worker:0"].options == {"threads": 1}  # type: ignore[attr-defined]


def test_options_of_providers_are_written_as_in_code() -> None:
    said = ("ort:openvino.precision=f16", 'ort:cuda:0.settings={"a.b": "c=d"}')
    parsed = parse_device_options(said)
    assert parsed == {
        "ort:openvino": {"precision": "f16"},
        "ort:cuda:0": {"settings": '{"a.b": "c=d"}'},
    }
    for name, options in parsed.items():
        assert find(name, options).options == options  # type: ignore[attr-defined]


def test_the_device_is_cpu_where_none_is_named(folder: Path) -> None:
    said = ("--input", "x=random", "--device-option", "cpu.threads=1")
    done = plait(folder, "run", "doubling.plait", *said)
    assert done.exit_code == 0


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("threads=2", "is not DEVICE.OPTION=VALUE"),
        ("cpu.threads", "is not DEVICE.OPTION=VALUE"),
        ("cpu.threads=", "is not DEVICE.OPTION=VALUE"),
        ("ort.threads=2", "names ort, and the devices are cpu"),
        ("cpu.thread=2", "did you mean 'threads'?"),
        ("cpu.threads=0", "a whole number from 1 to 4096"),
    ],
)
def test_what_makes_no_sense_is_a_mistake(folder: Path, said: str, expected: str) -> None:
    assert_mistake(plait(folder, "plan", "doubling.plait", "--device-option", said), expected)


def test_an_option_is_given_once(folder: Path) -> None:
    said = ("--device-option", "cpu.threads=1", "--device-option", "cpu.threads=2")
    assert_mistake(plait(folder, "plan", "doubling.plait", *said), "two things of 'threads'")


def test_devices_of_a_saved_plan_are_made_with_other_options(folder: Path) -> None:
    plait(folder, "plan", "doubling.plait", "--save", "doubling.plan")
    said = ("--device-option", "cpu.threads=1")
    done = plait(folder, "run", "doubling.plan", "--input", "x=random", *said)
    assert done.exit_code == 0


def test_a_saved_plan_is_for_its_devices(folder: Path) -> None:
    plait(folder, "plan", "doubling.plait", "--save", "doubling.plan")
    done = plait(folder, "plan", "doubling.plan", "--device-option", "worker:0.threads=1")
    assert_mistake(done, "the plan is for cpu, not for worker:0")
