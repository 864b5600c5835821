"""Python functions and classes as operators: signatures, life cycles, digests, copies by value."""
