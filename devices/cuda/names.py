"""Names of CUDA devices: ``cuda:N`` is a GPU, ``cuda:N/A-B`` a share of its multiprocessors."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from ..errors import DeviceUnavailableError

KIND = "cuda"
ALL = 100
"""Percent."""

_GPU = re.compile(rf"{KIND}(?::(\d*))?", re.ASCII)
_SHARE = re.compile(rf"{KIND}:(\d+)/(\d{{1,3}})-(\d{{1,3}})", re.ASCII)


@dataclass(frozen=True, slots=True)
class CudaName:
    index: int
    """CUDA's number of the GPU."""
    first: int = 0
    last: int = ALL
    """Begin and end of its share, in percent of the GPU's multiprocessors."""

    @property
    def gpu(self) -> str:
        """The name of the whole GPU, and of its memory, which its shares have in common."""
        return f"{KIND}:{self.index}"

    @property
    def fraction(self) -> float:
        return (self.last - self.first) / ALL


@lru_cache
def parse_name(name: str) -> CudaName:
    """Parse `name`; ``cuda`` is ``cuda:0``.

    Raises DeviceUnavailableError if it is not the name of a CUDA device.
    """
    if (found := _GPU.fullmatch(name)) is not None:
        return CudaName(int(found[1] or 0))
    if (found := _SHARE.fullmatch(name)) is not None:
        share = CudaName(*map(int, found.groups()))
        if share.first < share.last <= ALL:
            return share
    if "/" in name:
        raise DeviceUnavailableError(
            f"{name!r} is not a share of a CUDA device",
            fix="give a range of percent: 'cuda:0/0-40' and 'cuda:0/40-100' are all of cuda:0",
        )
    raise DeviceUnavailableError(
        f"{name!r} is not a CUDA device", fix="name one by its number: 'cuda:0'"
    )


def parse_share(name: str) -> CudaName | None:
    if not name.startswith(f"{KIND}:") or "/" not in name:
        return None
    return parse_name(name)
