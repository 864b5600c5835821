"""The exact integer operators of CVM: int32 in, int32 out, the same bits on every device.

Names are CVM's own behind ``cvm.``, less its prefix ``cvm_``; only ``cvm_clip`` keeps it, as there
is a ``clip`` too. Arithmetic is modulo 2³². How many bits a tensor needs is inferred in
`plait.dialects.cvm.precision`, what a graph costs in `plait.dialects.cvm.gas`.
"""

from . import detection, elementwise, neural, reduction, selecting, shaping  # noqa: F401 - each registers its own
