"""The exact integer operators of CVM: int32 in, int32 out, the same bits on every device.

Names are ``cvm.`` and CVM's own without the prefix ``cvm_``; only ``cvm_clip`` keeps it, to differ
from ``clip``. Arithmetic is modulo 2³². `plait.dialects.cvm.precision` infers the bits of tensors,
`plait.dialects.cvm.gas` the cost of a graph. Shape rules take the node as `call`.
"""

from . import detection, elementwise, movement, neural, reduction  # noqa: F401 - each registers its own
