"""Generated kernels of CVM's exact operators: int32 in, int32 out, arithmetic modulo 2³².

A generator gets the `call` and specs of `outputs`, products also an `epilogue`.
"""

from . import detection, elementwise, movement, neural, reduction  # noqa: F401 - each registers its own
