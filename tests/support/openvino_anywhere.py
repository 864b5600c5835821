"""OpenVINO's provider on processors of other makers than Intel.

OpenVINO computes there, but its provider for ONNX Runtime lists hardware of Intel alone. Machines
that run tests have what they have: a library in front of the provider's own tells it that
all processors are Intel's, and is else none of its business. It takes a C compiler.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import pytest
from plait.devices import find
from plait.devices.errors import DeviceError

INTEL = 0x8086
VENDOR_ID = 308
"""The place of `HardwareDevice_VendorId` in ONNX Runtime's table of functions; it never changes."""

TABLE = 512
"""More than it has functions: what lies behind them is copied along, and never called."""

SOURCE = f"""
#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef struct {{ const void *(*api)(uint32_t); const char *(*version)(void); }} Base;
typedef void *Make(const char *, const Base *, const void *, void **, size_t, size_t *);

static const Base *real;
static Base told;
static const void *table[{TABLE}];

static uint32_t intel(const void *device) {{ return (void)device, {INTEL}; }}

static const void *api(uint32_t version) {{
    const void *found = real->api(version);
    if (!found) return NULL;
    memcpy(table, found, sizeof table);
    table[{VENDOR_ID}] = (const void *)intel;
    return table;
}}

static void *provider(const char *name) {{ return dlsym(dlopen(PROVIDER, RTLD_NOW), name); }}

void *CreateEpFactories(const char *name, const Base *base, const void *logger, void **factories,
                        size_t most, size_t *count) {{
    real = base;
    told.api = api;
    told.version = base->version;
    return ((Make *)provider("CreateEpFactories"))(name, &told, logger, factories, most, count);
}}

void *ReleaseEpFactory(void *factory) {{
    return ((void *(*)(void *))provider("ReleaseEpFactory"))(factory);
}}
"""


def require_openvino() -> None:
    """Skip the test where there is no such provider, saying why."""
    try:
        _ = find("ort:openvino").capabilities
    except DeviceError as error:
        pytest.skip(f"no ort:openvino: {error.what}")


def install() -> None:
    """Let plait find that library where it looks for the provider's."""
    try:
        import onnxruntime_ep_openvino as package
    except ImportError:
        return
    own = package.get_library_path

    @cache
    def get_library_path() -> str:
        compiler = _compiler()
        return own() if compiler is None else _build(compiler, own())

    package.get_library_path = get_library_path


def note() -> str:
    """Return what is done here to have the provider, for whoever reads figures; else nothing."""
    if _compiler() is None:
        return ""
    return "ort:openvino ran on a processor that is not Intel's, which its provider does not list"


def _compiler() -> str | None:
    """Return what compiles the library; None where it is not needed, or cannot be had."""
    return None if _is_intel() else shutil.which("cc")


def _is_intel() -> bool:
    from onnxruntime import get_ep_devices

    return any(one.device.vendor_id == INTEL for one in get_ep_devices())


_folder = tempfile.TemporaryDirectory(prefix="plait-openvino-")


def _build(compiler: str, provider: str) -> str:
    folder = Path(_folder.name)
    source, library = folder / "anywhere.c", folder / "anywhere.so"
    source.write_text(SOURCE)
    options = ("-shared", "-fPIC", f'-DPROVIDER="{provider}"', "-o", str(library), str(source))
    subprocess.run([compiler, *options, "-ldl"], check=True)
    return str(library)
