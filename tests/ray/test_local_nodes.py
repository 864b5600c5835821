"""Clusters that do not come up, or are given up on the way: nothing is left of them."""

from __future__ import annotations

import os
from pathlib import Path

import plait as pl
import pytest
from plait.devices.errors import DeviceUnavailableError
from plait.scheduler.ray import nodes
from plait.scheduler.ray.cluster import Cluster
from plait.scheduler.ray.engine import check_reached
from plait.scheduler.ray.nodes import LocalNodes, RayNode


@pytest.fixture(autouse=True)
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return where the folders of clusters are made."""
    monkeypatch.setattr(nodes, "FOLDERS", str(tmp_path))
    return tmp_path


def program(monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    """Have the process run something that is not Ray."""
    monkeypatch.setattr(nodes, "_PROGRAM", code + "\n# {} {} {} {} {} {}")


def test_a_head_that_ends_at_once_is_reported_with_its_last_words(
    monkeypatch: pytest.MonkeyPatch, folders: Path
) -> None:
    program(monkeypatch, "raise SystemExit('no room at all')")
    with pytest.raises(DeviceUnavailableError, match="cannot be started") as raised:
        LocalNodes(RayNode(), 1 << 20, 60.0)
    assert raised.value.at == "no room at all"
    assert os.listdir(folders) == []


def test_a_head_that_takes_too_long_is_killed(
    monkeypatch: pytest.MonkeyPatch, folders: Path
) -> None:
    program(monkeypatch, "import sys; sys.stdin.read(); sys.stdin.read()")
    with pytest.raises(DeviceUnavailableError, match="has ended"):
        LocalNodes(RayNode(), 1 << 20, 0.05)
    assert os.listdir(folders) == []


def test_ctrl_c_while_nodes_start_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, folders: Path
) -> None:
    program(monkeypatch, "import sys; sys.stdin.read()")

    def interrupted(self: LocalNodes, request: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(LocalNodes, "_ask", interrupted)
    with pytest.raises(KeyboardInterrupt):
        pl.ray.cluster("local").__enter__()
    assert os.listdir(folders) == []


def test_a_cluster_that_was_not_entered_says_so() -> None:
    with pytest.raises(DeviceUnavailableError, match="the cluster is not joined"):
        Cluster("local").host("enc")


def test_only_nodes_that_were_started_here_can_be_removed() -> None:
    with pytest.raises(DeviceUnavailableError, match="were not started here"):
        Cluster("auto").remove_node(1)


@pytest.mark.parametrize("name", ["ray:enc", "ray:/cpu", "ray:enc/ray:dec/cpu"])
def test_a_name_without_host_and_device_is_refused(name: str) -> None:
    with pytest.raises(DeviceUnavailableError, match="names no device on a host"):
        Cluster("local").device(name)


@pytest.mark.parametrize("address", ["127.0.0.1:1", "127.0.0.1:99999", "[::1]:1"])
def test_an_address_where_nothing_answers_is_told_at_once(address: str) -> None:
    with pytest.raises(DeviceUnavailableError, match="nothing answers") as caught:
        check_reached(address)
    assert address in str(caught.value)
