"""Definitions of CVM's exact operators, element by element: the oracle of their kernels.

A definition gets the input arrays and, by keyword, all attributes of the operator; ``**_`` takes
those that it does not read.
"""

from . import detection, elementwise, movement, neural, reduction  # noqa: F401 - each registers its own
