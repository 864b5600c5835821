"""Explaining: plans and profiles as text, pages, files and differences."""
