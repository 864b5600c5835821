"""Devices that queue work on streams of a driver and follow its progress by events."""
