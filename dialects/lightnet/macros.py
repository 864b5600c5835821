"""The preprocessor of LightNet's text form: the part of C's that models use.

``#define NAME value`` and ``#define name(a, b) text``, with ``##`` to join words, lines continued
by a backslash, ``#undef``, and line marks of an earlier preprocessor.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import partial
from typing import NamedTuple, NoReturn

from ...graph.values.errors import ParseError

LEAST_WORK, MOST_WORK = 100_000, 500_000
"""Limits of the words that macros read and write: a few lines can double each other endlessly."""

WORK_PER_CHARACTER = 20
"""Additional words per character of a text."""

DEEPEST = 200
"""The limit of nested macros."""

LONGEST_WORD = 1000
"""The limit of characters joined by ##, which can double with each macro."""

# An unclosed string or comment extends to the end of the line or text, so its end is searched only
# once. Possessive repetitions (*+) save the memory for backtracking, 100 bytes per character.
_TOKEN = re.compile(
    r'"(?:[^"\\\n]|\\.)*+"?|[A-Za-z_]\w*|\.?\d(?:[eE][+-]|[\w.])*+|##|\*\*|\S', re.ASCII
)
_DEFINE = re.compile(r"\s*([A-Za-z_]\w*)(?:\(([^()]*)\))?(.*)", re.ASCII | re.DOTALL)
_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_COMMENT = re.compile(r'"(?:[^"\\\n]|\\.)*+"?|//[^\n]*|/\*.*?(?:\*/|\Z)', re.DOTALL)
_PREPROCESS = "run C's preprocessor over it first: gcc -E -P -x c FILE"


class Token(NamedTuple):
    """A word, number, string or sign."""

    text: str
    line: int
    hidden: frozenset[str] = frozenset()
    """The macros that produced it: they are not expanded in it again."""


class _Macro(NamedTuple):
    parameters: tuple[str, ...] | None
    body: tuple[Token, ...]


def preprocess(text: str, at: str) -> list[Token]:
    """Return the tokens of `text`, from the file `at`, without comments and with macros expanded.

    Raises ParseError if macros are used wrongly, or a directive is unknown.
    """
    text = _COMMENT.sub(partial(_replace_comment, at=at), text.replace("\r\n", "\n"))
    try:
        return _Preprocessor(at).tokens(text)
    except RecursionError:
        raise ParseError(
            "macros are called within each other too deeply", at=at, fix=_PREPROCESS
        ) from None


def split_tokens(text: str, line: int) -> list[Token]:
    found, start = [], 0
    for match in _TOKEN.finditer(text):
        line += text.count("\n", start, match.start())
        start = match.start()
        found.append(Token(match[0], line))
    return found


def is_open_comment(text: str) -> bool:
    return text.startswith("/*") and not (text.endswith("*/") and len(text) > 3)


def _replace_comment(found: re.Match[str], at: str) -> str:
    """Return the text `found`, or for a comment its lines; `at` is the file if it never ends."""
    text = found[0]
    if is_open_comment(text):
        line = 1 + found.string.count("\n", 0, found.start())
        raise ParseError("a comment has no end", at=f"line {line}, {at}", fix="end it by */")
    return text if text.startswith('"') else " " + "\\\n" * text.count("\n")


