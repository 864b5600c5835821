"""The memory of other GPUs: copied directly, or by the driver through the host, with `cupy`."""

from __future__ import annotations

from .driver import CuPy, count_devices

ALREADY_ENABLED, TOO_MANY = 704, 711
"""cudaErrorPeerAccessAlreadyEnabled: by another library; cudaErrorTooManyPeers."""


def list_peer_memories(cupy: CuPy, index: int) -> frozenset[str]:
    """Return the memories of all devices of `cupy` but `index`: CUDA copies between any two.

    Without a direct route the driver stages the bytes in host memory, in order.
    """
    return frozenset(f"cuda:{other}" for other in range(count_devices(cupy)) if other != index)


def is_direct(cupy: CuPy, index: int, other: int) -> bool:
    """Return whether the hardware gives device `index` access to the memory of `other`.

    `cupy` is the module that is asked.
    """
    return bool(cupy.cuda.runtime.deviceCanAccessPeer(index, other))


class Peers:
    """Opens direct routes between a device and others, if there are any."""

    def __init__(self, cupy: CuPy, index: int) -> None:
        self._cupy = cupy
        self._index = index
        self._reached: set[int] = set()

    def reach(self, other: int) -> None:
        """Enable direct copies from device `other`, which is in use, if possible.

        Not earlier: an idle device would get a context, which takes memory and time.
        """
        if other not in self._reached:
            for one, peer in ((self._index, other), (other, self._index)):
                if is_direct(self._cupy, one, peer):
                    self._enable(one, peer)
            self._reached.add(other)

    def _enable(self, one: int, peer: int) -> None:
        runtime = self._cupy.cuda.runtime
        with self._cupy.cuda.Device(one):
            try:
                runtime.deviceEnablePeerAccess(peer)
            except runtime.CUDARuntimeError as error:
                if error.status not in (ALREADY_ENABLED, TOO_MANY):
                    raise
