"""All generated kernels compiled for GPUs by NVRTC; needs its wheel, but no GPU."""

from __future__ import annotations

import ctypes
import re
import sys
from contextlib import closing
from functools import cache
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import plait as pl
import pytest
from cupy_double import CupyDouble
from generated_cases import all_cases, fused_pieces
from plait.devices.codegen.attention_weights import make_attention_weights
from plait.devices.codegen.dialect import CUDA, join_sources
from plait.devices.codegen.dot_attention import infer_attention_shape
from plait.devices.codegen.pieces import Launch, Piece, make_piece
from plait.devices.codegen.registry import Kernel, Parameter
from plait.devices.cuda import libraries, nvrtc
from plait.devices.cuda.nvrtc import compile_cubin
from plait.devices.errors import DeviceUnavailableError, KernelError
from plait.graph.core.ir import Graph

from .rig import Rig, chain
from .test_cuda_byte_products import kernels as around_bytes
from .test_cuda_cublas import PRODUCTS, graph_of, product


@pytest.fixture(autouse=True)
def _needs_nvrtc() -> None:
    if libraries.load_library("nvrtc") is None:
        pytest.skip("NVRTC is not installed: pip install nvidia-cuda-nvrtc")


@cache
def kernels() -> tuple[Kernel, ...]:
    """Return the kernels of all cases, of each node alone and of those that are fused."""
    found: list[Kernel] = []
    for make in all_cases().values():
        graph, _ = make()
        pieces = [make_piece(graph, node, {}) for node in graph.nodes]
        plain = fused_pieces(graph, epilogues=False)
        for piece in (*pieces, *plain, *fused_pieces(graph)):
            queued = piece.queued if isinstance(piece, Piece) else ()
            found += [item.kernel for item in queued if isinstance(item, Launch)]
    products = (product(graph_of(*given)) for given in PRODUCTS.values())
    fills = (each.fill for each in products if each is not None)
    found += [kernel for kernel in (*fills, *around_bytes()) if kernel is not None]
    return tuple({kernel.name: kernel for kernel in found}.values())


@pytest.mark.slow
@pytest.mark.parametrize(("arch", "stride"), [("sm_80", 7), ("sm_100", 7), ("sm_90", 1)])
def test_all_generated_kernels_compile(arch: str, stride: int) -> None:
    """For one architecture; for an older and a newer one, every seventh: the text is the same."""
    chosen = kernels()[::stride]
    cubin = compile_cubin(join_sources(CUDA, chosen), arch)
    assert [kernel.name for kernel in chosen if kernel.name.encode() not in cubin] == []


