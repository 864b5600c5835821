"""Descriptors of cuDNN's graph API: objects with attributes by number, then finalized.

Names and numbers are those of its header, cudnn_graph.h.
"""

from __future__ import annotations

import weakref
from ctypes import byref, c_bool, c_float, c_int, c_int64, c_size_t, c_void_p, create_string_buffer
from enum import IntEnum
from typing import Any

from ..errors import DeviceError
from .libraries import RefusedError

SUCCESS = 0
REFUSED = range(2000, 5000)
"""Statuses of invalid, unsupported or uncompiled work: nothing was queued."""
MESSAGE_NBYTES = 512


class DescriptorKind(IntEnum):
    """cudnnBackendDescriptorType_t."""

    POINTWISE = 0
    CONVOLUTION = 1
    ENGINE = 2
    ENGINECFG = 3
    ENGINEHEUR = 4
    EXECUTION_PLAN = 5
    OPERATION_CONVOLUTION_FORWARD = 10
    OPERATION_POINTWISE = 13
    OPERATIONGRAPH = 15
    VARIANT_PACK = 16
    TENSOR = 17
    MATMUL = 18
    OPERATION_MATMUL = 19
    REDUCTION = 21
    OPERATION_REDUCTION = 22


class Type(IntEnum):
    """cudnnBackendAttributeType_t, the type of an attribute's elements."""

    HANDLE = 0
    DATA_TYPE = 1
    BOOLEAN = 2
    INT64 = 3
    FLOAT = 4
    VOID_PTR = 6
    CONVOLUTION_MODE = 7
    HEUR_MODE = 8
    NUMERICAL_NOTE = 11
    POINTWISE_MODE = 14
    BACKEND_DESCRIPTOR = 15
    REDUCTION_OPERATOR_TYPE = 18


class Name(IntEnum):
    """cudnnBackendAttributeName_t."""

    POINTWISE_MODE = 0
    POINTWISE_MATH_PREC = 1
    POINTWISE_AXIS = 9
    CONVOLUTION_COMP_TYPE = 100
    CONVOLUTION_CONV_MODE = 101
    CONVOLUTION_DILATIONS = 102
    CONVOLUTION_FILTER_STRIDES = 103
    CONVOLUTION_POST_PADDINGS = 104
    CONVOLUTION_PRE_PADDINGS = 105
    CONVOLUTION_SPATIAL_DIMS = 106
    ENGINEHEUR_MODE = 200
    ENGINEHEUR_OPERATION_GRAPH = 201
    ENGINEHEUR_RESULTS = 202
    ENGINECFG_ENGINE = 300
    EXECUTION_PLAN_HANDLE = 400
    EXECUTION_PLAN_ENGINE_CONFIG = 401
    EXECUTION_PLAN_WORKSPACE_SIZE = 402
    OPERATION_CONVOLUTION_FORWARD_ALPHA = 700
    OPERATION_CONVOLUTION_FORWARD_BETA = 701
    OPERATION_CONVOLUTION_FORWARD_CONV_DESC = 702
    OPERATION_CONVOLUTION_FORWARD_W = 703
    OPERATION_CONVOLUTION_FORWARD_X = 704
    OPERATION_CONVOLUTION_FORWARD_Y = 705
    OPERATION_POINTWISE_PW_DESCRIPTOR = 750
    OPERATION_POINTWISE_XDESC = 751
    OPERATION_POINTWISE_BDESC = 752
    OPERATION_POINTWISE_YDESC = 753
    OPERATION_POINTWISE_TDESC = 758
    OPERATIONGRAPH_HANDLE = 800
    OPERATIONGRAPH_OPS = 801
    TENSOR_BYTE_ALIGNMENT = 900
    TENSOR_DATA_TYPE = 901
    TENSOR_DIMENSIONS = 902
    TENSOR_STRIDES = 903
    TENSOR_UNIQUE_ID = 906
    TENSOR_IS_VIRTUAL = 907
    TENSOR_IS_BY_VALUE = 908
    VARIANT_PACK_UNIQUE_IDS = 1000
    VARIANT_PACK_DATA_POINTERS = 1001
    VARIANT_PACK_WORKSPACE = 1003
    ENGINE_NUMERICAL_NOTE = 1303
    MATMUL_COMP_TYPE = 1500
    OPERATION_MATMUL_ADESC = 1520
    OPERATION_MATMUL_BDESC = 1521
    OPERATION_MATMUL_CDESC = 1522
    OPERATION_MATMUL_DESC = 1523
    REDUCTION_OPERATOR = 1600
    REDUCTION_COMP_TYPE = 1601
    OPERATION_REDUCTION_XDESC = 1610
    OPERATION_REDUCTION_YDESC = 1611
    OPERATION_REDUCTION_DESC = 1612


