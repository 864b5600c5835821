"""Exceptions on their way between processes: described as plain data, never pickled.

A PlaitError arrives as what it was, a builtin exception too; of any other class only the name, the
text and the traceback arrive: a RemoteError has them.
"""

from __future__ import annotations

import builtins
import traceback
from typing import Any

from ...graph.errors import Argument, Fix, PlaitError, WireError, get_text
from ..errors import DeviceError, RemoteError

MAX_TEXT = 20_000
"""Characters of a message or traceback that are sent; a message can hold a whole array's repr."""

MAX_CAUSES = 8


def describe(error: BaseException) -> list[Any]:
    """Return an exception and its causes as lists of strings and numbers.

    It is a list of links, outermost first, and the traceback of the innermost. A link is a class
    name, arguments, where and fix; a fix that names arguments of `plan` is a list of its parts.
    """
    links: list[Any] = []
    link: BaseException | None = error
    while link is not None and len(links) < MAX_CAUSES:
        root = link
        links.append(_describe_link(link))
        link = link.__cause__
    if root.__traceback__ is None:
        return [links, ""]
    # The last lines describe the innermost cause, here the error itself.
    trace = _trace(root) if root is not error else "".join(traceback.format_tb(root.__traceback__))
    return [links, _cut(trace)]


def rebuild(description: list[Any], where: str) -> Exception:
    """Return the exception that was described, its causes behind it, the traceback as a note.

    Raises WireError if it is not a description.
    """
    try:
        links, trace = description
        frames = _frames(trace)
        cause: Exception | None = None
        for name, arguments, at, fix in map(_parts, reversed(links[1:])):
            # The trace is that of the innermost.
            shown = frames if cause is None else ""
            error = _make(name, arguments, at, fix) or _stand_in_error(name, arguments, shown)
            error.__cause__, cause = cause, error
        name, arguments, at, fix = _parts(links[0])
        outer = _make(name, arguments, at, fix) or DeviceError(f"{name}: {arguments[0]}")
        outer.__cause__ = cause
        if trace:
            outer.add_note(f"\nTraceback in {where}, most recent call last:\n{frames}")
    except (TypeError, ValueError, LookupError, AttributeError) as error:
        raise WireError("a message describes no error") from error
    return outer


def _parts(link: Any) -> tuple[str, list[Any], str | None, str | None]:
    """Return the parts of a link; TypeError if they are not what a description has."""
    name, arguments, at, fix = link
    fix = _rebuilt_fix(fix) if isinstance(fix, list) else fix
    texts = (part is None or isinstance(part, str) for part in (at, fix))
    if not isinstance(name, str) or not all(map(_is_plain, arguments)) or not all(texts):
        raise TypeError("a link has a name, plain arguments, a place and a fix")
    return name, arguments, at, fix


def _trace(error: BaseException) -> str:
    try:
        return "".join(traceback.format_exception(error, chain=False))
    except Exception:  # it has attributes that are not what their names say
        return "".join(traceback.format_tb(error.__traceback__))


def _describe_link(error: BaseException) -> list[Any]:
    kind = type(error)
    if isinstance(error, PlaitError) and _is_whole(error):
        return [kind.__name__, [_cut(error.what)], _cut(error.at), _described_fix(error.fix)]
    if kind.__module__ == "builtins":
        return [kind.__name__, _arguments(error), None, None]
    return [f"{kind.__module__}.{kind.__qualname__}", [_text(error)], None, None]


def _arguments(error: BaseException) -> list[Any]:
    """Return what a builtin exception is made again from, its text where that would differ."""
    arguments, text = list(error.args), _text(error)
    if len(text) < MAX_TEXT and len(arguments) < MAX_CAUSES and all(map(_is_plain, arguments)):
        try:
            if str(type(error)(*arguments)) == text:
                return arguments
        except TypeError:
            pass
    return [text]


def _described_fix(fix: str | None) -> Any:
    return [*fix.parts] if isinstance(fix, Fix) and len(fix) <= MAX_TEXT else _cut(fix)


def _rebuilt_fix(parts: list[Any]) -> Fix:
    """Return a fix from its parts; TypeError or ValueError if they are none."""
    return Fix(*(part if isinstance(part, str) else _argument(*part) for part in parts))


def _argument(name: str, value: dict[str, Any]) -> Argument:
    lengths = {key: tuple(one) if isinstance(one, list) else one for key, one in value.items()}
    return Argument(str(name), lengths)


def _is_whole(error: PlaitError) -> bool:
    """Return whether a class of the user's has left it its three parts."""
    parts = (getattr(error, name, 0) for name in ("what", "at", "fix"))
    return all(part is None or isinstance(part, str) for part in parts)


def _is_plain(value: Any) -> bool:
    if type(value) is int:
        return value.bit_length() < 64
    return value is None or type(value) in (str, float, bool)


def _make(name: str, arguments: list[Any], at: str | None, fix: str | None) -> Exception | None:
    """Return the exception of that class; None if there is none, or text cannot make one."""
    kind = _plait_errors().get(name)
    if kind is not None:
        return kind(arguments[0], at=at, fix=fix)
    found = getattr(builtins, name, None)
    if not isinstance(found, type) or not issubclass(found, Exception):
        return None
    try:
        return found(*arguments)
    except TypeError:
        return None


def _stand_in_error(name: str, arguments: list[Any], frames: str) -> RemoteError:
    (text,) = arguments[:1] or ("",)
    return RemoteError(name, str(text), frames)


def _plait_errors() -> dict[str, type[PlaitError]]:
    known: dict[str, type[PlaitError]] = {}
    kinds = [PlaitError]
    while kinds:
        kind = kinds.pop()
        known.setdefault(kind.__name__, kind)
        kinds += kind.__subclasses__()
    return known


def _text(error: BaseException) -> str:
    return str(_cut(get_text(error)))


def _cut(text: str | None) -> str | None:
    if text is None or len(text) <= MAX_TEXT:
        return text
    return f"{text[:MAX_TEXT]}… ({len(text) - MAX_TEXT} characters more)"


def _frames(trace: str) -> str:
    """Return a formatted traceback without its headline."""
    return trace.removeprefix("Traceback (most recent call last):\n").rstrip()
