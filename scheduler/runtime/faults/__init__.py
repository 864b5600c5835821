"""Reactions to devices that die or hang: restarts, stand-ins, replays."""

from .policy import FaultPolicy

__all__ = ["FaultPolicy"]
