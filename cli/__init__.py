"""The command line: one file for each command, and what they share."""

from .group import cli

__all__ = ["cli"]
