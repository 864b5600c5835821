"""Kernels for any array module, one file per family, imported when one of its kernels is wanted.

Families share `steps`, `arguments`, `axes`, `sums`, `blocks`, `bounds`, `precision`, `sliding` and
`views`; the ways to compute a convolution share `geometry` and `frames`.
"""

from .registry import ANY, Kernel, find_kernel, kernel, kernels, kernels_for

__all__ = ["ANY", "Kernel", "find_kernel", "kernel", "kernels", "kernels_for"]
