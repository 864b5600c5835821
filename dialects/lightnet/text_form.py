"""LightNet's text form: the content of its JSON in a notation for people.

``optype(input=tensor, ... | output=tensor, ... | parameter=value, ...);``, with macros as in C, and
``${eval 2 * (3 + 4)}`` for a number. Operators are named after their types and counted from 0.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NoReturn

from ...graph.formats.expressions import DEEPEST, Path, read_formula
from ...graph.values.errors import GraphError, ParseError
from ...graph.values.names import Names
from ...graph.values.tensor import Array
from .macros import Token, preprocess

_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_STRING = re.compile(r'"(?:[^"\\]|\\.)*+"')
_NUMBER = re.compile(r"(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)
_WORDS = {"true": True, "false": False, "null": None}
_KEYS = ("tensors_in", "tensors_out", "params")
_FIX = "write optype(input=tensor | output=tensor | parameter=value);"


def is_text_form(text: str) -> bool:
    """Return whether `text` without comments starts like the text form, not like JSON."""
    return _NAME.match(text.lstrip()) is not None or text.lstrip()[:1] == "#"


def read_text(text: str, at: str) -> list[dict[str, Any]]:
    """Return the operators in `text`, as in LightNet's JSON; `at` is the file in errors.

    Raises ParseError if the text is not a model.
    """
    reader, counts = _Reader(preprocess(text, at), at), Counter[str]()
    ops = []
    while (statement := reader.statement()) is not None:
        optype, *arguments = statement
        name, counts[optype] = f"{optype}{counts[optype]}", counts[optype] + 1
        ops.append({"name": name, "optype": optype, **dict(zip(_KEYS, arguments, strict=True))})
    return ops


def write_text(ops: Iterable[Mapping[str, Any]]) -> bytes:
    """Return `ops`, operators of LightNet's JSON, in the text form, without their names."""
    return "".join(map(_format_line, ops)).encode()


def rename_tensors(
    ops: Sequence[Mapping[str, Any]], weights: Mapping[str, Array], public: Iterable[str], at: str
) -> tuple[list[dict[str, Any]], dict[str, Array]]:
    """Return `ops` and `weights` with names that the text form allows.

    Raises GraphError, about the graph `at`, if the names `public` are not allowed.
    """
    wrong = [name for name in public if not _NAME.fullmatch(name)]
    if wrong:
        raise GraphError(
            f"{wrong[0]!r} is not a name in LightNet's text form",
            at=at,
            fix="name inputs and outputs in letters, digits and _, or save LightNet's JSON",
        )
    written = [one["name"] for op in ops for one in op["tensors_out"]]
    # Valid names are taken first, so that the replacement of an invalid one cannot change them.
    names = Names((name for name in written if _NAME.fullmatch(name)), separator="_")
    new = {name: name if name in names else names.take(_to_word(name)) for name in written}

    def of(listed: Iterable[Mapping[str, str]]) -> list[dict[str, str]]:
        return [{**one, "name": new[one["name"]]} for one in listed]

    made = [
        {**op, "tensors_in": of(op["tensors_in"]), "tensors_out": of(op["tensors_out"])}
        for op in ops
    ]
    return made, {new[name]: array for name, array in weights.items()}


def _to_word(name: str) -> str:
    word = re.sub(r"\W", "_", name, flags=re.ASCII)
    return word if _NAME.match(word) else f"_{word}"


def _format_line(op: Mapping[str, Any]) -> str:
    inputs, outputs = (
        ", ".join(f"{one['arg_name']}={one['name']}" for one in op[key]) for key in _KEYS[:2]
    )
    parameters = ", ".join(f"{one['arg_name']}={_to_json(one['value'])}" for one in op["params"])
    return f"{op['optype']}({inputs} | {outputs} | {parameters});\n".replace("( |", "(|")


