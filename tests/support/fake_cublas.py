"""cublasLt on a fake GPU: checks what it is given as the real one would; numpy multiplies."""

from __future__ import annotations

from functools import partial
from itertools import count
from typing import Any, NamedTuple

import numpy as np
from fake_gpu import FakeGpu
from plait.graph.values.dtypes import dtype_of

SUCCESS, INVALID_VALUE, EXECUTION_FAILED, NOT_SUPPORTED = 0, 7, 13, 15
HANDLE = 77
LEAST_WORKSPACE = 16 << 10
WORKSPACE_ALIGNMENT = 256
ALIGNMENTS = (5, 6, 7, 8)
"""cublasLtMatmulPreferenceAttributes_t, of a, b, c and d."""
DTYPES = {0: "float32", 1: "float64", 2: "float16", 3: "int8", 10: "int32", 14: "bfloat16"}
COMPUTED = {
    (68, 0): (np.float32, {(2, 2), (2, 0), (0, 0), (14, 14), (14, 0)}),
    (77, 0): (np.float32, {(0, 0)}),
    (70, 1): (np.float64, {(1, 1)}),
    (72, 10): (np.int32, {(3, 10)}),
}
"""By cublasComputeType_t and the type of alpha: what is computed with, and the types of factors and
sums it takes."""
EPILOGUES = {1: (False, False), 4: (True, False), 6: (True, True)}
BIASED = (0, 2, 14)


class Operation:
    """cublasLtMatmulDesc_t."""

    def __init__(self, compute: Any, scales: Any) -> None:
        self.how = compute.value, scales.value
        self.given: dict[int, int] = {7: 1}

    @property
    def form(self) -> str:
        """How the factors lie, as cuBLAS calls it."""
        return "".join("NT"[self.given[number]] for number in (3, 4))


class Layout:
    """cublasLtMatrixLayout_t: columns of a stack of matrices."""

    def __init__(self, kind: Any, rows: Any, columns: Any, leading: Any) -> None:
        self.kind, self.shape = kind.value, (rows.value, columns.value)
        self.leading = leading.value
        self.given: dict[int, int] = {5: 1, 6: 0}

    def array(self, gpu: FakeGpu, address: int, number: int) -> Any:
        """Return one of the stack, as a view of the memory."""
        dtype = dtype_of(DTYPES[self.kind])
        cells, offset = gpu.memory(address + number * self.given[6] * dtype.itemsize)
        strides = (dtype.itemsize, self.leading * dtype.itemsize)
        return np.ndarray(self.shape, dtype, cells, offset, strides)


class Preference:
    """cublasLtMatmulPreference_t."""

    def __init__(self) -> None:
        self.given: dict[int, int] = dict.fromkeys(ALIGNMENTS, 256)


class Call(NamedTuple):
    """A product that was queued."""

    operation: Operation
    factors: tuple[Layout, Layout]
    result: Layout
    scales: tuple[float, float]


