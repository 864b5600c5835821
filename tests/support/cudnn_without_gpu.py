"""Asks cuDNN for plans on GPUs that are not there: `python cudnn_without_gpu.py FOLDER ASKED`.

cuDNN compiles for devices that are described to it. What it then asks of a driver, a library of
functions that all fail is enough for, made in the folder unless there is a real one. It is a
program of its own, because a graph that cuDNN does not expect may end the process.
"""

from __future__ import annotations

import ctypes
import json
import pickle
import re
import subprocess
import sys
from enum import IntEnum
from pathlib import Path
from typing import Any, NamedTuple

from plait.devices.cuda import descriptors
from plait.devices.cuda.cudnn import HEURISTICS, MOST_ENGINES, find_cudnn
from plait.devices.cuda.cudnn_graphs import Computable, describe_operations
from plait.devices.cuda.descriptors import Descriptor, DescriptorKind, Name
from plait.devices.cuda.libraries import RefusedError, load_library

DRIVER = "libcuda.so.1"
NEEDED = ("cublasLt", "nvrtc")
"""What cuDNN looks for by name; it ends the process where it does not find the first."""
NO_DEVICE = 100
"""CUresult."""
ANSWERED = {b"cuDriverGetVersion", b"cuDeviceGetCount"}
ANSWERS = b"""
int cuDriverGetVersion(int *version) { *version = 13000; return 0; }
int cuDeviceGetCount(int *count) { *count = 0; return 0; }
"""
"""That there is a driver, and no device."""


class Target(NamedTuple):
    """A GPU: what it can do, in hundreds, its multiprocessors, and shared memory of a block."""

    name: str
    ability: int
    multiprocessors: int
    shared_nbytes: int


TARGETS = (
    Target("A100", 800, 108, 166_912),
    Target("H200", 900, 132, 232_448),
    Target("B200", 1000, 148, 232_448),
)


_OTHERS = IntEnum(
    "_OTHERS",
    {
        "CHAR": 24,
        "DEVICEPROP": 38,
        "ENGINEHEUR_DEVICEPROP": 204,
        "EXECUTION_PLAN_DEVICEPROP": 407,
        "DEVICEPROP_JSON_REPRESENTATION": 2702,
    },
)
OTHERS: Any = _OTHERS
"""A type, a kind and names of attributes that plait itself does not use."""


def load(folder: Path) -> Any:
    """Return cuDNN, None where it, or what it needs, is not installed."""
    library = find_cudnn()
    if library is None or not all(map(load_library, NEEDED)):
        return None
    try:
        ctypes.CDLL(DRIVER)
    except OSError:
        ctypes.CDLL(str(_fake_driver(folder)), ctypes.RTLD_GLOBAL)
    return library


def _fake_driver(folder: Path) -> Path:
    """Make a library with all functions of the driver that cuDNN's files name."""
    (here,) = {
        Path(line.split()[-1]).parent
        for line in Path("/proc/self/maps").read_text().splitlines()
        if "/libcudnn.so" in line
    }
    names: set[bytes] = set()
    for part in ("graph", "engines_runtime_compiled"):
        text = (here / f"libcudnn_{part}.so.9").read_bytes()
        names.update(re.findall(rb"\bcu[A-Z][A-Za-z0-9_]+(?=\0)", text))
    source, made = folder / "driver.c", folder / DRIVER
    failing = (b"int %s() { return %d; }\n" % (name, NO_DEVICE) for name in names - ANSWERED)
    source.write_bytes(b"".join((*failing, ANSWERS)))
    # It is found by that name, once it is loaded.
    options = ["-w", "-shared", "-fPIC", f"-Wl,-soname,{DRIVER}", "-o", str(made)]
    subprocess.run(["cc", *options, str(source)], check=True)
    return made


def describe(library: Any, target: Target) -> Descriptor:
    """Return the description of a GPU."""
    properties = {
        "deviceVer": target.ability,
        "deviceName": target.name,
        "multiProcessorCount": target.multiprocessors,
        "smCountOrigin": 0,
        "maxSharedMemoryPerBlockOptin": target.shared_nbytes,
        "driverVer": 13000,
        "cudaDeviceId": 0,
        "pciDeviceId": 0,
        "isTccDriver": 0,
        "supportCoopLaunch": 1,
        "maxGridSize": [2**31 - 1, 65_535, 65_535],
        "maxBlockSize": [1024, 1024, 64],
        "maxThreadsPerBlock": 1024,
        "maxThreadsPerSM": 2048,
        "maxCtasPerSM": 32,
        "warpSize": 32,
        "regsPerBlock": 65_536,
        "maxRegistersPerSM": 65_536,
        "maxSharedMemoryPerBlock": 49_152,
        "reservedSharedMemoryPerBlock": 1024,
        "oversizedSharedMemoryPerBlock": 0,
        "l2CacheSize": 50 << 20,
        "totalGlobalMem": 80 << 30,
        "smClockRateKHz": 1_700_000,
        "memClockRateKHz": 2_600_000,
        "memoryBusWidth": 5120,
    }
    given = [bytes([byte]) for byte in json.dumps(properties).encode()]
    made = Descriptor(library, OTHERS.DEVICEPROP)
    return made.set(OTHERS.DEVICEPROP_JSON_REPRESENTATION, OTHERS.CHAR, *given).finalize()


def plan(library: Any, device: Descriptor, work: Computable) -> int:
    """Have cuDNN compile its best guess; return how many engines there are to choose from."""
    operations = describe_operations(library, work).descriptors
    graph = Descriptor(library, DescriptorKind.OPERATIONGRAPH)
    graph.set(Name.OPERATIONGRAPH_OPS, descriptors.Type.BACKEND_DESCRIPTOR, *operations).finalize()
    heuristics = Descriptor(library, DescriptorKind.ENGINEHEUR)
    _refer(heuristics, Name.ENGINEHEUR_OPERATION_GRAPH, graph)
    _refer(heuristics, OTHERS.ENGINEHEUR_DEVICEPROP, device)
    heuristics.set(Name.ENGINEHEUR_MODE, descriptors.Type.HEUR_MODE, HEURISTICS[0]).finalize()
    given = Name.ENGINEHEUR_RESULTS, DescriptorKind.ENGINECFG, MOST_ENGINES
    found = heuristics.get_descriptors(*given)
    if found:
        made = Descriptor(library, DescriptorKind.EXECUTION_PLAN)
        _refer(made, OTHERS.EXECUTION_PLAN_DEVICEPROP, device)
        _refer(made, Name.EXECUTION_PLAN_ENGINE_CONFIG, found[0])
        made.finalize()
        size = Name.EXECUTION_PLAN_WORKSPACE_SIZE, descriptors.Type.INT64, 1
        assert made.get(*size)[0] <= work.workspace_nbytes
    return len(found)


def _refer(made: Descriptor, name: Name, other: Descriptor) -> None:
    made.set(name, descriptors.Type.BACKEND_DESCRIPTOR, other)


def main(folder: Path, asked: Path) -> None:
    """Print, for each computation in a file, what each target has, as a line of JSON."""
    library = load(folder)
    if library is None:
        return
    descriptors.IN_C[OTHERS.CHAR] = ctypes.c_char
    devices = {target.name: describe(library, target) for target in TARGETS}
    for work in pickle.loads(asked.read_bytes()):
        for name, device in devices.items():
            try:
                found: int | str = plan(library, device, work)
            except RefusedError as error:
                found = str(error)
            print(json.dumps([name, found]), flush=True)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
