"""Devices of which the kind says little: measured when a plan first has to choose, then known."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import plait as pl
import pytest
from plait.devices.cache_folder import FIGURES as FOLDER
from plait.devices.device import Device, Varying
from plait.devices.errors import DeviceUnavailableError
from plait.devices.kinds import guess
from plait.devices.model import DeviceModel
from plait.devices.opencl.device import OpenClDevice
from plait.scheduler.costs import Costs, first_use
from plait.scheduler.costs.figures import Link
from plait.scheduler.costs.first_use import with_first_use
from plait.scheduler.planner import request
from pocl import pocl_device
from timed_device import LIKE, RestlessDevice, TimedDevice

FIGURES = (
    "flops_per_s", "bytes_per_s", "launch_s", "submit_s", "copy_bytes_per_s", "copy_latency_s",
)  # fmt: skip


class Card(TimedDevice):
    """Hardware of any kind; what is measured is a spare one."""

    def __init__(self, model: DeviceModel = LIKE, told: str = "card of 12 units") -> None:
        super().__init__(model=model)
        self.told, self.spares = told, list[TimedDevice]()

    def hardware(self) -> str:
        return self.told

    def spare(self) -> TimedDevice:
        self.spares.append(self.made())
        return self.spares[-1]

    def made(self) -> TimedDevice:
        return TimedDevice(model=self._like)

    def clock(self) -> int:
        return self.spares[-1].clock()


class Busy(Card):
    """One on a machine where no two runs are alike."""

    def made(self) -> TimedDevice:
        return RestlessDevice()


class BrokenDevice(TimedDevice):
    def open(self, cores: int | None = None) -> None:
        raise DeviceUnavailableError("it does not start")


class Broken(Card):
    """One that does not start."""

    def made(self) -> TimedDevice:
        return BrokenDevice()


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return where figures are kept, of which this process knows nothing yet."""
    monkeypatch.setenv(FOLDER, str(tmp_path / "figures"))
    forget(monkeypatch)
    return tmp_path / "figures"


