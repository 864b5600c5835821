"""``python -m plait``, and what the console script ``plait`` calls."""

from __future__ import annotations

import sys
from importlib.util import find_spec


def main() -> None:
    """Run the command line, or say which extra it needs."""
    missing = [name for name in ("click", "rich") if find_spec(name) is None]
    if missing:
        listed = " and ".join(missing)
        from .graph.values.extras import get_install_command

        sys.stderr.write(f"the command line needs {listed}: {get_install_command('cli')}\n")
        sys.exit(2)
    try:
        from .cli import cli

        cli(prog_name="plait")
    except KeyboardInterrupt:  # while modules are imported; later it is the group's business
        sys.exit(130)


if __name__ == "__main__":
    main()
