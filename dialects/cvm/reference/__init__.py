"""Definitions of CVM's exact operators, element by element: what judges their kernels."""

from . import arithmetic, choice, detection, movement, network, reduction

__all__ = ["arithmetic", "choice", "detection", "movement", "network", "reduction"]
