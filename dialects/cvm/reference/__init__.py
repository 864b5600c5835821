"""Definitions of CVM's exact operators, element by element: the oracle of their kernels."""

from . import detection, elementwise, neural, reduction, selecting, shaping  # noqa: F401 - each registers its own