class FakeCublas:
    """The functions of the library that plait calls, for one handle.

    Attributes
    ----------
    calls : int
        How many products were queued or captured.
    open, described : int
        How many handles and descriptions there are.
    computed : set of int
        The cublasComputeType_t that were asked for.
    forms : set of str
        How bytes were given: "TN" is the form that tensor cores take.
    epilogues : set of int
        The cublasLtEpilogue_t that were asked for.
    """

    def __init__(self, gpu: FakeGpu) -> None:
        self.calls = 0
        self.open = 0
        self.computed: set[int] = set()
        self.forms: set[str] = set()
        self.epilogues: set[int] = set()
        self._loaded: set[Any] = set()
        self._gpu = gpu
        self._known: dict[int, Any] = {}
        self._numbers = count(1 << 41)
        self.cublasLtGetVersion = _version

    @property
    def described(self) -> int:
        return len(self._known)

    def cublasLtCreate(self, handle: Any) -> int:  # noqa: N802
        self.open += 1
        handle._obj.value = HANDLE
        return SUCCESS

    def cublasLtDestroy(self, handle: Any) -> int:  # noqa: N802
        self.open -= 1
        return SUCCESS

    def cublasLtMatmulDescCreate(self, made: Any, compute: Any, scales: Any) -> int:  # noqa: N802
        return self._make(made, Operation(compute, scales))

    def cublasLtMatrixLayoutCreate(self, made: Any, *given: Any) -> int:  # noqa: N802
        return self._make(made, Layout(*given))

    def cublasLtMatmulPreferenceCreate(self, made: Any) -> int:  # noqa: N802
        return self._make(made, Preference())

    def cublasLtMatmulDescSetAttribute(self, *given: Any) -> int:  # noqa: N802
        return self._set({3: 4, 4: 4, 7: 4, 8: 8}, *given)

    def cublasLtMatrixLayoutSetAttribute(self, *given: Any) -> int:  # noqa: N802
        return self._set({5: 4, 6: 8}, *given)

    def cublasLtMatmulPreferenceSetAttribute(self, *given: Any) -> int:  # noqa: N802
        return self._set({1: 8, 3: 4, **dict.fromkeys(ALIGNMENTS, 4)}, *given)

    def cublasLtMatmulDescDestroy(self, described: Any) -> int:  # noqa: N802
        return self._destroy(described)

    def cublasLtMatrixLayoutDestroy(self, described: Any) -> int:  # noqa: N802
        return self._destroy(described)

    def cublasLtMatmulPreferenceDestroy(self, described: Any) -> int:  # noqa: N802
        return self._destroy(described)

    def cublasLtMatmulAlgoGetHeuristic(self, *given: Any) -> int:  # noqa: N802
        handle, operation, a, b, c, d, wanted, most, found, number = given
        assert (handle.value, most.value) == (HANDLE, 1)
        assert self._known[wanted.value].given[1] >= LEAST_WORKSPACE
        assert self._known[wanted.value].given[3] == 2, "sums of halves are halves"
        assert c.value == d.value
        status = self._status(*(self._known[each.value] for each in (operation, a, b, d)))
        number._obj.value = int(status == SUCCESS)
        found._obj.algorithm[0] = operation.value
        asked = self._known[wanted.value].given
        found._obj.algorithm[1:5] = [asked[attribute] for attribute in ALIGNMENTS]
        return status

    def cublasLtMatmul(self, *given: Any) -> int:  # noqa: N802
        handle, operation, alpha, a, of_a, b, of_b, beta, c, of_c, d, of_d, *rest = given
        algorithm, workspace, nbytes, stream = rest
        assert (handle.value, c.value, of_c.value) == (HANDLE, d.value, of_d.value)
        assert algorithm._obj[0], "not one of the heuristics'"
        described = [self._known[each.value] for each in (operation, of_a, of_b, of_d)]
        if workspace.value % WORKSPACE_ALIGNMENT or self._status(*described) != SUCCESS:
            return INVALID_VALUE
        places = zip((a, b, c, d), algorithm._obj[1:5], strict=True)
        if any(place.value % alignment for place, alignment in places):
            return INVALID_VALUE
        operation, *factors, result = described
        form = (*operation.how, operation.form, *((one.kind, one.shape) for one in described[1:]))
        if self._gpu.is_capturing(stream.value) and form not in self._loaded:
            return EXECUTION_FAILED
        self._loaded.add(form)
        if factors[0].kind == 3:
            self.forms.add(operation.form)
        self.calls += 1
        self.computed.add(operation.how[0])
        self.epilogues.add(operation.given[7])
        scales = alpha._obj.value, beta._obj.value
        call = Call(operation, (factors[0], factors[1]), result, scales)
        addresses = [each.value for each in (a, b, d)]
        room = workspace.value, nbytes.value
        self._gpu.launch(stream.value, partial(self._run, call, addresses, room))
        return SUCCESS

    def _make(self, made: Any, what: object) -> int:
        made._obj.value = next(self._numbers)
        self._known[made._obj.value] = what
        return SUCCESS

    def _set(self, sizes: dict[int, int], made: Any, name: Any, value: Any, nbytes: Any) -> int:
        if sizes.get(name.value) != nbytes.value:
            return INVALID_VALUE
        self._known[made.value].given[name.value] = value._obj.value
        return SUCCESS

    def _destroy(self, described: Any) -> int:
        del self._known[described.value]
        return SUCCESS

    def _status(self, operation: Operation, a: Layout, b: Layout, d: Layout) -> int:
        """Return what cuBLAS would say of such a product."""
        (m, k), (deep, n) = (
            each.shape[::-1] if swap == "T" else each.shape
            for each, swap in zip((a, b), operation.form, strict=True)
        )
        if (
            k != deep
            or (m, n) != d.shape
            or any(each.leading < each.shape[0] for each in (a, b, d))
        ):
            return INVALID_VALUE
        _, kinds = COMPUTED[operation.how]
        adds, _ = EPILOGUES[operation.given[7]]
        if a.kind != b.kind or (a.kind, d.kind) not in kinds or (adds and d.kind not in BIASED):
            return NOT_SUPPORTED
        lengths = (m, k, a.leading, b.leading, d.leading)
        if a.kind == 3 and any(length % 4 for length in lengths):
            return NOT_SUPPORTED
        return SUCCESS

    def _run(self, call: Call, addresses: list[int], room: tuple[int, int]) -> None:
        address, nbytes = room
        assert nbytes >= LEAST_WORKSPACE
        self._gpu.cells(address, nbytes).fill(0x3C)  # whatever else lies there is lost
        computed, _ = COMPUTED[call.operation.how]
        adds, rectifies = EPILOGUES[call.operation.given[7]]
        layouts = (*call.factors, call.result)
        for number in range(call.result.given[5]):
            a, b, d = (
                layout.array(self._gpu, place, number)
                for layout, place in zip(layouts, addresses, strict=True)
            )
            left, right = (
                factor.T if swap == "T" else factor
                for factor, swap in zip((a, b), call.operation.form, strict=True)
            )
            alpha, beta = call.scales
            product = alpha * (left.astype(computed) @ right.astype(computed))
            if beta:
                product = product + beta * d.astype(computed)
            if adds:
                product = product + self._row(call).astype(computed)[:, None]
            d[...] = np.maximum(product, 0) if rectifies else product

    def _row(self, call: Call) -> Any:
        dtype = dtype_of(DTYPES[call.result.kind])
        cells, offset = self._gpu.memory(call.operation.given[8])
        return np.ndarray(call.result.shape[:1], dtype, cells, offset)


def _version() -> int:
    return 130100
