"""Operators and devices of other packages: found by entry points, imported when asked for."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import plait as pl
import pytest
from installed_packages import Entries, install
from plait.graph.core.operator import find_operator, is_operator, list_operators
from plait.graph.formats.onnx import read_model
from plait.graph.values import installed

pytestmark = pytest.mark.usefixtures("forget_operators")

Install = Callable[[str, str, Entries], None]

DOUBLE = """
import plait as pl

@pl.operator(name={name!r})
def double(x):
    return x * 2
"""


@pytest.fixture
def add(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Return what installs a package of one module, of the same name, for one test."""
    monkeypatch.syspath_prepend(str(tmp_path))
    packages: list[str] = []

    def added(package: str, source: str, entries: Entries) -> None:
        packages.append(package)
        (tmp_path / f"{package}.py").write_text(source)
        install(tmp_path, package, "1.0", entries)
        installed._offers.clear()

    yield added
    for package in packages:
        sys.modules.pop(package, None)
    installed._offers.clear()


def operator_entry(name: str, value: str) -> Entries:
    return {installed.OPERATORS: {name: value}}


def device_entry(name: str, value: str) -> Entries:
    return {installed.DEVICES: {name: value}}


def test_an_operator_of_a_package_is_imported_when_it_is_asked_for(add: Install) -> None:
    add("lc_one", DOUBLE.format(name="lc.Double"), operator_entry("lc.Double", "lc_one"))
    assert "lc.Double" not in list_operators()
    assert "lc_one" not in sys.modules
    assert find_operator("lc.Double").inputs == "x"
    assert "lc_one" in sys.modules


def test_an_entry_point_may_stand_for_all_names_that_begin_with_its_own(add: Install) -> None:
    add("lc_many", DOUBLE.format(name="lc.math.Double"), operator_entry("lc", "lc_many"))
    assert is_operator("lc.math.Double")
    assert not is_operator("lc.math.Triple")
    assert not is_operator("lcx.math.Double")


def test_a_graph_uses_it_by_name(add: Install) -> None:
    add("lc_graph", DOUBLE.format(name="lc.Double"), operator_entry("lc.Double", "lc_graph"))
    b = pl.GraphBuilder("g")
    b.output("y", b.op("lc.Double", b.input("x", "float32", (2,))))
    assert b.build().tensors["y"] == pl.TensorSpec("float32", (2,))


def test_a_node_of_a_foreign_domain_is_that_domains_operator(add: Install) -> None:
    helper = pytest.importorskip("onnx.helper")
    add("lc_domain", DOUBLE.format(name="lc.Double"), operator_entry("lc", "lc_domain"))
    ends = [helper.make_tensor_value_info(name, 1, [2]) for name in "xy"]
    node = helper.make_node("Double", ["x"], ["y"], domain="lc")
    versions = [helper.make_opsetid("", 17), helper.make_opsetid("lc", 1)]
    graph = helper.make_graph([node], "g", ends[:1], ends[1:])
    model = helper.make_model(graph, opset_imports=versions)
    (found,) = read_model(model, "model").nodes
    assert found.op == "lc.Double"


def test_what_is_registered_wins(add: Install) -> None:
    add("lc_relu", "raise AssertionError('imported')", operator_entry("Relu", "lc_relu"))
    assert find_operator("Relu").name == "Relu"


def test_a_typing_error_is_answered_with_what_packages_offer(add: Install) -> None:
    add("lc_near", DOUBLE.format(name="lc.Double"), operator_entry("lc.Double", "lc_near"))
    with pytest.raises(pl.OperatorError, match=r"did you mean 'lc\.Double"):
        find_operator("lcDouble")


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("import a_module_that_is_not_there", "ModuleNotFoundError"),
        ("raise SystemExit('no licence')", "SystemExit: no licence"),
        ("def (", "SyntaxError"),
    ],
)
def test_a_broken_package_is_an_error_of_those_who_ask_for_it(
    add: Install, source: str, reason: str
) -> None:
    add("lc_broken", source, operator_entry("lc.Broken", "lc_broken"))
    assert is_operator("Relu")
    for _ in range(2):
        with pytest.raises(
            pl.OperatorError, match=r"package lc_broken 1\.0 cannot be load"
        ) as info:
            find_operator("lc.Broken")
        assert reason in info.value.what
        assert info.value.fix is not None
        assert "lc_broken" in str(info.value.at)