def _to_json(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    assert "\\" not in text, "only words that are names are written"
    return text


class _Reader:
    """Reads statements; strings are not unescaped."""

    def __init__(self, tokens: Sequence[Token], at: str) -> None:
        self._tokens, self._at = tokens, at
        self._place = 0

    def statement(self) -> tuple[str, list[Any], list[Any], list[Any]] | None:
        """Return the next operator's type, inputs, outputs and parameters; None at the end."""
        while self._next == ";":  # empty statements, as in C
            self._place += 1
        if not self._next:
            return None
        optype = self._name()
        self._expect("(")
        inputs = self._arguments("name", self._name, "|")
        self._expect("|")
        outputs = self._arguments("name", self._name, "|")
        self._expect("|")
        parameters = self._arguments("value", self._value, ")")
        self._expect(")")
        if self._next:
            self._expect(";")
        return optype, inputs, outputs, parameters

    def _arguments(self, key: str, read: Callable[[], Any], end: str) -> list[dict[str, Any]]:
        def argument() -> dict[str, Any]:
            name = self._name()
            self._expect("=")
            return {"arg_name": name, key: read()}

        return self._listed(argument, end)

    def _listed(self, read: Callable[[], Any], end: str) -> list[Any]:
        found: list[Any] = []
        while self._next != end:
            found.append(read())
            if self._next != ",":
                break
            self._place += 1
        return found

    def _value(self) -> Any:
        if self._next == "[":
            self._place += 1
            found = self._listed(self._scalar, "]")
            self._expect("]")
            return found
        return self._scalar()

    def _scalar(self) -> Any:
        token = self._take()
        text = token.text
        if text == "$":
            return self._evaluated()
        # A sign is a separate token, since formulas also have it between numbers.
        if text in ("-", "+") and _NUMBER.fullmatch(self._next):
            number = _parse_number(self._take().text)
            return -number if text == "-" else number
        if _NUMBER.fullmatch(text):
            return _parse_number(text)
        if _STRING.fullmatch(text):
            return text[1:-1]
        if _NAME.fullmatch(text):
            return _WORDS.get(text, text)
        raise self._error(f"{text!r} is not a value", token.line)

    def _evaluated(self) -> int | float:
        """Evaluate ``${eval ...}``, from after the dollar."""
        line = self._line
        formula = self._formula()
        at = f"line {line}, {self._at}"
        value = read_formula(formula, at)(lambda path: self._unknown(path, line))
        # For infinities and NaN, which JSON lacks, the difference is NaN.
        if isinstance(value, bool) or not isinstance(value, int | float) or value - value != 0:
            self._refuse(f"{formula!r} is not a number", line)
        return value

    def _formula(self, depth: int = 1) -> str:
        if depth > DEEPEST:
            self._refuse(f"${{eval ...}} nests more than {DEEPEST} deep", self._line)
        self._expect("{")
        if self._name() != "eval":
            self._refuse("only ${eval ...} is known", self._line)
        words = []
        while self._next != "}":
            if self._next == "$":
                self._place += 1
                words.append(f"({self._formula(depth + 1)})")  # in parentheses, for precedence
            else:
                words.append(self._take().text)
        self._expect("}")
        return " ".join(words)

    def _unknown(self, path: Path, line: int) -> NoReturn:
        self._refuse(f"{path[0]!r} is not a number: no code is run", line)

    @property
    def _next(self) -> str:
        return self._tokens[self._place].text if self._place < len(self._tokens) else ""

    @property
    def _line(self) -> int:
        last = min(self._place, len(self._tokens) - 1)
        return self._tokens[last].line if self._tokens else 1

    def _take(self) -> Token:
        if not self._next:
            self._refuse("the last statement breaks off", self._line)
        self._place += 1
        return self._tokens[self._place - 1]

    def _name(self) -> str:
        token = self._take()
        if not _NAME.fullmatch(token.text):
            self._refuse(f"{token.text!r} stands where a name should", token.line)
        return token.text

    def _expect(self, text: str) -> None:
        token = self._take()
        if token.text != text:
            self._refuse(f"{token.text!r} stands where {text!r} should", token.line)

    def _refuse(self, what: str, line: int) -> NoReturn:
        raise self._error(what, line)

    def _error(self, what: str, line: int) -> ParseError:
        return ParseError(what, at=f"line {line}, {self._at}", fix=_FIX)


def _parse_number(text: str) -> int | float:
    # Python takes quadratic time for long integers, and doubles lose the digits anyway.
    return int(text) if text.isdecimal() and len(text) <= 300 else float(text)
