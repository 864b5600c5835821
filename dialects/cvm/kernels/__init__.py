"""Kernels of the exact operators of CVM: the same bits for any int32 input, on any array module.

A kernel gets the array module `xp`, `inputs`, `outputs`, `attributes` and, if its operator has
any, `scratch` arrays; it returns the step that computes y.
"""

from . import detection, elementwise, movement, neural, reduction  # noqa: F401 - each registers its own
