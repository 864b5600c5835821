"""The number of threads that BLAS uses in this process: no more than there are cores for them.

BLAS takes all cores for every product by default, and its threads wait for each other in busy
loops. That ends badly where anybody else wants a core. Measured on 2 cores (2026-11-21): a text
recognition model split over `cpu` and `worker:0` took 28 ms with one thread each and 290 ms with
two; a text detection model on `cpu` beside one busy process made 20.8 items/s with one thread and
1.3 with two.
Whoever set the number by an environment variable has decided, and is not overruled.
"""

from __future__ import annotations

import os
import sys
import threading
from functools import lru_cache
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
    import threadpoolctl  # 60 ms, for those who need it

    # The number is the process's. Newer versions let one thread alone change it; here whichever
    # opens or closes a device does, one at a time.
    openblas = threadpoolctl.OpenBLASController
    give_up_control = getattr(openblas, "clear_controlling_thread", lambda force: None)
    give_up_control(force=True)
    if _limiter is not None:
        _limiter.restore_original_limits()
        _limiter = None
    if _wanted and not _user_decides():
        found = _libraries(len(sys.modules))
        _limiter = found.limit(limits=min(_wanted.values()), user_api="blas")
    give_up_control(force=True)


@lru_cache(maxsize=1)
def _libraries(n_modules: int) -> Any:
    """Return the libraries that are loaded; what loads another has imported some module."""
    import threadpoolctl

    return threadpoolctl.ThreadpoolController()


def _user_decides() -> bool:
    return any(name in os.environ for name in VARIABLES)
