"""The command line: a file for each command, and shared parts.

The function of a command gets all of its options and arguments by name; `request` holds those for
planning.
"""

from .group import cli

__all__ = ["cli"]
