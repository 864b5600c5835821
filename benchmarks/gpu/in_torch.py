"""A graph as calls of PyTorch, for comparison: the operators that image networks are made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from gpu.target import Target, Unsuitable
from plait.graph.core.ir import Graph, Node

Torch: TypeAlias = Any
Tensor: TypeAlias = Any


def torch_for(target: Target, *, tf32: bool = False) -> tuple[Torch, str]:
    """Return PyTorch and its name for the device; trials may have it on the processor.

    From then on it computes exactly, or with `tf32` as it does by default: convolutions in TF32,
    products of matrices not.

    Raises
    ------
    Unsuitable
        If it is not installed, or has no such device.
    """
    try:
        import torch
    except ImportError:
        raise Unsuitable("torch is not installed") from None
    if target.has_cupy and torch.cuda.is_available():
        torch.backends.cuda.matmul.allow_tf32 = False
        torch.backends.cudnn.allow_tf32 = tf32
        torch.backends.cudnn.benchmark = True
        return torch, target.name
    if target.small:
        return torch, "cpu"
    raise Unsuitable("torch has no CUDA device")


class Operation(NamedTuple):
    """A node, and its inputs as they come."""

    torch: Torch
    node: Node
    inputs: list[Tensor]
    constants: list[Any]
    shape: tuple[int, ...]

    def attribute(self, name: str, otherwise: Any = None) -> Any:
        """Return an attribute of the node."""
        value = self.node.attributes.get(name)
        return otherwise if value is None else value

    def static(self, index: int, otherwise: Any = None) -> Any:
        """Return a constant input as Python numbers."""
        if index >= len(self.constants) or self.constants[index] is None:
            return otherwise
        return self.constants[index].tolist()


class Network:
    """A graph of static shapes whose weights are on a device of PyTorch's.

    Raises
    ------
    Unsuitable
        If it has operators that are not among `OPERATIONS`.
    """

    def __init__(self, graph: Graph, torch: Torch, device: str) -> None:
        missing = sorted({node.op for node in graph.nodes} - set(OPERATIONS))
        if missing:
            raise Unsuitable(f"not written in torch here: {', '.join(missing)}")
        self._graph, self._torch, self._device = graph, torch, device
        weights = {name: np.array(value) for name, value in graph.constants.items()}
        self._weights = {name: torch.from_numpy(v).to(device) for name, v in weights.items()}

    def given(self, feeds: Mapping[str, Any]) -> dict[str, Tensor]:
        """Return inputs on the device."""
        return {n: self._torch.from_numpy(value).to(self._device) for n, value in feeds.items()}

    def __call__(self, inputs: Mapping[str, Tensor]) -> list[Tensor]:
        """Compute the outputs."""
        values, graph = {**self._weights, **inputs}, self._graph
        for node in graph.nodes:
            operation = Operation(
                self._torch,
                node,
                [values[name] if name else None for name in node.inputs],
                [graph.constants.get(name) for name in node.inputs],
                graph.tensors[node.outputs[0]].static_shape,
            )
            values[node.outputs[0]] = OPERATIONS[node.op](operation)
        return [values[name] for name in graph.outputs]


def captured(
    compute: Callable[[Mapping[str, Tensor]], list[Tensor]],
    torch: Torch,
    device: str,
    feeds: Mapping[str, Any],
) -> Callable[[Mapping[str, Any]], list[Any]]:
    """Return what runs a computation as a CUDA graph on a stream of its own, from numpy to numpy.

    As one would by hand: inputs and outputs go by page-locked memory, and one wait is for all of
    it. Its results are valid until the next call. One thread may call it at a time.

    Parameters
    ----------
    compute : callable
        Given tensors on the device, by name.
    torch : module
    device : str
    feeds : Mapping
        Inputs of the shapes and dtypes that it will be given.
    """
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    with torch.inference_mode(), torch.cuda.stream(stream):
        pinned = {name: torch.from_numpy(value).pin_memory() for name, value in feeds.items()}
        inputs = {name: value.to(device) for name, value in pinned.items()}
        for _ in range(3):  # as its documentation on CUDA graphs says
            compute(inputs)
        stream.synchronize()
        with torch.cuda.graph(graph, stream=stream):
            outputs = compute(inputs)
        results = [torch.empty_like(each, device="cpu").pin_memory() for each in outputs]
    staged = {name: value.numpy() for name, value in pinned.items()}

    # The graph has addresses: it does not keep alive the weights that `compute` holds.
    def replay(given: Mapping[str, Any], _held: object = compute) -> list[Any]:
        with torch.inference_mode(), torch.cuda.stream(stream):
            for name, value in given.items():
                np.copyto(staged[name], value)
                inputs[name].copy_(pinned[name], non_blocking=True)
            graph.replay()
            for result, output in zip(results, outputs, strict=True):
                result.copy_(output, non_blocking=True)
            stream.synchronize()
        return [each.numpy() for each in results]

    return replay


def _padded(by: Operation, fill: float = 0.0) -> tuple[Tensor, list[int]]:
    """Return the input, padded where sides differ, and what padding is left to do."""
    x, rank = by.inputs[0], by.inputs[0].dim() - 2
    if by.attribute("auto_pad", "NOTSET") not in ("NOTSET", "VALID"):
        raise Unsuitable("padding by name is not written in torch here")
    pads = by.attribute("pads", (0,) * (2 * rank))
    begin, end = list(pads[:rank]), list(pads[rank:])
    if begin == end:
        return x, begin
    sides = [side for pair in zip(reversed(begin), reversed(end), strict=True) for side in pair]
    return by.torch.nn.functional.pad(x, sides, value=fill), [0] * rank


def _conv(by: Operation) -> Tensor:
    x, padding = _padded(by)
    ones = [1] * (x.dim() - 2)
    bias = by.inputs[2] if len(by.inputs) > 2 else None
    convolve = getattr(by.torch.nn.functional, f"conv{x.dim() - 2}d")
    steps = by.attribute("strides", ones), padding, by.attribute("dilations", ones)
    return convolve(x, by.inputs[1], bias, *steps, by.attribute("group", 1))


def _conv_transpose(by: Operation) -> Tensor:
    x, padding = _padded(by)
    ones = [1] * (x.dim() - 2)
    bias = by.inputs[2] if len(by.inputs) > 2 else None
    convolve = getattr(by.torch.nn.functional, f"conv_transpose{x.dim() - 2}d")
    more = by.attribute("output_padding", 0), by.attribute("group", 1)
    strides, dilations = by.attribute("strides", ones), by.attribute("dilations", ones)
    return convolve(x, by.inputs[1], bias, strides, padding, *more, dilations)


def _max_pool(by: Operation) -> Tensor:
    x, padding = _padded(by, -float("inf"))
    size, ones = by.attribute("kernel_shape"), [1] * (x.dim() - 2)
    steps = by.attribute("strides", ones), padding, by.attribute("dilations", ones)
    return by.torch.nn.functional.max_pool2d(x, size, *steps, by.attribute("ceil_mode", False))


def _average_pool(by: Operation) -> Tensor:
    x, padding = _padded(by)
    size, ones = by.attribute("kernel_shape"), [1] * (x.dim() - 2)
    ceil, count = by.attribute("ceil_mode", False), by.attribute("count_include_pad", False)
    pool = by.torch.nn.functional.avg_pool2d
    return pool(x, size, by.attribute("strides", ones), padding, ceil, count)


def _batch_normalization(by: Operation) -> Tensor:
    x, scale, bias, mean, variance = by.inputs
    normalize = by.torch.nn.functional.batch_norm
    return normalize(x, mean, variance, scale, bias, False, 0.0, by.attribute("epsilon", 1e-5))


def _gemm(by: Operation) -> Tensor:
    a, b = by.inputs[:2]
    a = a.mT if by.attribute("transA", False) else a
    b = b.mT if by.attribute("transB", False) else b
    product = by.attribute("alpha", 1.0) * (a @ b)
    more = len(by.inputs) > 2 and by.inputs[2] is not None
    return product + by.attribute("beta", 1.0) * by.inputs[2] if more else product


def _slice(by: Operation) -> Tensor:
    x, starts, ends = by.inputs[0], by.static(1), by.static(2)
    axes = by.static(3, list(range(len(starts))))
    steps = by.static(4, [1] * len(starts))
    cut = [slice(None)] * x.dim()
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        cut[axis] = slice(start, end, step)
    return x[tuple(cut)]


def _reduce_mean(by: Operation) -> Tensor:
    axes = by.attribute("axes", by.static(1))
    return by.inputs[0].mean(tuple(axes), keepdim=bool(by.attribute("keepdims", True)))


def _hard_sigmoid(by: Operation) -> Tensor:
    return (by.inputs[0] * by.attribute("alpha", 0.2) + by.attribute("beta", 0.5)).clamp(0, 1)


def _resize(by: Operation) -> Tensor:
    if by.attribute("mode", "nearest") != "nearest":
        raise Unsuitable("only the nearest neighbour is written in torch here")
    return by.torch.nn.functional.interpolate(by.inputs[0], by.shape[2:], mode="nearest")


def _shaped(by: Operation) -> Tensor:
    return by.inputs[0].reshape(by.shape)


def _pooled_globally(by: Operation) -> Tensor:
    return by.inputs[0].mean(tuple(range(2, by.inputs[0].dim())), keepdim=True)


OPERATIONS: Mapping[str, Callable[[Operation], Tensor]] = {
    "Add": lambda by: by.inputs[0] + by.inputs[1],
    "AveragePool": _average_pool,
    "BatchNormalization": _batch_normalization,
    "Clip": lambda by: by.torch.clamp(by.inputs[0], by.static(1), by.static(2)),
    "Concat": lambda by: by.torch.cat(by.inputs, by.attribute("axis")),
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
    "Div": lambda by: by.inputs[0] / by.inputs[1],
    "Flatten": _shaped,
    "Gemm": _gemm,
    "GlobalAveragePool": _pooled_globally,
    "HardSigmoid": _hard_sigmoid,
    "Identity": lambda by: by.inputs[0],
    "MatMul": lambda by: by.inputs[0] @ by.inputs[1],
    "MaxPool": _max_pool,
    "Mul": lambda by: by.inputs[0] * by.inputs[1],
    "Pow": lambda by: by.inputs[0] ** by.inputs[1],
    "ReduceMean": _reduce_mean,
    "Relu": lambda by: by.torch.relu(by.inputs[0]),
    "Reshape": _shaped,
    "Resize": _resize,
    "Sigmoid": lambda by: by.torch.sigmoid(by.inputs[0]),
    "Slice": _slice,
    "Softmax": lambda by: by.torch.softmax(by.inputs[0], by.attribute("axis", -1)),
    "Sqrt": lambda by: by.inputs[0].sqrt(),
    "Squeeze": _shaped,
    "Sub": lambda by: by.inputs[0] - by.inputs[1],
    "Sum": lambda by: sum(by.inputs),
    "Transpose": lambda by: by.inputs[0].permute(by.attribute("perm")),
    "Unsqueeze": _shaped,
}
