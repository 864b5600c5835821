"""Errors of CUDA, by their codes, as CuPy raises them."""

from __future__ import annotations

INVALID_VALUE, OUT_OF_MEMORY, ILLEGAL_ADDRESS, LAUNCH_FAILURE = 1, 2, 700, 719
NOT_SUPPORTED, ALREADY_REGISTERED, NOT_REGISTERED, INVALID_HANDLE = 801, 712, 713, 400
NOT_FOUND, CAPTURE_UNSUPPORTED, PEER_ACCESS_ALREADY_ENABLED = 500, 900, 704
INVALID_CONTEXT, UNKNOWN = 201, 999
NAMES = {
    1: "cudaErrorInvalidValue: invalid argument",
    2: "cudaErrorMemoryAllocation: out of memory",
    35: "cudaErrorInsufficientDriver: CUDA driver version is insufficient",
    400: "cudaErrorInvalidResourceHandle: invalid resource handle",
    700: "cudaErrorIllegalAddress: an illegal memory access was encountered",
    704: "cudaErrorPeerAccessAlreadyEnabled: peer access is already enabled",
    712: "cudaErrorHostMemoryAlreadyRegistered: part or all is registered already",
    713: "cudaErrorHostMemoryNotRegistered: pointer is not registered",
    719: "cudaErrorLaunchFailure: unspecified launch failure",
    801: "cudaErrorNotSupported: operation not supported",
    999: "cudaErrorUnknown: unknown error",
    900: "cudaErrorStreamCaptureUnsupported: operation not permitted when stream is capturing",
}


class CUDARuntimeError(RuntimeError):
    """As in CuPy: the code is in `status`."""

    def __init__(self, status: int) -> None:
        self.status = status
        super().__init__(NAMES[status])


class CUDADriverError(RuntimeError):
    """As in CuPy: the code is in `status`."""

    def __init__(self, status: int) -> None:
        self.status = status
        super().__init__(f"CUDA driver error {status}")
