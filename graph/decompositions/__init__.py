"""Operators decomposed into simpler ones, for devices that lack them: see `rules`.

A rule gets a `builder` and the names of the operator's inputs in order, "" for absent ones. It
writes nodes and returns the results' names, or None if it does not apply. Most helpers get the
`builder` first, too.
"""
