"""Operator definitions, one file per family; registered at the first lookup.

Names, attributes and meanings are those of the newest version of ONNX. `inputs` has the checks of
rules on their inputs, `rules` the rules of several families. Rules see the node as `call`; cost
rules count arithmetic operations, also from the specs of `outputs`.
"""
