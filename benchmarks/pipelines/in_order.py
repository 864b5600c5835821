"""Items that are tasks, a few at a time, and results in the order of the items."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))

from ocr_pipeline import in_order

__all__ = ["in_order"]
