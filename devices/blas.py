"""How many threads BLAS uses in this process, where several devices share the cores.

BLAS takes all cores for every product by default. Two lanes that both do so wait for each other in
busy loops: measured on 2 cores, a text recognition model split over `cpu` and `worker:0` took 28 ms
with one thread each and 290 ms with two (2026-11-21). Whoever set the number by an environment
variable has decided, and is not overruled.
"""

from __future__ import annotations

import os
import threading
from typing import Any

VARIABLES = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")

_lock = threading.Lock()
_wanted: dict[object, int] = {}
_limiter: Any = None


def limit_threads(owner: object, threads: int) -> None:
    """Let BLAS use at most so many threads, until `owner` gives the limit up; the least counts."""
    with _lock:
        _wanted[owner] = threads
        _apply()


def lift_limit(owner: object) -> None:
    """Give a limit up; without any, BLAS is as it was before."""
    with _lock:
        if _wanted.pop(owner, None) is not None:
            _apply()


def environment(threads: int) -> dict[str, str]:
    """Return an environment for a process whose BLAS uses so many threads."""
    chosen = {} if _user_decides() else dict.fromkeys(VARIABLES, str(threads))
    return {**os.environ, **chosen}


def _apply() -> None:
    global _limiter
    if _limiter is not None:
        _limiter.restore_original_limits()
        _limiter = None
    if _wanted and not _user_decides():
        from threadpoolctl import threadpool_limits  # 60 ms, for those who need it

        _limiter = threadpool_limits(min(_wanted.values()), user_api="blas")


def _user_decides() -> bool:
    return any(name in os.environ for name in VARIABLES)
