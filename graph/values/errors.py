"""The errors a graph, a file or a message can cause.

PlaitError
├── GraphError          your graph is wrong
│   ├── OperatorError   an operator is unknown, or called with the wrong inputs or attributes
│   ├── ShapeError      shapes or dtypes do not fit together
│   ├── ParseError      your file is damaged, foreign or uses something plait lacks
│   │   └── UnknownOperatorError   it uses operators that plait lacks; all are named
│   └── LogicError      a rule of exact integer graphs is broken: precision, or a cap of the cost
├── RuntimeFailureError an exact model cannot be run here, for reasons other than its own rules
├── WireError           a message is damaged or foreign
└── InternalError       plait is wrong: please report

Each has a `code`: 1 if the caller or the model is at fault, who pays for charged runs (GraphError
and its subclasses); 2 for all others, free of charge.
The other layers add their own branches: `plait.devices.errors`, `plait.scheduler.errors`.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, NamedTuple, Self, TypeAlias


class Argument(NamedTuple):
    """An argument of `plan` in a fix, such as bounds: lengths by symbol or input."""

    name: str
    value: Mapping[str, int | tuple[int, ...]]

    def __str__(self) -> str:
        return f"{self.name}={dict(self.value)!r}"


Spelling: TypeAlias = Callable[[Argument], str]
"""Returns an argument in the syntax of a reader; ``str`` returns that of Python."""

MOST_COMPARED = 20_000
"""Limit of names that are compared for suggestions, which takes a second."""


class Fix(str):
    """The text of a fix with arguments, in the syntax of Python or another one.

    Examples
    --------
    >>> fix = Fix("bound it: ", Argument("bounds", {"n": 64}))
    >>> print(fix)
    bound it: bounds={'n': 64}
    >>> fix.spelled(lambda argument: f"--{argument.name}")
    'bound it: --bounds'
    """

    parts: tuple[str | Argument, ...]

    def __new__(cls, *parts: str | Argument) -> Self:
        made = super().__new__(cls, "".join(map(str, parts)))
        made.parts = parts
        return made

    def __getnewargs__(self) -> tuple[str | Argument, ...]:  # type: ignore[override]
        return self.parts

    def spelled(self, spell: Spelling) -> str:
        return "".join(spell(one) if isinstance(one, Argument) else one for one in self.parts)


class PlaitError(Exception):
    """Base of all errors that plait raises on purpose.

    Parameters
    ----------
    what : str
        What is wrong, in one line.
    at : str, optional
        The location: a node, a file and its offset, a device.
    fix : str, optional
        How the user can fix it; a `Fix` if it contains arguments.

    Examples
    --------
    >>> import plait as pl
    >>> try:
    ...     pl.device("cpu", thread=2)
    ... except pl.PlaitError as error:
    ...     print(error.what)
    ...     print(error.fix)
    device 'cpu' has no option 'thread'
    did you mean 'threads'?
    """

    code: ClassVar[int] = 2
    item: int | None = None
    """The number of the item of a stream that failed, from 0."""

    def __init__(self, what: str, *, at: str | None = None, fix: str | None = None) -> None:
        super().__init__(what)
        self.what = what
        self.at = at
        self.fix = fix

    def __str__(self) -> str:
        return self.spelled(str)

    def spelled(self, spell: Spelling) -> str:
        """Return the text, with the arguments of the fix as `spell` writes them."""
        lines = [self.what]
        places = [] if self.item is None else [f"item {self.item}"]
        if places or self.at:
            at = ", ".join([*places, *filter(None, [self.at])])
            lines.append(join_lines([f"  at:  {at}"]))
        if self.fix:
            fix = self.fix.spelled(spell) if isinstance(self.fix, Fix) else self.fix
            lines.append(f"  fix: {fix}")
        return escape_unprintable("\n".join(lines))

    def again(self) -> Self:
        """Return a copy: raising an error twice mixes traces and notes."""
        made = type(self)(self.what, at=self.at, fix=self.fix)
        made.__cause__ = self.__cause__
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        state = {name: vars(self)[name] for name in ("__notes__", "item") if name in vars(self)}
        return _rebuild, (type(self), self.what, self.at, self.fix), state or None


def _rebuild(kind: type[PlaitError], what: str, at: str | None, fix: str | None) -> PlaitError:
    return kind(what, at=at, fix=fix)


class GraphError(PlaitError):
    """The graph is not well formed.

    Examples
    --------
    >>> import plait as pl
    >>> pl.GraphBuilder("empty").build()
    Traceback (most recent call last):
    ...
    plait.graph.values.errors.GraphError: the graph has no output
      at:  empty
      fix: call output(name, t)
    """

    code = 1


class OperatorError(GraphError):
    """An operator is unknown, or called with the wrong inputs or attributes.

    Examples
    --------
    >>> import plait as pl
    >>> b = pl.GraphBuilder("wrong")
    >>> b.op("Reluu", b.input("x", "float32", (2,)))
    Traceback (most recent call last):
    ...
    plait.graph.values.errors.OperatorError: there is no operator 'Reluu'
      at:  Reluu node
      fix: did you mean 'Relu' or 'PRelu' or 'Selu'?
    """


class ShapeError(GraphError):
    """Shapes or dtypes do not fit together.

    Examples
    --------
    >>> import plait as pl
    >>> b = pl.GraphBuilder("wrong")
    >>> x, y = b.input("x", "float32", (2,)), b.input("y", "float32", (3,))
    >>> b.op("Add", x, y, name="sum")
    Traceback (most recent call last):
    ...
    plait.graph.values.errors.ShapeError: shapes [2] and [3] do not broadcast together
      at:  node 'sum': Add(x, y) -> sum, inputs float32[2], float32[3]
      fix: make the lengths equal, or 1 where one is to be repeated
    """


class ParseError(GraphError):
    """A file is damaged, foreign, or uses something plait lacks.

    Examples
    --------
    >>> import plait as pl
    >>> pl.load(b"no model")
    Traceback (most recent call last):
    ...
    plait.graph.values.errors.ParseError: neither a .plait file nor an ONNX model, or a damaged one
      at:  model
      fix: pass a file that plait.save or an ONNX exporter wrote
    """


class UnknownOperatorError(ParseError):
    """A file uses operators that are not registered; the message names all of them.

    Examples
    --------
    >>> import plait as pl
    >>> error = pl.UnknownOperatorError("2 operators are not known: acme.Fetch, acme.Sort")
    >>> isinstance(error, pl.ParseError), isinstance(error, pl.OperatorError)
    (True, False)
    """


class LogicError(GraphError):
    """A rule of exact integer graphs is broken: the caller or the model is at fault.

    Examples
    --------
    >>> import plait as pl
    >>> error = pl.LogicError("12 operations are over the limit of 10", fix="use less")
    >>> isinstance(error, pl.GraphError), error.code
    (True, 1)
    """


class RuntimeFailureError(PlaitError):
    """An exact model cannot be run for a reason that is not one of its own rules.

    Examples
    --------
    >>> import plait as pl
    >>> error = pl.RuntimeFailureError("the model is closed", fix="load it again")
    >>> isinstance(error, pl.GraphError), error.code
    (False, 2)
    """


class WireError(PlaitError):
    """A message is damaged or foreign.

    Examples
    --------
    >>> import plait as pl
    >>> error = pl.WireError("message 7 answers no request")
    >>> isinstance(error, pl.PlaitError), isinstance(error, pl.GraphError)
    (True, False)
    """


class InternalError(PlaitError):
    """Plait broke one of its own invariants: please report it.

    Examples
    --------
    >>> import plait as pl
    >>> print(pl.InternalError("a step ran twice", at="item 3", fix="report it with the plan"))
    a step ran twice
      at:  item 3
      fix: report it with the plan
    """


def combine_errors(errors: list[Any]) -> BaseException:
    """Return the first of `errors`, with the others in its notes; leave the list empty.

    Errors that end the program, such as Ctrl-C, come before all others. Raise the result without
    binding it to a name: a frame with a name for an error keeps the objects of the error's frames.
    """
    # False sorts before True: exceptions that are not an Exception come first, the others in order.
    ranked = sorted(errors, key=lambda error: isinstance(error, Exception))
    errors.clear()
    for other in ranked[1:]:
        ranked[0].add_note(f"and then: {get_text(other) or type(other).__name__}")
    return ranked[0]  # type: ignore[no-any-return]


def get_text(error: BaseException) -> str:
    """Return the text of `error`, even if its `__str__` fails."""
    try:
        return str(error)
    except Exception:  # a __str__ of the user's
        return f"<unprintable {type(error).__name__}>"


class ErrorPlace(str):
    """A note of an exception that says where it was raised, which errors about it repeat."""


def describe_error(error: BaseException) -> str:
    kind = type(error)
    of = f"{kind.__module__}." if kind.__name__ in ("Error", "error") else ""  # zlib.error
    text = get_text(error).strip()
    return f"{of}{kind.__name__}{text and ': '}{text}"


def is_ctrl_c(error: BaseException) -> bool:
    """Return whether `error` may be a Ctrl-C, which is not an error of the running function.

    It interrupts only the main thread, unless the process ignores it, as workers do, or an event
    loop defers it.
    """
    return (
        isinstance(error, KeyboardInterrupt)
        and threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGINT) is not signal.SIG_IGN
        and not any(defers() for defers in _deferring)
    )


_deferring: list[Callable[[], bool]] = []


def register_loop(defers: Callable[[], bool]) -> None:
    """Register `defers`, which returns whether an event loop defers Ctrl-C for its caller."""
    _deferring.append(defers)


def suggest_names(name: object, known: Iterable[str], otherwise: str) -> str:
    """Suggest the `known` names closest to the wrong `name`, or return `otherwise`."""
    from difflib import get_close_matches

    listed = list(known)
    close = get_close_matches(str(name), listed) if len(listed) <= MOST_COMPARED else []
    return f"did you mean {' or '.join(map(repr, close))}?" if close else otherwise


def escape_unprintable(text: str) -> str:
    r"""Escape unprintable characters of `text` except newlines and tabs.

    Names come from files of any origin: theirs could clear a screen, or reverse text.

    Examples
    --------
    >>> print(escape_unprintable("node a\x1b[2J"))
    node a\x1b[2J
    """
    if text.isprintable():
        return text
    return "".join(
        one if one in "\n\t" or one.isprintable() else one.encode("unicode_escape").decode()
        for one in text
    )


def join_lines(lines: Iterable[str]) -> str:
    """Join `lines` after escaping newlines within them."""
    return "\n".join(escape_unprintable(line.replace("\n", "\\n")) for line in lines)
