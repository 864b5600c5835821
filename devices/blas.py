"""The number of threads of BLAS in this process: at most the cores that it may use.

BLAS takes all cores for every product by default, and its threads wait for each other in busy
loops. That is slow if anything else needs a core. Measured on 2 cores (2026-11-21): a text
recognition model split over `cpu` and `worker:0` took 28 ms with one thread each and 290 ms with
two; a text detection model on `cpu` beside one busy process made 20.8 items/s with one thread and
1.3 with two.
A user's environment variable takes precedence.
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
    """Limit BLAS to `threads` threads until `lift_limit(owner)`; the lowest limit holds."""
    with _lock:
        _wanted[owner] = threads
        _apply()


def lift_limit(owner: object) -> None:
    """Remove the limit of `owner`; without limits, BLAS is as it was before."""
    with _lock:
        if _wanted.pop(owner, None) is not None:
            _apply()


def build_environment(threads: int) -> dict[str, str]:
    """Return an environment for a process whose BLAS uses `threads` threads."""
    chosen = {} if _is_set_by_user() else dict.fromkeys(VARIABLES, str(threads))
    return {**os.environ, **chosen}


def _apply() -> None:
    global _limiter
    import threadpoolctl  # 60 ms, only if needed

    # The number is the process's. Newer versions let one thread alone change it; here any thread
    # that opens or closes a device does, one at a time.
    openblas = threadpoolctl.OpenBLASController
    release_control = getattr(openblas, "clear_controlling_thread", lambda force: None)
    release_control(force=True)
    if _limiter is not None:
        _limiter.restore_original_limits()
        _limiter = None
    if _wanted and not _is_set_by_user():
        found = _find_libraries(len(sys.modules))
        _limiter = found.limit(limits=min(_wanted.values()), user_api="blas")
    release_control(force=True)


@lru_cache(maxsize=1)
def _find_libraries(n_modules: int) -> Any:
    """Return the loaded BLAS libraries, cached by `n_modules`: new ones come with new modules."""
    import threadpoolctl

    return threadpoolctl.ThreadpoolController()


def _is_set_by_user() -> bool:
    return any(name in os.environ for name in VARIABLES)
