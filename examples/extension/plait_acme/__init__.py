"""Operators and a device for plait, which imports these modules when it needs them."""
