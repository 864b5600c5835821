"""Devices on the hosts of a cluster: commands to them, and what carries these out there."""
