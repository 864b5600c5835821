"""Other runtimes on the same model: ONNX Runtime and PyTorch, where they are installed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from gpu.in_torch import Network, captured, torch_for
from gpu.target import Target, Unsuitable
from plait.graph.values.tensor import Array
from plait.scheduler.shapes.specialise import specialise

Run: TypeAlias = Callable[[], list[Array]]
"""Copies inputs to the device, computes, and returns the outputs as numpy arrays."""

ON_GPU, ON_CPU = "onnxruntime on the GPU", "onnxruntime on the CPU"
CAPTURED = "torch as a CUDA graph"


def rivals(
    target: Target, path: Path, graph: Any, feeds: Mapping[str, Array], *, tf32: bool = False
) -> tuple[dict[str, Run], dict[str, str]]:
    """Return who takes part on the GPU, and why others do not; with `tf32` those that have it."""
    there: dict[str, Run] = {}
    absent: dict[str, str] = {}
    makers: dict[str, Callable[[], Run]] = {
        CAPTURED: partial(_by_torch, target, graph, feeds, tf32=tf32),
    }
    if not tf32:
        makers[ON_GPU] = partial(_by_onnxruntime, "CUDAExecutionProvider", path, feeds)
    for name, make in makers.items():
        try:
            there[name] = make()
            there[name]()
        except Exception as error:
            there.pop(name, None)
            absent[name] = str(error).splitlines()[0] if str(error) else repr(error)
    return there, absent


def on_cpu(path: Path, feeds: Mapping[str, Array]) -> Run:
    """Return ONNX Runtime on all cores.

    Raises
    ------
    Unsuitable
        If it is not installed.
    """
    return _by_onnxruntime("CPUExecutionProvider", path, feeds)


def _by_onnxruntime(provider: str, path: Path, feeds: Mapping[str, Array]) -> Run:
    try:
        import onnxruntime
    except ImportError:
        raise Unsuitable("onnxruntime is not installed") from None
    if provider not in onnxruntime.get_available_providers():
        raise Unsuitable(f"this onnxruntime has no {provider}")
    if provider.startswith("CUDA") and hasattr(onnxruntime, "preload_dlls"):
        onnxruntime.preload_dlls()
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    exact: dict[str, str] = {"use_tf32": "0"} if provider.startswith("CUDA") else {}
    session = onnxruntime.InferenceSession(path, options, providers=[(provider, exact)])
    if session.get_providers()[0] != provider:
        raise Unsuitable(f"{provider} does not start")

    def run() -> list[Array]:
        outputs: list[Array] = session.run(None, dict(feeds))
        return outputs

    return run


def _by_torch(target: Target, graph: Any, feeds: Mapping[str, Array], *, tf32: bool) -> Run:
    torch, device = torch_for(target, tf32=tf32)
    shapes = {name: value.shape for name, value in feeds.items()}
    network = Network(specialise(graph, shapes), torch, device)
    if device != "cpu":
        return partial(captured(network, torch, device, feeds), feeds)

    def run() -> list[Array]:
        with torch.inference_mode():
            return [each.numpy() for each in network(network.given(feeds))]

    return run