def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do as another process."""
    monkeypatch.setattr(first_use, "_known", {})


def figures(card: Card) -> DeviceModel:
    devices = {card.name: card}
    return with_first_use(Costs.of(devices), devices, clock=card.clock).model(card.name)


def check_like(model: DeviceModel, expected: DeviceModel) -> None:
    assert not model.is_guess
    for name in FIGURES:
        assert getattr(model, name) == pytest.approx(getattr(expected, name), rel=0.2), name


def test_it_is_measured_once_for_all_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second, third = Card(), Card(), Card()
    found = figures(first)
    check_like(found, LIKE)
    assert len(first.spares) == 1
    assert not first.runs  # it may be at work for a session
    assert figures(second) == found
    forget(monkeypatch)
    assert figures(third) == found
    assert not second.spares
    assert not third.spares


def test_other_hardware_is_measured_for_itself() -> None:
    faster = DeviceModel(**{**LIKE.to_dict(), "supports": None, "flops_per_s": 3e10})
    figures(Card())
    check_like(figures(Card(faster, "card of 90 units")), faster)


def test_other_code_measures_again(monkeypatch: pytest.MonkeyPatch) -> None:
    figures(Card())
    forget(monkeypatch)
    monkeypatch.setattr(first_use, "hash_sources", lambda *_: "of another commit")
    again = Card()
    figures(again)
    assert again.spares


def spoil(folder: Path, content: bytes) -> None:
    (path,) = folder.iterdir()
    path.write_bytes(content)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="POSIX has pipes with names")
def test_a_pipe_in_the_folder_is_not_waited_for(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = figures(Card())
    (path,) = folder.iterdir()
    path.unlink()
    os.mkfifo(path)
    forget(monkeypatch)
    card = Card()
    assert figures(card) == found
    assert card.spares


@pytest.mark.parametrize("content", [b"", b"{", b'{"format": "plait costs", "version": 1}'])
def test_files_that_are_damaged_are_written_anew(
    content: bytes, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = figures(Card())
    spoil(folder, content)
    for measures in (True, False):
        forget(monkeypatch)
        card = Card()
        assert figures(card) == found
        assert bool(card.spares) == measures


def test_a_folder_that_cannot_be_written_costs_a_measurement_in_each_process(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.write_text("a file in its place")
    for _ in range(2):
        forget(monkeypatch)
        card = Card()
        check_like(figures(card), LIKE)
        assert len(card.spares) == 1


def test_what_is_in_doubt_is_not_kept(folder: Path) -> None:
    card = Busy()
    model, built_in = figures(card), guess("timed")
    assert model.flops_per_s == built_in.flops_per_s
    assert not folder.exists()
    figures(card)
    assert len(card.spares) == 1  # nor is the machine kept busy with it


def test_a_device_that_does_not_start_is_what_its_kind_is() -> None:
    assert figures(Broken()).is_guess


def test_figures_that_are_given_go_first() -> None:
    card = Card()
    devices, given = {"timed": card}, DeviceModel(flops_per_s=5.0)
    costs = Costs.of(devices).merged(Costs({"timed": given}))
    assert with_first_use(costs, devices).model("timed") is given
    assert not card.spares


@pytest.mark.parametrize("told", ["off", "0"])
def test_it_can_be_turned_off(told: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FOLDER, told)
    card = Card()
    assert figures(card).is_guess
    assert not card.spares
    assert not folder.exists()


# In plans


SIDE = 256


def network() -> pl.Graph:
    b = pl.GraphBuilder("network")
    x = b.input("x", "float32", (SIDE, SIDE))
    b.output("y", b.op("Relu", b.op("MatMul", x, np.ones((SIDE, SIDE), np.float32))))
    return b.build()


@pytest.mark.extended
@pytest.mark.parametrize("name", ["slow", "fast"])
def test_where_nodes_go_follows_from_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    speed = {"slow": 1e-3, "fast": 1e3}[name]
    figures = {each: getattr(guess("cpu"), each) * speed for each in FIGURES[:2]}
    card = Card(DeviceModel(**figures, launch_s=1e-9))
    monkeypatch.setattr(request, "with_first_use", partial(with_first_use, clock=card.clock))
    plan = pl.plan(network(), [card, "cpu"])
    assert len(card.spares) == 1
    assert set(plan.assignment.values()) == {"cpu" if name == "slow" else "timed"}
    assert not plan.costs.is_guess("timed")


@pytest.mark.parametrize(
    ("more", "options"), [(["cpu"], {"strategy": "preference"}), ([], {})], ids=["told", "alone"]
)
def test_nothing_is_measured_where_there_is_no_choice(
    more: list[str], options: dict[str, str]
) -> None:
    card = Card()
    pl.plan(network(), [card, *more], **options)  # type: ignore[arg-type]
    assert not card.spares


def test_opencl_is_such_a_device(folder: Path) -> None:
    device = OpenClDevice(device=pocl_device())
    assert isinstance(device, Varying)
    assert device.capabilities.software in device.hardware()
    assert str(os.cpu_count()) in device.hardware()
    spare = device.spare()
    assert spare is not device
    assert spare.hardware() == device.hardware()


def test_a_plan_for_opencl_goes_by_what_is_found_of_a_spare(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = OpenClDevice(device=pocl_device())
    measured = list[Device]()

    def measure(devices: Mapping[str, Device], **_: object) -> Costs:
        ((name, spare),) = devices.items()
        measured.append(spare)
        links = {("host", name): Link(1e-5, 2e9), (name, "host"): Link(3e-5, 2e9)}
        return Costs({name: replace(device.model, flops_per_s=5e9, is_guess=False)}, links=links)

    monkeypatch.setattr(first_use, "measure", measure)
    model = pl.plan(network(), [device, "cpu"]).costs.model("opencl:0")
    assert model.flops_per_s == 5e9
    assert model.copy_bytes_per_s == pytest.approx(2e9)
    assert model.copy_latency_s == pytest.approx(2e-5)
    assert measured[0] is not device
    (path,) = folder.iterdir()
    assert Costs.load(path).models == {"opencl": model}
