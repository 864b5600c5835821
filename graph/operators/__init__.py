"""Operator definitions, one file per family; registered when the first is asked for.

Names, attributes and meanings are those of the newest version of ONNX. What rules ask of inputs is
in `inputs`, rules that several families follow are in `rules`.
"""
