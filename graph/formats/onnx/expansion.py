"""Operators that are defined by simpler ones: written out where plait lacks them.

FlexAttention -> MatMul, Softmax and so on. Source: the function bodies in the operator schemas of
the `onnx` package, which also does the writing out.
"""

from __future__ import annotations

from typing import Any, TypeAlias

from ...core.operator import is_operator
from ...values.errors import ParseError
from .functions import inline_functions
from .nodes import DEFAULT_DOMAINS, iterate_nodes, read_operator_name
from .tensors import text
from .upgrade import find_newest_name

Key: TypeAlias = tuple[str, str]
"""The domain and name of an operator."""

PREVIEW_DOMAIN = "ai.onnx.preview"
"""Operators that ONNX may take up, such as FlexAttention."""

ROUNDS = 4
"""How often what was written out is looked through again: bodies use other such operators."""


def expand(model: Any, at: str) -> Any:
    """Return `model` without functions and operators that ONNX must expand; errors name it `at`."""
    model = inline_functions(model, at)
    for _ in range(ROUNDS):
        missing = {_make_key(node) for node in iterate_nodes(model.graph) if _is_missing(node)}
        expandable = [key for key in sorted(missing) if can_be_expanded(*key)]
        if not expandable:
            break
        for node in iterate_nodes(model.graph):
            if _make_key(node) in expandable:
                _check_call(node, at)
        model = _inline_functions(_add_defaults(model, expandable), expandable, at)
    return model


def _is_missing(node: Any) -> bool:
    name, known = read_operator_name(node), (*DEFAULT_DOMAINS, PREVIEW_DOMAIN)
    return node.domain in known and name != "Constant" and not is_operator(find_newest_name(name))


def _make_key(node: Any) -> Key:
    domain = "" if node.domain in DEFAULT_DOMAINS else text(node.domain)
    return domain, text(node.op_type)


def can_be_expanded(domain: str, op: str) -> bool:
    """Return whether ONNX defines `op` of `domain` by simpler operators, all of them on tensors."""
    from onnx import defs

    if not defs.has(op, domain):
        return False
    schema: Any = defs.get_schema(op, domain)  # its type stubs leave these two out
    if any(_holds_no_tensor(formal) for formal in (*schema.inputs, *schema.outputs)):
        return False
    return bool(schema.has_function or schema.has_context_dependent_function)


def _holds_no_tensor(formal: Any) -> bool:
    """Return whether `formal` is a sequence or the like, on some of which the package fails."""
    return not all(name.startswith("tensor(") for name in formal.types)


def _check_call(node: Any, at: str) -> None:
    """Raise ParseError, about the file `at`, unless `node` is called as its operator's schema says.

    The package writes out in C++, where it takes that for granted.
    """
    from onnx import defs

    domain, op = _make_key(node)
    schema: Any = defs.get_schema(op, domain)  # its type stubs leave some things out
    given = {text(attribute.name): attribute.type for attribute in node.attribute}
    known = schema.attributes
    fits = (
        schema.min_input <= len(node.input) <= schema.max_input
        and schema.min_output <= len(node.output) <= schema.max_output
        and all(node.input[: schema.min_input])
        and len(given) == len(node.attribute)
        and all(name in known and int(known[name].type) == kind for name, kind in given.items())
        and all(name in given for name, attribute in known.items() if attribute.required)
    )
    if not fits:
        raise ParseError(
            f"{op} is not called as ONNX defines it",
            at=f"node {text(node.name)!r}, {at}",
            fix="export the model again: onnx.checker.check_model tells what is wrong",
        )


def _add_defaults(model: Any, expandable: list[Key]) -> Any:
    """Return `model` with the defaults that function bodies refer to, on `expandable` nodes."""
    from onnx import AttributeProto, ModelProto, TensorProto, defs, helper

    completed = ModelProto()
    completed.CopyFrom(model)
    # Bodies that depend on types ask for those of all inputs, the absent ones included.
    completed.graph.value_info.append(helper.make_tensor_value_info("", TensorProto.FLOAT, None))
    for node in iterate_nodes(completed.graph):
        domain, op = _make_key(node)
        if (domain, op) in expandable:
            given = {attribute.name for attribute in node.attribute}
            for name, attribute in defs.get_schema(op, domain).attributes.items():
                default = attribute.default_value
                if name not in given and default.type != AttributeProto.UNDEFINED:
                    node.attribute.append(default)
    return completed


def _inline_functions(model: Any, expandable: list[Key], at: str) -> Any:
    from onnx import inliner

    try:
        return inliner.inline_selected_functions(
            model, expandable, exclude=False, inline_schema_functions=True
        )
    except Exception as error:  # of C++, with no class of its own
        listed = ", ".join(op for _, op in expandable)
        raise ParseError(
            f"{listed} cannot be written out as simpler operators: {error}",
            at=at,
            fix="export the model with another opset, or without them",
        ) from error
