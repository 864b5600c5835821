"""The time that tests wait for what must happen: it is spent only where plait hangs."""

from __future__ import annotations

WAIT_S = 300.0
"""On the slowest machine, and the busiest: no test is about how fast something happens."""