def test_a_broken_package_leaves_nothing_registered(add: Install) -> None:
    source = DOUBLE.format(name="lc.Half") + "\nraise ValueError('half way')"
    add("lc_half", source, operator_entry("lc", "lc_half"))
    with pytest.raises(pl.OperatorError, match="half way"):
        find_operator("lc.Half")
    assert "lc.Half" not in list_operators()


def test_a_package_without_what_it_offers_is_named(add: Install) -> None:
    add("lc_empty", "", operator_entry("lc.Nothing", "lc_empty"))
    with pytest.raises(pl.OperatorError, match=r"package lc_empty 1\.0 offers .* defines none"):
        is_operator("lc.Nothing")


@pytest.mark.parametrize("name", sorted(installed.list_own(installed.OPERATORS)))
def test_the_name_of_a_dialect_is_no_operator(name: str) -> None:
    b = pl.GraphBuilder("dialect")
    with pytest.raises(pl.OperatorError, match=f"there is no operator '{name}'"):
        b.op(name, b.input("x", "float32", (2,)))


def test_two_packages_that_offer_the_same_are_both_named(add: Install) -> None:
    for name in ("lc_first", "lc_second"):
        add(name, DOUBLE.format(name="lc.Both"), operator_entry("lc.Both", name))
    with pytest.raises(pl.OperatorError, match=r"lc_first 1\.0 and lc_second 1\.0 offer 'lc.Both'"):
        find_operator("lc.Both")


def test_a_module_may_look_for_its_own_operators_while_it_is_imported(add: Install) -> None:
    source = (
        "from plait.graph.core.operator import is_operator\nassert not is_operator('lc.Double')"
    )
    source += DOUBLE.format(name="lc.Double")
    add("lc_self", source, operator_entry("lc.Double", "lc_self"))
    assert is_operator("lc.Double")


def test_a_device_of_a_package_is_found_and_listed(add: Install) -> None:
    source = "from plait.devices.cpu import CpuDevice\nclass Mine(CpuDevice): pass"
    add("lc_device", source, device_entry("lcdev", "lc_device:Mine"))
    assert "lcdev" in pl.devices.names()
    assert "lc_device" not in sys.modules
    assert pl.devices.find("lcdev:1").name == "lcdev:1"
    assert pl.devices.probe("lcdev").found


@pytest.mark.parametrize(
    ("source", "value", "reason"),
    [
        ("import a_module_that_is_not_there", "lc_dead:Mine", "ModuleNotFoundError"),
        ("", "lc_dead:Mine", "AttributeError"),
        ("Mine = 3", "lc_dead:Mine", "is a int, not a factory"),
    ],
)
def test_a_broken_device_is_listed_and_says_why_it_is_not_there(
    add: Install, source: str, value: str, reason: str
) -> None:
    add("lc_dead", source, device_entry("lcdead", value))
    assert "lcdead" in pl.devices.names()
    with pytest.raises(pl.DeviceUnavailableError, match=r"lc_dead 1\.0") as info:
        pl.devices.find("lcdead")
    assert info.value.fix is not None
    status = pl.devices.probe("lcdead")
    assert not status.found
    assert reason in status.reason


def test_a_device_that_cannot_be_made_names_its_package(add: Install) -> None:
    add(
        "lc_raises",
        "def make(name): raise OSError('no card')",
        device_entry("lcx", "lc_raises:make"),
    )
    with pytest.raises(pl.DeviceUnavailableError, match="cannot be made: OSError: no card") as info:
        pl.devices.find("lcx:0")
    assert info.value.at == "package lc_raises 1.0"


def test_unknown_devices_are_answered_with_what_packages_offer(add: Install) -> None:
    add("lc_known", "", device_entry("lcknown", "lc_known:Mine"))
    with pytest.raises(pl.DeviceUnavailableError, match="lcknown"):
        pl.devices.find("nothing")


def test_importing_plait_imports_no_package_and_reads_no_metadata() -> None:
    code = "import plait, sys; print('importlib.metadata' in sys.modules)"
    ran = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True)
    assert ran.stdout.split() == ["False"], ran.stderr
