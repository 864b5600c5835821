"""Stands before the package of that name, which takes a second to import.

Ray and Jupyter, of which tests start dozens of processes, import jsonschema, which does without it.
"""

raise ImportError(__doc__)
