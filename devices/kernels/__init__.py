"""Kernels for any array module, one file per family, imported when one of its kernels is needed.

Families share `steps`, `arguments`, `axes`, `sums`, `blocks`, `bounds`, `precision`, `sliding` and
`views`; the methods of convolution share `geometry` and `frames`. A function that needs the array
module gets it as its first argument, `xp`.
"""
