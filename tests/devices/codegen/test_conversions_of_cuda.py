"""Floats of 16 bits as CUDA's source makes them, on PoCL: its instructions are written out there.

The instructions make one number of all NaNs, with all digits set and no sign, as on an H200.
A cast on the `cpu` device keeps the sign, and from and to halves the digits.
"""

from __future__ import annotations

import re
from typing import Any, TypeAlias

import numpy as np
import pytest
from generated_code import compiled, context
from plait.devices.codegen.dialect import CUDA
from plait.graph.values.dtypes import dtype_of

Numbers: TypeAlias = np.ndarray[Any, Any]

INSTRUCTION = re.compile(r'asm\("(\S+) %0, %1;" : "=\w"\((\w+)\) : "\w"\((.+?)\)\);')

BEFORE = """
#define __device__
#define __forceinline__ inline
#define __float_as_int as_int
#define __int_as_float as_float
static inline ushort cvt_rn_f16_f32(float x) {
    ushort bits; vstore_half_rte(x, 0, (private half*)&bits);
    return isnan(x) ? 0x7fff : bits;
}
static inline ushort cvt_rn_bf16_f32(float x) {
    const uint bits = as_uint(x);
    return isnan(x) ? 0x7fff : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}
static inline float cvt_f32_f16(ushort bits) {
    return (bits & 0x7fff) > 0x7c00 ? as_float(0x7fffffff) : vload_half(0, (private half*)&bits);
}
"""

KERNELS = """
kernel void store_float16(global const float* x, global ushort* y) {
    f16 one; STORE_F16(&one, 0, x[get_global_id(0)]); y[get_global_id(0)] = one.bits;
}
kernel void load_float16(global const ushort* x, global float* y) {
    f16 one; one.bits = x[get_global_id(0)]; y[get_global_id(0)] = LOAD_F16(&one, 0);
}
kernel void store_bfloat16(global const float* x, global ushort* y) {
    bf16 one; STORE_BF16(&one, 0, x[get_global_id(0)]); y[get_global_id(0)] = one.bits;
}
"""

NANS = np.array([0x7FC00000, 0xFFC00000, 0x7FFFFFFF, 0xFFD55555], np.uint32).view(np.float32)
NUMBERS = np.array([0, -0.0, 1, -1 - 2**-8, 65520, 3.4e38, np.inf, -np.inf, 1e-40], np.float32)


def called(instruction: re.Match[str]) -> str:
    name, result, given = instruction.groups()
    return f"{result} = {name.replace('.', '_')}({given});"


def source(arch: int) -> str:
    """Return CUDA's prelude as OpenCL takes it, for an architecture."""
    as_c = CUDA.replace("long long", "long").replace("struct f16 {", "typedef struct {")
    as_c = INSTRUCTION.sub(called, as_c.replace("{ u16 bits; };", "{ u16 bits; } f16;"))
    assert "asm" not in as_c
    return f"#define __CUDA_ARCH__ {arch}\n{BEFORE}{as_c}{KERNELS}"


def run(kernel: str, x: Numbers, made: type[np.generic], arch: int) -> Numbers:
    """Return what CUDA's source makes of numbers."""
    import pyopencl as cl

    flags, y = cl.mem_flags, np.empty(x.shape, made)
    given = cl.Buffer(context(), flags.READ_ONLY | flags.COPY_HOST_PTR, hostbuf=x)
    taken = cl.Buffer(context(), flags.WRITE_ONLY, y.nbytes)
    with cl.CommandQueue(context()) as queue:
        cl.Kernel(compiled(source(arch)), kernel)(queue, x.shape, None, given, taken)
        cl.enqueue_copy(queue, y, taken)
    return y


@pytest.mark.parametrize("arch", [750, 900])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_what_cuda_stores_has_the_bits_of_a_cast_of_nans_too(dtype: str, arch: int) -> None:
    x = np.concatenate([NANS, NUMBERS])
    with np.errstate(over="ignore"):
        wanted = x.astype(dtype_of(dtype)).view(np.uint16)
    found = run(f"store_{dtype}", x, np.uint16, arch)
    assert list(map(hex, found)) == list(map(hex, wanted))


def test_what_cuda_loads_of_halves_has_the_bits_of_a_cast_of_nans_too() -> None:
    x = np.arange(1 << 16, dtype=np.uint16)
    found = run("load_float16", x, np.float32, 900).view(np.uint32)
    np.testing.assert_array_equal(found, x.view(np.float16).astype(np.float32).view(np.uint32))
