"""Rules as data: JSON that defines replacements of operators, and conditions.

::

    {"name": "no_elu",
     "ops": [{"optype": "Elu",
              "rules": [{"cond": ["self.params[alpha] == 0"], "replace": ["Relu"]},
                        {"cond": ["self.ins[x].ndim > 2 && self.ins[x].dims[1] >= 64"],
                         "replace": ["Exp e", "Sub s", ...],
                         "details": ["e.ins[0] = self.ins[x]", "s.ins[1] = 1", ...]}]}]}

A comma may follow the last of a list. Conditions and the right sides of ``=`` are formulas of
`plait.graph.formats.expressions`: no code is run.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from ..core.ir import Node
from ..core.operator import find_operator
from ..passes.making import expander
from ..passes.pipeline import Pass
from ..passes.rewriting import Rewriter
from ..values.errors import ParseError, PlaitError
from .expressions import Formula, Path, read_formula, read_path
from .replacing import Detail, New, UnknownError, make_replacement, read_value
from .sources import Source, decode_json, read_content

_FIX = "correct the rules: see the documentation of editing"
_KEYS = frozenset({"cond", "replace", "details", "match", "err"})

# Strings and commas after nothing stay; an unterminated string is searched once.
_LAST_COMMA = re.compile(r'"(?:[^"\\]|\\.)*+(?:"|\\?\Z)|[\[{,:]\s*+,|(,)(?=\s*+[\]}])', re.DOTALL)


@dataclass(frozen=True, slots=True)
class FormatRule:
    """The replacement of a node under conditions."""

    conditions: tuple[Formula, ...]
    """One must hold, if there are any."""
    new: tuple[New, ...]
    details: tuple[Detail, ...]
    """Inputs, outputs and attributes of the new nodes; empty if they stay."""
    keeps: bool
    """Whether the node stays."""
    refusal: str | None
    """The error of such a node."""
    at: str
    """The place of the rule."""


class Rules:
    """The rules of a file: for a node, the first of its operator whose condition holds.

    A condition about unknown facts, such as a symbolic length, does not hold.
    """

    def __init__(self, name: str, rules: Mapping[str, Sequence[FormatRule]]) -> None:
        self.__name__ = name
        self._rules = rules

    def __call__(self, rewriter: Rewriter, node: Node) -> Sequence[Node] | None:
        for rule in self._rules.get(node.op, ()):
            try:
                if not rule.conditions or any(
                    _is_true(one, rewriter, node) for one in rule.conditions
                ):
                    # The first that holds decides, even if the node stays.
                    return None if rule.keeps else _apply(rule, rewriter, node)
            except PlaitError as error:
                error.add_note(f"{rule.at}, applied to {node}")
                raise
        return None


def load_rules(source: Source) -> Pass:
    """Return the pass that replaces nodes by the rules in the file `source`.

    Parameters
    ----------
    source : bytes or path
        The content of the file, or its path.

    Raises
    ------
    ParseError
        If the file is missing or damaged, or a formula is invalid; and by the pass if one makes no
        sense for a node.
    OperatorError
        If a rule is about an operator that there is not.

    Examples
    --------
    >>> import plait as pl
    >>> from plait.passes import simplify
    >>> rules = b'''{"ops": [{"optype": "Elu", "rules": [
    ...     {"cond": ["self.params[alpha] == 0"], "replace": ["Relu"]}]}]}'''
    >>> b = pl.GraphBuilder("net")
    >>> b.output("y", b.op("Elu", b.input("x", "float32", (4,)), alpha=0.0))
    >>> [node.op for node in simplify(b.build(), [load_rules(rules)]).nodes]
    ['Relu']
    """
    root, at = read_json(source, "rules")
    if not isinstance(root, dict) or not root.keys() >= {"ops"}:
        refuse("these are not rules: there is no list under the key 'ops'", at)
    check_keys(root, {"name", "author", "arch", "ops"}, at)
    name = root.get("name", "rules")
    if not isinstance(name, str) or not name:
        refuse(f"the name is {name!r}", at)
    rules: dict[str, list[FormatRule]] = {}
    for index, entry in enumerate(read_list(root["ops"], f"ops, {at}")):
        where = f"ops[{index}], {at}"
        fields = read_object(entry, where)
        check_keys(fields, {"optype", "rules"}, where)
        optype = fields.get("optype")
        if not isinstance(optype, str):
            refuse("there is no optype", where)
        # A rule for an unknown operator would be ignored.
        find_operator(optype, at=where)
        where = f"rules for {optype}, {at}"
        # An operator may have several entries, in the order of the file.
        made = rules.setdefault(optype, [])
        made += (
            read_rule(one, f"rule {len(made)}, {where}")
            for one in read_list(fields.get("rules"), where)
        )
    return expander(Rules(name, rules))


def read_json(source: Source, name: str) -> tuple[Any, str]:
    """Return the content of `source`, and its name for messages, by default `name`."""
    content, at = read_content(source, name, ParseError)
    return decode_json(lambda: _remove_last_commas(content.decode()), at, ParseError, _FIX), at


def _remove_last_commas(text: str) -> str:
    """Return `text` with each comma after the last item of a list or object blanked out."""
    return _LAST_COMMA.sub(lambda found: " " if found[1] else found[0], text)


def read_rule(value: object, at: str) -> FormatRule:
    fields = read_object(value, at)
    check_keys(fields, _KEYS, at)
    ways = [key for key in ("replace", "match", "err") if key in fields]
    if len(ways) != 1 or ("details" in fields and ways != ["replace"]):
        refuse("a rule has one of replace, match and err, and details beside replace", at)
    if fields.get("match", False) is not False:
        refuse("match can be false alone: the node stays", at)
    new = tuple(_read_new(one, at) for one in read_texts(fields.get("replace", []), at))
    details = tuple(_read_detail(one, new, at) for one in read_texts(fields.get("details", []), at))
    if ways == ["replace"] and (not new or (len(new) > 1 and not details)):
        refuse("one operator stands in the place of a node, or details say what each one does", at)
    if len({one.name for one in new}) < len(new):
        refuse("two new nodes have one name", at)
    refusal = read_texts([fields["err"]], at)[0] if "err" in fields else None
    conditions = tuple(read_formula(one, at) for one in read_texts(fields.get("cond", []), at))
    return FormatRule(conditions, new, details, "match" in fields, refusal, at)


def _read_new(text: str, at: str) -> New:
    op, name = (*text.split(), "", "")[:2]
    find_operator(op, at=at)
    if len(text.split()) > 2 or name == "self":
        refuse(f"{text!r} is not an operator with a name", at)
    return New(op, name)


def _read_detail(text: str, new: Sequence[New], at: str) -> Detail:
    left, sign, right = text.partition("=")
    if not sign:
        refuse(f"{text!r} has no '='", at)
    path = read_path(left, at)
    if len(path) != 3 or path[1] not in ("ins", "outs", "params"):
        refuse(f"{left.strip()!r} is none of name.ins[i], name.outs[i] and name.params[p]", at)
    if path[0] not in [one.name for one in new]:
        refuse(f"no new node is called {path[0]!r}", at)
    return Detail(path, read_formula(right, at))


def _is_true(condition: Formula, rewriter: Rewriter, node: Node) -> bool:
    def lookup(path: Path) -> Any:
        return read_value(path, rewriter, node)

    try:
        return bool(condition(lookup))
    # A symbolic length may have any value: for some, the rule might be wrong.
    except UnknownError:
        return False


def _apply(rule: FormatRule, rewriter: Rewriter, node: Node) -> Sequence[Node]:
    if rule.refusal is not None:
        raise ParseError(rule.refusal, at=str(node), fix="change the graph, or the rules")
    return make_replacement(rule.new, rule.details, rewriter, node)


def read_object(value: object, at: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        refuse("this is not an object", at)
    return value


def read_list(value: object, at: str) -> list[Any]:
    if not isinstance(value, list):
        refuse("this is not an array", at)
    return value


def read_texts(value: object, at: str) -> list[str]:
    found = read_list(value, at)
    if not all(isinstance(one, str) for one in found):
        refuse("what should be text is not", at)
    return found


def check_keys(fields: Mapping[str, Any], known: frozenset[str] | set[str], at: str) -> None:
    for key in fields:
        if key not in known:
            refuse(f"{key!r} is unknown; there is {', '.join(sorted(known))}", at)


def refuse(what: str, at: str) -> NoReturn:
    raise ParseError(what, at=at, fix=_FIX)