class _Preprocessor:
    """The macros known at a line, and the work that they may still do."""

    def __init__(self, at: str) -> None:
        self._at = at
        self._macros: dict[str, _Macro] = {}
        self._unions: dict[tuple[frozenset[str], frozenset[str]], frozenset[str]] = {}
        self._left = 0

    def tokens(self, text: str) -> list[Token]:
        found: list[Token] = []
        waiting: list[Token] = []  # calls of macros may span several lines
        number = 1
        self._left = min(MOST_WORK, LEAST_WORK + WORK_PER_CHARACTER * len(text))
        for line in re.split(r"(?<!\\)\n", text):
            spliced = line.replace("\\\n", " \n")
            if spliced.lstrip().startswith("#"):
                found += self._expanded(waiting)
                waiting = []
                self._directive(spliced.lstrip()[1:].strip(), number)
            else:
                waiting += split_tokens(spliced, number)
            number += 1 + line.count("\n")
        return found + self._expanded(waiting)

    def _directive(self, text: str, line: int) -> None:
        word, rest = (*text.split(None, 1), "", "")[:2]
        if word == "define":
            self._define(rest, line)
        elif word == "undef":
            self._macros.pop(rest.strip(), None)
        elif word and not word.isdigit():  # ``# 1 "net.net"`` is the origin of the next lines
            self._refuse(f"#{word} is not known", line)

    def _define(self, text: str, line: int) -> None:
        match = _DEFINE.fullmatch(text)
        if match is None:
            self._refuse("#define names nothing", line)
        name, formals, body = match.groups()
        parameters = None if formals is None else _split_formals(formals)
        words = split_tokens(body, line)
        wrong = [one for one in parameters or () if not _NAME.fullmatch(one)]
        if wrong or len(set(parameters or ())) < len(parameters or ()):
            self._refuse(f"the parameters of {name!r} are not names: {formals}", line)
        if any(one.text == "#" for one in words):
            self._refuse(f"the macro {name!r} makes strings of what it is given", line)
        if words and "##" in (words[0].text, words[-1].text):
            self._refuse(f"## stands at an end of the macro {name!r}", line)
        self._macros[name] = _Macro(parameters, tuple(words))

    def _expanded(self, tokens: Iterable[Token]) -> list[Token]:
        """Return `tokens` after Prosser's algorithm, with a set of hidden macros for each token.

        The result of a macro is scanned again, together with the tokens after it.
        """
        found: list[Token] = []
        ahead = list(tokens)[::-1]
        while ahead:
            token = ahead.pop()
            macro = self._macros.get(token.text)
            called = macro is not None and (
                macro.parameters is None or (bool(ahead) and ahead[-1].text == "(")
            )
            if macro is None or not called or token.text in token.hidden:
                found.append(token)
                continue
            arguments = () if macro.parameters is None else self._arguments(token, macro, ahead)
            # Arguments count too: empty macros write nothing, and could expand endlessly.
            self._spend(1 + len(macro.body) + sum(map(len, arguments)), token.line)
            ahead += self._substituted(macro, arguments, token)[::-1]
        return found

    def _spend(self, work: int, line: int) -> None:
        self._left -= work
        if self._left < 0:
            self._refuse("macros write more than a text of this length may", line)

    def _arguments(
        self, token: Token, macro: _Macro, ahead: list[Token]
    ) -> tuple[Sequence[Token], ...]:
        given: list[list[Token]] = [[]]
        depth = 0
        while ahead:
            one = ahead.pop()
            depth += (one.text == "(") - (one.text == ")")
            if depth == 0:
                break
            if one.text == "," and depth == 1:
                given.append([])
            elif depth > 1 or one.text != "(":
                given[-1].append(one)
        else:
            self._refuse(f"the call of {token.text!r} has no end", token.line)
        wanted = macro.parameters or ()
        if not wanted and given == [[]]:
            return ()
        if len(given) != len(wanted):
            self._refuse(
                f"{token.text!r} takes {len(wanted)} arguments, not {len(given)}", token.line
            )
        return tuple(given)

    def _substituted(
        self, macro: _Macro, arguments: Sequence[Sequence[Token]], token: Token
    ) -> list[Token]:
        """Return the text of `macro` at `token`; its `arguments` are expanded unless joined."""
        given = dict(zip(macro.parameters or (), arguments, strict=True))
        expanded: dict[str, Sequence[Token]] = {}  # each argument is expanded once
        hidden = self._union(token.hidden, frozenset((token.text,)), token.line)
        if len(hidden) > DEEPEST:
            self._refuse(f"macros call each other more than {DEEPEST} deep", token.line)
        made: list[Token] = []
        texts = ["", *(one.text for one in macro.body), ""]
        left = False  # whether a word precedes that the next one could be joined to
        for before, one, after in zip(texts, macro.body, texts[2:], strict=False):
            if one.text == "##":
                continue
            words: Sequence[Token] = given.get(one.text, (one,))
            if one.text in given and "##" not in (before, after):
                if one.text not in expanded:
                    expanded[one.text] = self._expanded(words)
                words = expanded[one.text]
            joins = before == "##" and left
            if joins and words:
                words = (self._joined(made.pop(), words[0]), *words[1:])
            self._spend(len(words), token.line)
            made += (
                Token(word.text, token.line, self._union(word.hidden, hidden, token.line))
                for word in words
            )
            left = joins or bool(words)
        return made

    def _union(self, some: frozenset[str], more: frozenset[str], line: int) -> frozenset[str]:
        if not some or some is more:
            return more
        found = self._unions.get((some, more))
        if found is None:
            found = self._unions[some, more] = some | more
            self._spend(len(found), line)
        return found

    def _joined(self, first: Token, last: Token) -> Token:
        text = first.text + last.text
        if len(text) > LONGEST_WORD:
            self._refuse(f"## makes a word of {len(text)} characters", last.line)
        if [one.text for one in split_tokens(text, 0)] != [text]:
            self._refuse(f"{first.text!r} and {last.text!r} do not make one word", last.line)
        return Token(text, last.line, first.hidden & last.hidden)

    def _refuse(self, what: str, line: int) -> NoReturn:
        raise ParseError(what, at=f"line {line}, {self._at}", fix=_PREPROCESS)


def _split_formals(formals: str) -> tuple[str, ...]:
    return tuple(one.strip() for one in formals.split(",")) if formals.strip() else ()
