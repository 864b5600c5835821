"""Saves checkpoints, killed at every line of the code that does it: run as a script of its own.

A process is forked for each moment. It saves one more step, and is killed by the system, which
asks nobody, when so many lines have been run; another then finds what is left, and goes on.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
from plait import Checkpoints

FILES = ("checkpoints.py", "container.py", "safetensors.py", "constants.py")
KEEP = 2


def arrays_of(step: int) -> dict[str, np.ndarray[Any, Any]]:
    """Return variables that tell which step they are of, all of them."""
    return {"w": np.full((100, 100), step, "float32"), "b": np.full(3, step), "on": np.array(True)}


def kill_at(moment: int) -> None:
    """Have this process killed when so many lines of the saving code have been run."""
    left = moment

    def count(frame: FrameType, event: str, argument: Any) -> Callable[..., Any] | None:
        nonlocal left
        if not frame.f_code.co_filename.endswith(FILES):
            return None
        if event == "line":
            left -= 1
            if left < 0:
                os.kill(os.getpid(), signal.SIGKILL)
        return count

    sys.settrace(count)


def save_killed_at(moment: int, folder: str, step: int) -> bool:
    """Save in a process that is killed at a moment; return whether it ended before."""
    child = os.fork()
    if child == 0:
        kill_at(moment)
        Checkpoints(folder, keep=KEEP).save(step, arrays_of(step), {"step": step})
        sys.settrace(None)
        os._exit(0)
    return os.waitpid(child, 0)[1] == 0


def check_newest(folder: str) -> int:
    """Return the newest step, which is whole."""
    newest = Checkpoints(folder).newest()  # warnings are errors here
    assert newest is not None
    assert newest.notes == {"step": newest.step}
    for name, array in arrays_of(newest.step).items():
        assert newest.variables[name].tobytes() == array.tobytes(), name
    return newest.step


def check_clean(folder: str, *steps: int) -> None:
    """Check that nothing else is there, also of those that were killed."""
    assert Checkpoints(folder).steps() == steps
    assert len(list(Path(folder).iterdir())) == len(steps)


def main(parent: str) -> None:
    """Print how many moments there were, and how many steps were saved although killed."""
    before = str(Path(parent, "before"))
    for step in 1, 2:
        Checkpoints(before, keep=KEEP).save(step, arrays_of(step), {"step": step})
    moment, found = 0, []
    while True:
        folder = shutil.copytree(before, str(Path(parent, str(moment))))
        if save_killed_at(moment, folder, 3):
            break
        found.append(check_newest(folder))
        Checkpoints(folder, keep=KEEP).save(4, arrays_of(4), {"step": 4})
        check_clean(folder, found[-1], 4)
        moment += 1
    check_clean(folder, 2, 3)
    assert found == sorted(found)
    print(moment, found.count(3))


if __name__ == "__main__":
    main(sys.argv[1])
