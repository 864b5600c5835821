"""What is it that is measured?"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator

from gpu.question import Row, answer
from gpu.target import Target, index_of

NAME = "device"
"""The row that names it."""
_ASKED = "driver_version,pstate,clocks.sm,clocks.mem,power.limit,pcie.link.gen.current"


def device(target: Target) -> Iterator[Row]:
    """The device, and what it is driven by."""
    if not target.has_cupy:
        with target.opened() as opened:
            yield Row(NAME, target.name, note=opened.capabilities.software)
        return
    runtime = target.cupy().cuda.runtime
    properties = runtime.getDeviceProperties(runtime.getDevice())
    yield Row(NAME, properties["name"].decode())
    yield Row("compute capability", f"{properties['major']}.{properties['minor']}")
    yield Row("multiprocessors", properties["multiProcessorCount"])
    yield Row("memory", properties["totalGlobalMem"] / 2**30, "GiB")
    yield Row("CUDA of the driver", runtime.driverGetVersion())
    yield Row("CUDA of CuPy", runtime.runtimeGetVersion())
    with target.opened() as opened:
        yield Row("software", opened.capabilities.software)


def state(target: Target) -> Iterator[Row]:
    """The driver's version, clocks and power, by nvidia-smi."""
    program = shutil.which("nvidia-smi")
    if not target.has_cupy or program is None:
        return
    options = [f"--query-gpu={_ASKED}", "--format=csv,noheader", f"--id={index_of(target.name)}"]
    command = [program, *options]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=20)
    for title, value in zip(_ASKED.split(","), done.stdout.strip().split(", "), strict=True):
        yield Row(title.replace("_", " "), value)


if __name__ == "__main__":
    answer(device, state)
