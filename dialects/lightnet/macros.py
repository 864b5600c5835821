"""The preprocessor of LightNet's text form: what models use of C's.

``#define NAME value`` and ``#define name(a, b) text``, with ``##`` between what becomes one word,
lines that go on behind a backslash, ``#undef``, and the line marks that a preprocessor leaves.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import partial
from typing import NamedTuple, NoReturn

from ...graph.errors import ParseError

LEAST_WORK, MOST_WORK = 100_000, 500_000
"""Words that macros may take and write: a few lines that double each other would never end."""

WORK_PER_CHARACTER = 20
"""What each character of a text allows them beyond the least."""

DEEPEST = 200
"""Macros that come from each other."""

LONGEST_WORD = 1000
"""Characters of what ## joins: it can double with each macro."""

# What has no end goes on to that of the line, or of the text: it is looked for once. Possessive
# repetitions (*+) keep no way back: others take a hundred bytes for each character.
_TOKEN = re.compile(
    r'"(?:[^"\\\n]|\\.)*+"?|[A-Za-z_]\w*|\.?\d(?:[eE][+-]|[\w.])*+|##|\*\*|\S', re.ASCII
)
_DEFINE = re.compile(r"\s*([A-Za-z_]\w*)(?:\(([^()]*)\))?(.*)", re.ASCII | re.DOTALL)
_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_COMMENT = re.compile(r'"(?:[^"\\\n]|\\.)*+"?|//[^\n]*|/\*.*?(?:\*/|\Z)', re.DOTALL)
_PREPROCESS = "run C's preprocessor over it first: gcc -E -P -x c FILE"


class Token(NamedTuple):
    """A word, number, string or sign.

    Attributes
    ----------
    text : str
    line : int
    hidden : frozenset of str
        The macros that it comes from: they are not expanded in it again.
    """

    text: str
    line: int
    hidden: frozenset[str] = frozenset()


class _Macro(NamedTuple):
    parameters: tuple[str, ...] | None
    body: tuple[Token, ...]


def preprocessed(text: str, at: str) -> list[Token]:
    """Return the tokens of a text without comments, macros expanded.

    Raises
    ------
    ParseError
        If macros are used wrongly, or the text needs what is not known here.
    """
    text = _COMMENT.sub(partial(_without_comment, at=at), text.replace("\r\n", "\n"))
    try:
        return _Preprocessor(at).tokens(text)
    except RecursionError:
        raise ParseError(
            "macros are called within each other too deeply", at=at, fix=_PREPROCESS
        ) from None


def tokens_of(text: str, line: int) -> list[Token]:
    """Return the tokens of a text that starts in a line."""
    found, start = [], 0
    for match in _TOKEN.finditer(text):
        line += text.count("\n", start, match.start())
        start = match.start()
        found.append(Token(match[0], line))
    return found


def is_open_comment(text: str) -> bool:
    """True for a comment that has no end."""
    return text.startswith("/*") and not (text.endswith("*/") and len(text) > 3)


def _without_comment(found: re.Match[str], at: str) -> str:
    """Return what stands in the place of a comment: its line goes on where it ends."""
    text = found[0]
    if is_open_comment(text):
        line = 1 + found.string.count("\n", 0, found.start())
        raise ParseError("a comment has no end", at=f"line {line}, {at}", fix="end it by */")
    return text if text.startswith('"') else " " + "\\\n" * text.count("\n")


class _Preprocessor:
    """The macros that are known at a line, and how much work they may still make."""

    def __init__(self, at: str) -> None:
        self._at = at
        self._macros: dict[str, _Macro] = {}
        self._unions: dict[tuple[frozenset[str], frozenset[str]], frozenset[str]] = {}
        self._left = 0

    def tokens(self, text: str) -> list[Token]:
        found: list[Token] = []
        waiting: list[Token] = []  # calls of macros may go over several lines
        number = 1
        self._left = min(MOST_WORK, LEAST_WORK + WORK_PER_CHARACTER * len(text))
        for line in re.split(r"(?<!\\)\n", text):
            spliced = line.replace("\\\n", " \n")
            if spliced.lstrip().startswith("#"):
                found += self._expanded(waiting)
                waiting = []
                self._directive(spliced.lstrip()[1:].strip(), number)
            else:
                waiting += tokens_of(spliced, number)
            number += 1 + line.count("\n")
        return found + self._expanded(waiting)

    def _directive(self, text: str, line: int) -> None:
        word, rest = (*text.split(None, 1), "", "")[:2]
        if word == "define":
            self._define(rest, line)
        elif word == "undef":
            self._macros.pop(rest.strip(), None)
        elif word and not word.isdigit():  # ``# 1 "net.net"`` tells where lines come from
            self._refuse(f"#{word} is not known", line)

    def _define(self, text: str, line: int) -> None:
        match = _DEFINE.fullmatch(text)
        if match is None:
            self._refuse("#define names nothing", line)
        name, formals, body = match.groups()
        parameters = None if formals is None else _listed(formals)
        words = tokens_of(body, line)
        wrong = [one for one in parameters or () if not _NAME.fullmatch(one)]
        if wrong or len(set(parameters or ())) < len(parameters or ()):
            self._refuse(f"the parameters of {name!r} are not names: {formals}", line)
        if any(one.text == "#" for one in words):
            self._refuse(f"the macro {name!r} makes strings of what it is given", line)
        if words and "##" in (words[0].text, words[-1].text):
            self._refuse(f"## stands at an end of the macro {name!r}", line)
        self._macros[name] = _Macro(parameters, tuple(words))

    def _expanded(self, tokens: Iterable[Token]) -> list[Token]:
        """Return tokens in which no macro is left: Prosser's algorithm, with a set for each token.

        What a macro gives is looked through again, together with what comes behind it.
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
            # What is taken counts as well: macros of nothing write nothing, and never end.
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
        """Take the arguments of a macro from what lies ahead."""
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
        """Return a macro's text with arguments in it: expanded, unless joined to words."""
        given = dict(zip(macro.parameters or (), arguments, strict=True))
        expanded: dict[str, Sequence[Token]] = {}  # once, however often the macro writes it
        hidden = self._union(token.hidden, frozenset((token.text,)), token.line)
        if len(hidden) > DEEPEST:
            self._refuse(f"macros call each other more than {DEEPEST} deep", token.line)
        made: list[Token] = []
        texts = ["", *(one.text for one in macro.body), ""]
        left = False  # there is something that a word could be joined to
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
        """Return the names in either, one object for equal calls: each token holds its set."""
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
        if [one.text for one in tokens_of(text, 0)] != [text]:
            self._refuse(f"{first.text!r} and {last.text!r} do not make one word", last.line)
        return Token(text, last.line, first.hidden & last.hidden)

    def _refuse(self, what: str, line: int) -> NoReturn:
        raise ParseError(what, at=f"line {line}, {self._at}", fix=_PREPROCESS)


def _listed(formals: str) -> tuple[str, ...]:
    return tuple(one.strip() for one in formals.split(",")) if formals.strip() else ()
