"""Devices whose driver queues work on streams and tells by events how far it got."""
