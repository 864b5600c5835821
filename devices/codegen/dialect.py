"""The C dialect of kernels, and the preludes that define it for CUDA and OpenCL.

==================  ===========================================================
KERNEL(n)           begins a kernel whose groups have n threads
FUNCTION            begins a function
GLOBAL, SHARED      address space of a pointer; of a variable of a group
GROUP, THREAD       numbers of the group, and of the thread in its group
BARRIER             waits for the threads of a group, and makes their earlier
                    writes to SHARED and GLOBAL variables visible
LOAD_F16, STORE_F16 halves, see `types`; likewise for BF16
FACTOR_F16          loads a half that is multiplied; a NaN becomes any NaN
ROUND_F16(x)        the f32 after a round trip through half
INF_F32, NAN_F32    and for F64
LEADING_ZEROS(x)    of the bits of a u32
BITS_F32(x)         the u32 that holds x; BITS_F64 the u64; F32_BITS, F64_BITS back
==================  ===========================================================

Mathematical functions have one name for all types: ``exp(x)``, ``sqrt(x)``, ``fmin(x, y)``,
``rint(x)``, ``erf(x)``... ``a * b + c`` is never contracted to one rounding; ``fma(a, b, c)``
rounds once.
"""

from __future__ import annotations

from collections.abc import Iterable

from .registry import Kernel

_BFLOAT = """\
typedef struct { u16 bits; } bf16;
#define LOAD_BF16(p, i) F32_BITS((u32)(p)[i].bits << 16)
#define STORE_BF16(p, i, x) (p)[i].bits = BITS_BF16(x)
#define ROUND_BF16(x) F32_BITS((u32)BITS_BF16(x) << 16)
"""
"""A bf16 is the upper half of an f32 on all devices."""

_NAN_BF16 = "(u16)(BITS_F32(x) >> 16 & 0x8000 | 0x7fc0)"
"""A NaN keeps its sign, as in ml_dtypes."""

_ROUNDED = f"""\
    const u32 bits = BITS_F32(x);
    return x != x ? {_NAN_BF16} : (u16)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
"""
"""Rounds to nearest even: a carry out of the digits increments the exponent, up to infinity."""

OPENCL = """\
#pragma OPENCL FP_CONTRACT OFF
#ifdef cl_khr_fp64
#pragma OPENCL EXTENSION cl_khr_fp64 : enable
#endif
typedef char i8; typedef short i16; typedef int i32; typedef long i64;
typedef uchar u8; typedef ushort u16; typedef uint u32; typedef ulong u64;
typedef float f32; typedef half f16;
#ifdef cl_khr_fp64
typedef double f64;
#define INF_F64 ((f64)INFINITY)
#define NAN_F64 ((f64)NAN)
#define BITS_F64(x) as_ulong(x)
#define F64_BITS(x) as_double(x)
#endif
#define KERNEL(n) kernel __attribute__((reqd_work_group_size(n, 1, 1))) void
#define FUNCTION static inline
#define GLOBAL global
#define SHARED local
#define GROUP ((i32)get_group_id(0))
#define THREAD ((i32)get_local_id(0))
#define BARRIER barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE)
#define LOAD_F16(p, i) vload_half(i, p)
#define FACTOR_F16(p, i) vload_half(i, p)
#define STORE_F16(p, i, x) vstore_half_rte(x, i, p)
FUNCTION f32 ROUND_F16(f32 x) {
    u16 bits; vstore_half_rte(x, 0, (private half*)&bits);
    return vload_half(0, (private half*)&bits);
}
#define LEADING_ZEROS(x) ((i32)clz((u32)(x)))
#define INF_F32 INFINITY
#define NAN_F32 NAN
#define BITS_F32(x) as_uint(x)
#define F32_BITS(x) as_float(x)
FUNCTION u16 BITS_BF16(f32 x) {
"""
OPENCL += f"{_ROUNDED}}}\n{_BFLOAT}"

# CUDA's conversions turn each NaN into 0x7fff or 0x7fffffff; numpy and ml_dtypes keep the sign, and
# numpy the digits that fit. The exponent of a NaN is all ones, in either width.
CUDA = """\
typedef signed char i8; typedef short i16; typedef int i32; typedef long long i64;
typedef unsigned char u8; typedef unsigned short u16; typedef unsigned int u32;
typedef unsigned long long u64; typedef float f32; typedef double f64;
struct f16 { u16 bits; };
#define KERNEL(n) extern "C" __global__ void __launch_bounds__(n)
#define FUNCTION static __device__ __forceinline__
#define GLOBAL
#define SHARED __shared__
#define GROUP ((i32)blockIdx.x)
#define THREAD ((i32)threadIdx.x)
#define BARRIER __syncthreads()
FUNCTION f32 CONVERTED_F16(u16 h) {
    f32 x; asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(h));
    return x;
}
FUNCTION f32 F16_BITS(u16 h) {
    const f32 x = CONVERTED_F16(h);
    return x != x ? __int_as_float((i32)(i16)h << 13 | 0x70000000) : x;
}
FUNCTION u16 BITS_F16(f32 x) {
    u16 h; asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(x));
    const u32 bits = (u32)__float_as_int(x);
    return x != x ? (u16)(bits >> 16 & 0x8000 | bits >> 13 & 0x7fff | 0x200) : h;
}
#define LOAD_F16(p, i) F16_BITS((p)[i].bits)
#define FACTOR_F16(p, i) CONVERTED_F16((p)[i].bits)
#define STORE_F16(p, i, x) (p)[i].bits = BITS_F16(x)
#define ROUND_F16(x) F16_BITS(BITS_F16(x))
#define LEADING_ZEROS(x) __clz((i32)(x))
#define INF_F32 __int_as_float(0x7f800000)
#define NAN_F32 __int_as_float(0x7fc00000)
#define INF_F64 __longlong_as_double(0x7ff0000000000000LL)
#define NAN_F64 __longlong_as_double(0x7ff8000000000000LL)
#define BITS_F32(x) ((u32)__float_as_int(x))
#define F32_BITS(x) __int_as_float((i32)(x))
#define BITS_F64(x) ((u64)__double_as_longlong(x))
#define F64_BITS(x) __longlong_as_double((i64)(x))
FUNCTION u16 BITS_BF16(f32 x) {
#if __CUDA_ARCH__ >= 800
    u16 h; asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(h) : "f"(x));
"""
CUDA += f"    return x != x ? {_NAN_BF16} : h;\n#else\n{_ROUNDED}#endif\n}}\n{_BFLOAT}"


def join_sources(prelude: str, kernels: Iterable[Kernel]) -> str:
    listed = tuple(kernels)
    functions = dict.fromkeys(function for kernel in listed for function in kernel.functions)
    entries = {kernel.name: kernel.source for kernel in listed}
    return "\n".join((prelude, *functions, *entries.values()))
