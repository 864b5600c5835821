"""Groups of tests that stay together when several processes share them out."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

from xdist.scheduler.loadfile import LoadFileScheduling

SHARED = {
    "cases of ONNX": re.compile(r"\b(onnx_suite|onnx_cases|collect_testcases|run_suite)\b"),
    "a Ray cluster": re.compile(r"\bray_cluster\b"),
}
"""What takes long to make, and how files speak of it that need it."""


class ByFile(LoadFileScheduling):  # type: ignore[misc]  # xdist has no types
    """Files stay whole, and those together that share what takes long to make."""

    def _split_scope(self, nodeid: str) -> str:
        file: str = super()._split_scope(nodeid)
        return _shared(self.config.rootpath / file) or file

    def remove_node(self, node: Any) -> str | None:
        """Return the test that ended a process; it is not run again, as it would be otherwise."""
        for unit in self.assigned_work[node].values():
            waiting = [test for test, is_done in unit.items() if not is_done]
            crashed: str | None = next(iter(waiting), None)
            if crashed is not None:
                unit[crashed] = True
                super().remove_node(node)
                return crashed
        return super().remove_node(node)  # type: ignore[no-any-return]


@cache
def _shared(file: Path) -> str | None:
    """Return what a file shares with others."""
    text = file.read_text() if file.is_file() else ""
    return next((name for name, words in SHARED.items() if words.search(text)), None)
