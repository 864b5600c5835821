"""cuBLAS on a fake GPU: checks what it is given as the real one would, and multiplies by numpy."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import numpy as np
from fake_gpu import FakeGpu
from plait.graph.dtypes import dtype_of

SUCCESS, INVALID_VALUE, NOT_SUPPORTED = 0, 7, 15
LEAST_WORKSPACE = 16 << 10
WORKSPACE_ALIGNMENT = 256
DTYPES = {0: "float32", 1: "float64", 2: "float16", 3: "int8", 10: "int32", 14: "bfloat16"}
COMPUTED = {
    68: (np.float32, {(2, 2), (0, 0), (14, 14)}),
    77: (np.float32, {(0, 0)}),
    70: (np.float64, {(1, 1)}),
    72: (np.int32, {(3, 10)}),
}
"""By cublasComputeType_t: what is computed with, and the types of factors and sums it takes."""


class Matrix(NamedTuple):
    """Columns of a stack of matrices in the GPU's memory."""

    address: int
    kind: int
    leading: int
    stride: int
    rows: int
    columns: int

    def array(self, gpu: FakeGpu, number: int) -> Any:
        """Return one of the stack, as a view of the memory."""
        dtype = dtype_of(DTYPES[self.kind])
        cells, offset = gpu.memory(self.address + number * self.stride * dtype.itemsize)
        strides = (dtype.itemsize, self.leading * dtype.itemsize)
        return np.ndarray((self.rows, self.columns), dtype, cells, offset, strides)


class FakeCublas:
    """The functions of the library that plait calls, for one handle.

    Attributes
    ----------
    calls : int
        How many products were queued or captured.
    open : int
        How many handles there are.
    computed : set of int
        The cublasComputeType_t that were asked for.
    forms : set of str
        How bytes were given: "TN" is the form that tensor cores take.
    """

    def __init__(self, gpu: FakeGpu) -> None:
        self.calls = 0
        self.open = 0
        self.computed: set[int] = set()
        self.forms: set[str] = set()
        self._gpu = gpu
        self._stream = 0
        self._workspace = (0, 0)

    def cublasCreate_v2(self, handle: Any) -> int:  # noqa: N802
        self.open += 1
        handle._obj.value = 77
        return SUCCESS

    def cublasDestroy_v2(self, handle: Any) -> int:  # noqa: N802
        self.open -= 1
        return SUCCESS

    def cublasSetMathMode(self, handle: Any, mode: Any) -> int:  # noqa: N802
        return SUCCESS if handle.value == 77 and mode.value == 16 else INVALID_VALUE

    def cublasSetStream_v2(self, handle: Any, stream: Any) -> int:  # noqa: N802
        self._stream, self._workspace = stream.value, (0, 0)
        return SUCCESS

    def cublasSetWorkspace_v2(self, handle: Any, workspace: Any, nbytes: Any) -> int:  # noqa: N802
        if workspace.value % WORKSPACE_ALIGNMENT:
            return INVALID_VALUE
        self._workspace = (workspace.value, nbytes.value)
        return SUCCESS

    def cublasGemmEx(self, *given: Any) -> int:  # noqa: N802
        _, op_a, op_b, m, n, k, alpha, *rest = given
        a, b, (beta, *_), c = rest[:3], rest[3:6], rest[6:7], rest[7:10]
        stacks = [[*matrix, 0] for matrix in (a, b, c)]
        return self._multiply((op_a, op_b), (m, n, k), (alpha, beta), stacks, 1, rest[10:])

    def cublasGemmStridedBatchedEx(self, *given: Any) -> int:  # noqa: N802
        _, op_a, op_b, m, n, k, alpha, *rest = given
        a, b, beta, c, batch = rest[:4], rest[4:8], rest[8], rest[9:13], rest[13]
        return self._multiply(
            (op_a, op_b), (m, n, k), (alpha, beta), [a, b, c], batch.value, rest[14:]
        )

    def _multiply(
        self, ops: Any, sizes: Any, scales: Any, stacks: Any, batch: int, how: Any
    ) -> int:
        compute, algorithm = (number.value for number in how)
        m, n, k = (size.value for size in sizes)
        swaps = [op.value == 1 for op in ops]
        shapes = [(k, m) if swaps[0] else (m, k), (n, k) if swaps[1] else (k, n), (m, n)]
        a, b, c = (
            Matrix(*[getattr(value, "value", value) for value in (*stack, *shape)])
            for stack, shape in zip(stacks, shapes, strict=True)
        )
        computed, kinds = COMPUTED[compute]
        if algorithm != -1 or any(one.leading < max(1, one.rows) for one in (a, b, c)):
            return INVALID_VALUE
        if a.kind != b.kind or (a.kind, c.kind) not in kinds:
            return NOT_SUPPORTED
        if a.kind == 3 and any(n % 4 for n in (k, a.leading, b.leading)):
            return NOT_SUPPORTED
        if a.kind == 3:
            self.forms.add("".join("NT"[swap] for swap in swaps))
        alpha, beta = (scale._obj.value for scale in scales)
        self.calls += 1
        self.computed.add(compute)
        run = partial(self._run, (a, b, c), swaps, (alpha, beta), batch, computed, self._workspace)
        self._gpu.launch(self._stream, run)
        return SUCCESS

    def _run(
        self,
        stacks: tuple[Matrix, Matrix, Matrix],
        swaps: list[bool],
        scales: tuple[float, float],
        batch: int,
        computed: type,
        workspace: tuple[int, int],
    ) -> None:
        address, nbytes = workspace
        assert nbytes >= LEAST_WORKSPACE, "cuBLAS would allocate a workspace"
        self._gpu.cells(address, nbytes).fill(0x3C)  # whatever else lies there is lost
        alpha, beta = scales
        for number in range(batch):
            a, b, c = (stack.array(self._gpu, number) for stack in stacks)
            left, right = (a.T if swaps[0] else a), (b.T if swaps[1] else b)
            product = alpha * (left.astype(computed) @ right.astype(computed))
            c[...] = product if beta == 0 else product + beta * c.astype(computed)
