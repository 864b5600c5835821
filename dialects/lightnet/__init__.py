"""LightNet's formats: models in JSON or their text form, weights in text.

A rule for reading gets only `op`, an operator of the file, and writes its nodes. A rule for writing
gets `document` and `node`, and adds operators to the document.
"""
