"""Operators, a device and a file format for plait, which imports these modules on demand."""
