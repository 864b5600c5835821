"""Options of devices in plan files: numbers and fixed words alone, the rest is the caller's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import plait as pl
import pytest
from plait.devices import PortableOption
from plait.devices.cpu import CpuDevice
from plait.devices.ort.providers import PROVIDERS, list_options
from plait.devices.registry import register, split_options, unregister
from plait.graph.values.errors import ParseError
from plait.scheduler.ray.payload import make_payload, unpack_plan
from plait.scheduler.reports import requirements
from plait.scheduler.reports.plan_file import dump_plan
from small_graphs import doubling

made: list[Mapping[str, Any]] = []


class CachingDevice(CpuDevice):
    """A cpu with a folder."""

    def __init__(self, name: str, **options: Any) -> None:
        super().__init__(name)
        made.append(options)
        self.options = options


@pytest.fixture(autouse=True)
def npu() -> Iterator[None]:
    register("npu", CachingDevice, options={"level": PortableOption(int), "cache": str})
    made.clear()
    yield
    unregister("npu")


def saved(**options: Any) -> bytes:
    return dump_plan(pl.plan(doubling(), [pl.device("npu", **options)]))


def test_portable_options_come_back() -> None:
    pl.load_plan(saved(level=3))
    assert made[-1] == {"level": 3}


def test_others_are_not_written_and_have_to_be_given() -> None:
    data = saved(level=3, cache="/secret")
    assert b"/secret" not in data
    with pytest.raises(ParseError, match=r"'npu' .* files may not choose: cache") as caught:
        pl.load_plan(data)
    assert "load_plan(path, devices=[plait.device('npu', cache=...)])" in str(caught.value)
    device = pl.device("npu", cache="/mine")
    loaded = pl.load_plan(data, devices=[device])
    assert loaded.prototypes["npu"] is device
    assert pl.run(loaded, {"x": np.ones(4, "float32")})["y"].tolist() == [2] * 4


def test_a_file_that_chooses_a_path_is_refused_before_the_device_is_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(requirements, "split_options", lambda name, options: (options, ()))
        data = saved(cache="/of/a/stranger")
    assert b"/of/a/stranger" in data
    made.clear()
    with pytest.raises(ParseError, match="may not choose: cache"):
        pl.load_plan(data)
    assert made == []


def test_hosts_of_a_cluster_get_all_options() -> None:
    plan = pl.plan(doubling(), [pl.device("npu", level=3, cache="/mine")])
    unpack_plan(*make_payload(plan, None, None).pack(lambda value: value))
    assert made[-1] == {"level": 3, "cache": "/mine"}


@pytest.mark.parametrize(
    "name",
    [
        *("cpu", "worker:0", "worker:cuda:0", "compiled", "ort"),
        *(f"ort:{one.name}:{where}" for one in PROVIDERS for where in one.hardware),
        "ort:AcmeExecutionProvider",
    ],
)
def test_plans_carry_no_path_for_any_device(name: str) -> None:
    free = {"cache": "/x", "settings": "{}"}
    numbers = {"threads": 1, "affinity": (0,), "spinning": True, "precision": "f32"}
    carried, withheld = split_options(name, {**free, **numbers})
    assert carried.keys() <= numbers.keys()
    assert set(free) <= set(withheld)


def test_a_precision_is_one_of_fixed_words() -> None:
    with pytest.raises(ValueError, match="one of model, f32"):
        list_options("ort:openvino", {})["precision"]("/x")


def test_a_file_asks_for_no_million_threads() -> None:
    with pytest.raises(pl.DeviceError, match="from 1 to 4096"):
        pl.device("cpu", threads=1_000_000)
