"""Reactions to devices that die or hang: restarts, standby plans, replays."""

from .policy import FaultPolicy

__all__ = ["FaultPolicy"]
