"""Stands before the package of that name, which takes each process of Ray's a second to import.

Ray imports jsonschema, which does without it. Folders of `PYTHONPATH` come first.
"""

raise ImportError(__doc__)
