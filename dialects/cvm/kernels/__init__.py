"""Kernels of the exact operators of CVM: the same bits for any int32 input, on any array module."""

from . import detection, elementwise, neural, reduction, selecting, shaping  # noqa: F401 - each registers its own