def large(dtype: str) -> Graph:
    """Return nodes so large that their tiles are the largest ones; nobody runs them."""
    b = pl.GraphBuilder("large")
    x, y = b.input("x", dtype, (4096, 1024)), b.input("y", dtype, (1024, 4096))
    images, features = (
        b.input("images", dtype, (8, 64, 56, 56)),
        b.input("w", dtype, (128, 64, 3, 3)),
    )
    heads = [b.input(name, dtype, (8, 16, 2048, 64)) for name in "qkv"]
    product = b.op("MatMul", x, y)
    for made in (
        b.op("Relu", b.op("Add", product, b.input("bias", dtype, (4096,)))),
        b.op("Softmax", product),
        b.op("ReduceSum", product, np.array([0])),
        b.op("Conv", images, features, pads=[1, 1, 1, 1]),
        b.op("Attention", *heads),
    ):
        b.output(f"{made}_out", made)
    return b.build()


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_kernels_of_large_tensors_compile(dtype: str) -> None:
    pieces = fused_pieces(large(dtype))
    chosen = [item.kernel for each in pieces for item in each.queued if isinstance(item, Launch)]
    assert any(kernel.groups == (4096 // 128) ** 2 for kernel in chosen), "no tiles of 128 x 128"
    cubin = compile_cubin(join_sources(CUDA, chosen), "sm_90")
    assert [kernel.name for kernel in chosen if kernel.name.encode() not in cubin] == []


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_kernels_between_products_of_attention_compile(dtype: str) -> None:
    b = pl.GraphBuilder("attention")
    heads = [b.input(name, dtype, (2, 4, 9 if name == "q" else 4096, 64)) for name in "qkv"]
    masks = None, b.input("seen", "bool", (4, 9, 4096)), b.input("bias", "float32", (1, 4000))
    for mask in masks:
        given = heads if mask is None else [*heads, mask]
        b.output(f"y{mask}", b.op("Attention", *given, is_causal=True, softcap=2.0))
    graph, chosen = b.build(), []
    for node in graph.nodes:
        shape = infer_attention_shape(graph.call(node))
        chosen.append(make_attention_weights(graph.call(node), shape, 4096, 4, 4))
    cubin = compile_cubin(join_sources(CUDA, chosen), "sm_90")
    assert [kernel.name for kernel in chosen if kernel.name.encode() not in cubin] == []


def kernel(body: str) -> Kernel:
    parameters = (Parameter("x", "f32", "input", 0), Parameter("y", "f32", "output", 0))
    return Kernel("tried", parameters, body, groups=1)


def compiled(body: str, **options: bool) -> bytes:
    return compile_cubin(join_sources(CUDA, [kernel(body)]), "sm_90", **options)


def test_math_is_exact_unless_it_is_to_be_fast() -> None:
    body = "y[THREAD] = x[THREAD] / x[0];"
    assert compiled(body) != compiled(body, fast_math=True)
    assert len(compiled(body)) > len(compiled(body, fast_math=True))


def test_what_the_compiler_refuses_is_shown_with_its_line() -> None:
    with pytest.raises(KernelError, match=r"plait\.cu\(\d+\): error: identifier \"z\"") as raised:
        compiled("y[0] = z;")
    assert raised.value.fix is not None


def test_an_architecture_that_nvrtc_does_not_know_is_named() -> None:
    with pytest.raises(KernelError, match="for sm_1:") as raised:
        compile_cubin(join_sources(CUDA, []), "sm_1")
    assert raised.value.fix == "install an NVRTC that knows sm_1"


def test_a_part_of_nvrtc_that_is_missing_is_not_blamed_on_a_kernel() -> None:
    log = (
        "nvrtc: error: failed to open libnvrtc-builtins.so.13.0.\n  Make sure that it is installed."
    )
    error = nvrtc._refused_error(log, "sm_90")
    assert "libnvrtc-builtins.so.13.0" in str(error)
    assert error.fix is not None
    assert "cuda-pathfinder" in error.fix


def test_without_nvrtc_the_message_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvrtc, "load_library", lambda name: None)
    nvrtc._load_nvrtc.cache_clear()
    with pytest.raises(DeviceUnavailableError, match=r"NVRTC, .* is not installed") as raised:
        compiled("y[0] = x[0];")
    nvrtc._load_nvrtc.cache_clear()
    assert re.search("pip install nvidia-cuda-nvrtc", str(raised.value.fix))


def test_a_device_without_nvrtc_opens_but_compiles_nothing(
    double: CupyDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nvrtc, "load_library", lambda name: None)
    nvrtc._load_nvrtc.cache_clear()
    with closing(double.generating(compiler=compile_cubin)) as device:
        with pytest.raises(DeviceUnavailableError, match=r"NVRTC, .* is not installed"):
            Rig(device, chain("Relu"))


def test_a_library_that_is_not_there_is_none() -> None:
    assert libraries.load_library("no-such-library") is None


def finder(path: str | None) -> ModuleType:
    """Return what stands in for NVIDIA's finder of libraries."""

    def load(name: str) -> SimpleNamespace:
        if path is None:
            raise RuntimeError(f"no such file: lib{name}.so.13")
        return SimpleNamespace(abs_path=path)

    made = ModuleType("cuda.pathfinder")
    made.__dict__["load_nvidia_dynamic_lib"] = load
    return made


@pytest.mark.parametrize("found", [None, "/opt/libcublas.so.13"])
def test_libraries_are_looked_for_by_nvidias_finder_in_wheels_and_in_the_system(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, found: str | None
) -> None:
    tried: list[str] = []

    def load(path: str) -> None:
        tried.append(path)
        raise OSError(path)

    wheel = tmp_path / "cu13" / "lib" / "libcublas.so.13"
    part = wheel.with_name("libcublas-builtins.so.13.0")
    wheel.parent.mkdir(parents=True)
    wheel.touch()
    part.touch()
    wheels = ModuleType("nvidia")
    wheels.__path__ = [str(tmp_path)]
    monkeypatch.setitem(sys.modules, "nvidia", wheels)
    monkeypatch.setitem(sys.modules, "cuda", ModuleType("cuda"))
    monkeypatch.setitem(sys.modules, "cuda.pathfinder", finder(found))
    monkeypatch.setattr(ctypes, "CDLL", load)
    assert libraries.load_library.__wrapped__("cublas") is None
    named = [] if found is None else [found]
    assert tried == [*named, str(part), str(wheel), "libcublas.so.13", "libcublas.so.12"]
