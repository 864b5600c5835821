"""Operator definitions."""
