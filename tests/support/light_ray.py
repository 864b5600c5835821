"""Has processes of Ray start in half the time; a cluster of a few tests is dozens of them."""

from __future__ import annotations

import os
from pathlib import Path

SPARED = Path(__file__).with_name("spared")


def python_path() -> str:
    """Return a `PYTHONPATH` on which packages that only take time to import are not found."""
    return os.pathsep.join(filter(None, [str(SPARED), os.environ.get("PYTHONPATH")]))
