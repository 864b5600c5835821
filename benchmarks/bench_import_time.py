"""How long does ``import plait`` take, and how much does a core install bring along?

Each import is a process of its own, alternated with one that imports nothing and one that imports
numpy alone. Goals: at most 0.15 s beyond Python's own start, and at most 10 packages.
"""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, requires

from measure import alternate, save

SCRIPTS = {
    "nothing": "pass",
    "numpy": "import numpy",
    "plait": "import plait",
    "plait with its scheduler": "import plait; plait.Session",
}


def start(script: str) -> None:
    subprocess.run([sys.executable, "-c", script], check=True)


def packages(name: str, found: set[str]) -> set[str]:
    """Return a package and what it needs here, extras left out."""
    try:
        listed = requires(name) or []
    except PackageNotFoundError:
        return found
    found.add(name)
    for requirement in listed:
        wanted = re.split(r"[\s<>=!~;\[]", requirement, maxsplit=1)[0].lower()
        if "extra ==" not in requirement and wanted not in found:
            packages(wanted, found)
    return found


def main() -> None:
    sides = {name: lambda script=script: start(script) for name, script in SCRIPTS.items()}
    seconds = alternate(sides, rounds=15, at_least_s=0)
    bare = seconds.pop("nothing")
    found = sorted(packages("plait", set()))
    save(
        "import_time",
        {
            "python_start_s": bare,
            "beyond_it_s": {name: value - bare for name, value in seconds.items()},
            "packages": found,
            "package_count": len(found),
        },
    )


if __name__ == "__main__":
    main()
