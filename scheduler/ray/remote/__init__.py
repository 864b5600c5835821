"""Devices on the hosts of a cluster: the commands to them, and their execution there."""