IN_C: dict[Type, Any] = {
    **dict.fromkeys(Type, c_int),
    Type.HANDLE: c_void_p,
    Type.BOOLEAN: c_bool,
    Type.INT64: c_int64,
    Type.FLOAT: c_float,
    Type.VOID_PTR: c_void_p,
    Type.BACKEND_DESCRIPTOR: c_void_p,
}
"""The ctypes type of an element."""


class Descriptor:
    """A descriptor, destroyed with this object and all descriptors made from it."""

    def __init__(self, library: Any, kind: DescriptorKind) -> None:
        self._library = library
        self._held: list[Descriptor] = []
        self.value = c_void_p()
        made = library.cudnnBackendCreateDescriptor(c_int(kind), byref(self.value))
        check(library, made, f"a descriptor of kind {kind.name}")
        weakref.finalize(self, library.cudnnBackendDestroyDescriptor, self.value).atexit = False

    def set(self, name: Name, kind: Type, *values: Any) -> Descriptor:
        self._held += [value for value in values if isinstance(value, Descriptor)]
        elements = (IN_C[kind] * len(values))(*map(_unwrap, values))
        given = c_int(name), c_int(kind), c_int64(len(values)), elements
        status = self._library.cudnnBackendSetAttribute(self.value, *given)
        check(self._library, status, f"setting {name.name}")
        return self

    def finalize(self) -> Descriptor:
        status = self._library.cudnnBackendFinalize(self.value)
        check(self._library, status, "cudnnBackendFinalize", queues=False)
        return self

    def get(self, name: Name, kind: Type, most: int) -> list[Any]:
        elements = (IN_C[kind] * most)()
        return list(elements[: self._get(name, kind, elements)])

    def get_descriptors(self, name: Name, kind: DescriptorKind, most: int) -> list[Descriptor]:
        made = [Descriptor(self._library, kind) for _ in range(most)]
        elements = (c_void_p * most)(*map(_unwrap, made))
        count = self._get(name, Type.BACKEND_DESCRIPTOR, elements)
        for each in made:
            each._held.append(self)
        return made[:count]

    def _get(self, name: Name, kind: Type, elements: Any) -> int:
        count = c_int64()
        given = c_int(name), c_int(kind), c_int64(len(elements)), byref(count), elements
        status = self._library.cudnnBackendGetAttribute(self.value, *given)
        check(self._library, status, f"getting {name.name}")
        return min(count.value, len(elements))


def check(library: Any, status: int, action: str, *, queues: bool = True) -> None:
    """Raise DeviceError if `action` failed in cuDNN, or RefusedError if it only refuses this work.

    `status` is the result of a call of `library`. Without `queues`, a failure means that nothing
    was queued, such as a kernel that was not loaded.
    """
    if status == SUCCESS:
        return
    message = create_string_buffer(MESSAGE_NBYTES)
    library.cudnnGetLastErrorString(message, c_size_t(MESSAGE_NBYTES))
    kind = DeviceError if queues and status not in REFUSED else RefusedError
    raise kind(
        f"{action} fails: status {status} of cuDNN, {message.value.decode(errors='replace')!r}",
        fix="report this, with the version of cuDNN; CudaDevice(cudnn=None) does without it",
    )


def _unwrap(value: Any) -> Any:
    handle = value.value if isinstance(value, Descriptor) else value
    return handle.value if isinstance(handle, c_void_p) else handle
