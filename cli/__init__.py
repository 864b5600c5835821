"""The command line: a file for each command, and shared parts."""

from .group import cli

__all__ = ["cli"]
