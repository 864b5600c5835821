"""ONNX Runtime and Ray report nothing to their makers where plait imports them."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import plait as pl
import pytest
from patience import WAIT_S
from plait.graph.values import extras

ON_ORT = """
import numpy as np, plait as pl
b = pl.GraphBuilder("g")
b.output("y", b.op("com.microsoft.Gelu", b.input("x", "float32", (2,))))
pl.run(b.build(), {"x": np.zeros(2, "float32")}, devices=["ort"])
"""
IN_A_WORKER = """
import os, sys
import numpy as np, plait as pl

@pl.operator(pl.TensorSpec("bool", ()))
def is_silent(x):
    return np.bool_(os.environ["ORT_DISABLE_TELEMETRY"] == "1" and "onnxruntime" not in sys.modules)

if __name__ == "__main__":
    b = pl.GraphBuilder("g")
    b.output("y", b.call(is_silent, b.input("x", "float32", (2,))))
    assert pl.run(b.build(), {"x": np.zeros(2, "float32")}, devices=["worker:0"])["y"]
    assert "onnxruntime" not in sys.modules
"""


def run_at_home(home: Path, code: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a script in a fresh home, and in an environment that turns nothing off by itself."""
    kept = {k: v for k, v in os.environ.items() if k not in ("CI", "ORT_DISABLE_TELEMETRY")}
    script = home / "script.py"
    script.write_text(code)
    command = [sys.executable, "-P", str(script)]
    env = {**kept, "HOME": str(home), "XDG_CACHE_HOME": str(home / ".cache"), **variables}
    return subprocess.run(
        command, cwd=home, env=env, capture_output=True, text=True, timeout=WAIT_S, check=True
    )


@pytest.mark.slow
def test_onnx_runtime_writes_nothing_into_a_fresh_home_and_calls_nowhere(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as proxy:
        address = f"http://127.0.0.1:{proxy.getsockname()[1]}"
        run_at_home(tmp_path, ON_ORT, https_proxy=address, HTTPS_PROXY=address)
        proxy.setblocking(False)
        with pytest.raises(BlockingIOError):
            proxy.accept()
    assert [one.name for one in tmp_path.iterdir()] == ["script.py"]


@pytest.mark.slow
def test_what_the_user_has_set_stays(tmp_path: Path) -> None:
    code = "import os\nprint(os.environ['ORT_DISABLE_TELEMETRY'])"
    assert run_at_home(tmp_path, ON_ORT + code, ORT_DISABLE_TELEMETRY="0").stdout == "0\n"


@pytest.mark.slow
def test_a_worker_of_functions_imports_no_onnx_runtime(tmp_path: Path) -> None:
    run_at_home(tmp_path, IN_A_WORKER)


@pytest.mark.parametrize("module", ["onnxruntime", "onnxruntime_ep_openvino", "ray"])
def test_the_variables_are_set_before_a_package_is_imported(
    module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, str] = {}

    class Imported:
        def disable_telemetry_events(self) -> None:
            seen["events"] = "off"

    def import_(name: str) -> Imported:
        seen.update(os.environ)
        return Imported()

    for name in ("ORT_DISABLE_TELEMETRY", "RAY_USAGE_STATS_ENABLED"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setattr(extras, "import_module", import_)
    extras.import_extra(module, "missing", "install it", pl.DeviceError)
    assert (seen["ORT_DISABLE_TELEMETRY"], seen["RAY_USAGE_STATS_ENABLED"]) == ("1", "0")
    assert ("events" in seen) is (module == "onnxruntime")


def test_a_device_allows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORT_DISABLE_TELEMETRY", "")
    monkeypatch.delenv("ORT_DISABLE_TELEMETRY")
    pl.device("ort", telemetry=False)
    assert "ORT_DISABLE_TELEMETRY" not in os.environ
    pl.device("ort", telemetry=True)
    assert os.environ["ORT_DISABLE_TELEMETRY"] == "0"


def test_a_device_cannot_allow_what_is_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(extras.ORT_DISABLE_TELEMETRY, "1")
    with pytest.raises(pl.DeviceError, match="cannot have telemetry") as caught:
        pl.device("ort", telemetry="yes")
    assert caught.value.fix == "set ORT_DISABLE_TELEMETRY=0 before it starts"
