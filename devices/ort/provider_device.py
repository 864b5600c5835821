"""Devices on another provider of ONNX Runtime than its own kernels for processors."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property

from ..device import Capabilities
from ..host import given
from .device import OrtDevice
from .plugins import ProviderEngine, find
from .providers import Place
from .runtime import runtime
from .threads import ONE_THREAD, Threads


class ProviderDevice(OrtDevice):
    """Hands subgraphs to a provider, such as OpenVINO's, by way of ONNX Runtime.

    Parameters
    ----------
    name : str
        ``"ort:openvino"``, ``"ort:cuda:0"``: see `providers`.
    place : Place
        What that stands for.
    precision : str, optional
        In which products and sums are computed; that of the model when left out.
    threads : int, optional
        As of `OrtDevice`, where the provider computes on the processor.
    cache : str, optional
        A folder for what the provider compiles.
    settings : str, optional
        The provider's own options, as JSON; they go before all others.

    Notes
    -----
    Planned memory is the host's: ONNX Runtime copies inputs to the provider's memory in each run,
    and outputs from there.
    """

    def __init__(
        self,
        name: str,
        place: Place,
        *,
        precision: str | None = None,
        threads: int | None = None,
        cache: str | None = None,
        settings: str | None = None,
    ) -> None:
        if place.hardware == "cpu":  # of which there is one: numbers tell devices on it apart
            place = place._replace(number=0)
        more = {"precision": precision, "cache": cache, "settings": settings}
        told = {option: value for option, value in more.items() if value is not None}
        super().__init__(name, engine=ProviderEngine(place.kind, place, **told), threads=threads)
        self.options = {**given(threads, None), **told}
        self._place = place

    @cached_property
    def capabilities(self) -> Capabilities:
        """What it is like; raises DeviceUnavailableError where it is not there."""
        found = find(self._place)
        named = f"{self._place.provider.registered} {found.version}"
        on = f", on {found.hardware}" if found.hardware else ""
        return replace(
            super().capabilities, software=f"{named} of onnxruntime {runtime().__version__}{on}"
        )

    def open(self, cores: int | None = None) -> None:
        """Start the lane's thread, once the provider is found."""
        find(self._place)
        super().open(cores)

    def _spins(self, cores: int) -> bool:
        return False  # its threads are told of no spinning


class AcceleratorDevice(ProviderDevice):
    """A device on a provider that takes none of the host's cores: it has hardware of its own."""

    def reached(self) -> str:
        """Return on what it computes."""
        return f"by ONNX Runtime, on {find(self._place).hardware or 'hardware that it finds'}"

    def speedup(self, seconds: float, cores: int) -> float:
        """Return 1: the host's cores are of no use."""
        return 1.0

    def _threads(self, seconds: float, cores: int) -> Threads:
        return ONE_THREAD
