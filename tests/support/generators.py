"""The operators with generated kernels."""

from __future__ import annotations

from plait.devices.codegen import formulas, registry


def list_generated_ops() -> tuple[str, ...]:
    return tuple(sorted(registry._generators.all()))


def is_elementwise(op: str) -> bool:
    """Return whether the operator's generator is a formula."""
    return formulas._rules.find(op) is not None
