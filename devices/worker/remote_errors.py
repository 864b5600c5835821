"""Exceptions on their way between processes: described as plain data, never pickled.

A PlaitError and a builtin exception keep their class. For any other class, a RemoteError has the
name, the text and the traceback.
"""

from __future__ import annotations

import builtins
import traceback
from typing import Any

from ...graph.values.errors import Argument, Fix, PlaitError, WireError, get_text
from ..errors import DeviceError, RemoteError

MAX_TEXT = 20_000
"""Most characters of a message or traceback that are sent; a message may hold a whole array's
repr."""

MAX_CAUSES = 8


def describe(error: BaseException) -> list[Any]:
    """Return `error` and its causes as lists of strings and numbers.

    The result is a list of links, outermost first, and the traceback of the innermost. A link is a
    class name, arguments, where and fix; a fix that names arguments of `plan` is a list of its
    parts.
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
    trace = (
        _format_trace(root)
        if root is not error
        else "".join(traceback.format_tb(root.__traceback__))
    )
    return [links, _shorten(trace)]


def rebuild(description: list[Any], where: str) -> Exception:
    """Rebuild the exception of `description` and its causes, with the traceback as a note.

    The note says `where` it was. Raises WireError if the description is malformed.
    """
    try:
        links, trace = description
        frames = trace.removeprefix("Traceback (most recent call last):\n").rstrip()
        cause: Exception | None = None
        for name, arguments, at, fix in map(_split_link, reversed(links[1:])):
            # The traceback belongs to the innermost error.
            shown = frames if cause is None else ""
            error = _make(name, arguments, at, fix) or _unknown_class_error(name, arguments, shown)
            error.__cause__, cause = cause, error
        name, arguments, at, fix = _split_link(links[0])
        outer = _make(name, arguments, at, fix) or DeviceError(f"{name}: {arguments[0]}")
        outer.__cause__ = cause
        if trace:
            outer.add_note(f"\nTraceback in {where}, most recent call last:\n{frames}")
    except (TypeError, ValueError, LookupError, AttributeError) as error:
        raise WireError("a message describes no error") from error
    return outer


def _split_link(link: Any) -> tuple[str, list[Any], str | None, str | None]:
    """Return the four parts of `link`; TypeError if it is malformed."""
    name, arguments, at, fix = link
    fix = _rebuild_fix(fix) if isinstance(fix, list) else fix
    texts = (part is None or isinstance(part, str) for part in (at, fix))
    if not isinstance(name, str) or not all(map(_is_plain, arguments)) or not all(texts):
        raise TypeError("a link has a name, plain arguments, a place and a fix")
    return name, arguments, at, fix


def _format_trace(error: BaseException) -> str:
    try:
        return "".join(traceback.format_exception(error, chain=False))
    except Exception:  # an attribute has an unexpected type
        return "".join(traceback.format_tb(error.__traceback__))


def _describe_link(error: BaseException) -> list[Any]:
    kind = type(error)
    if isinstance(error, PlaitError) and _is_whole(error):
        return [kind.__name__, [_shorten(error.what)], _shorten(error.at), _describe_fix(error.fix)]
    if kind.__module__ == "builtins":
        return [kind.__name__, _list_arguments(error), None, None]
    return [f"{kind.__module__}.{kind.__qualname__}", [_cut_text(error)], None, None]


def _list_arguments(error: BaseException) -> list[Any]:
    """Return the arguments that reproduce `error`, a builtin exception, or else its text."""
    arguments, text = list(error.args), _cut_text(error)
    if len(text) < MAX_TEXT and len(arguments) < MAX_CAUSES and all(map(_is_plain, arguments)):
        try:
            if str(type(error)(*arguments)) == text:
                return arguments
        except TypeError:
            pass
    return [text]


def _describe_fix(fix: str | None) -> Any:
    return [*fix.parts] if isinstance(fix, Fix) and len(fix) <= MAX_TEXT else _shorten(fix)


def _rebuild_fix(parts: list[Any]) -> Fix:
    return Fix(*(part if isinstance(part, str) else _make_argument(*part) for part in parts))


def _make_argument(name: str, value: dict[str, Any]) -> Argument:
    lengths = {key: tuple(one) if isinstance(one, list) else one for key, one in value.items()}
    return Argument(str(name), lengths)


def _is_whole(error: PlaitError) -> bool:
    """Return whether the parts of `error` are texts or missing: subclasses may overwrite them."""
    parts = (getattr(error, name, 0) for name in ("what", "at", "fix"))
    return all(part is None or isinstance(part, str) for part in parts)


def _is_plain(value: Any) -> bool:
    if type(value) is int:
        return value.bit_length() < 64
    return value is None or type(value) in (str, float, bool)


def _make(name: str, arguments: list[Any], at: str | None, fix: str | None) -> Exception | None:
    """Make the exception `name` from `arguments`; None if the class is unknown or refuses them.

    A PlaitError gets `at` and `fix`.
    """
    kind = _list_plait_errors().get(name)
    if kind is not None:
        return kind(arguments[0], at=at, fix=fix)
    found = getattr(builtins, name, None)
    if not isinstance(found, type) or not issubclass(found, Exception):
        return None
    try:
        return found(*arguments)
    except TypeError:
        return None


def _unknown_class_error(name: str, arguments: list[Any], frames: str) -> RemoteError:
    (text,) = arguments[:1] or ("",)
    return RemoteError(name, str(text), frames)


def _list_plait_errors() -> dict[str, type[PlaitError]]:
    known: dict[str, type[PlaitError]] = {}
    kinds = [PlaitError]
    while kinds:
        kind = kinds.pop()
        known.setdefault(kind.__name__, kind)
        kinds += kind.__subclasses__()
    return known


def _cut_text(error: BaseException) -> str:
    return str(_shorten(get_text(error)))


def _shorten(text: str | None) -> str | None:
    if text is None or len(text) <= MAX_TEXT:
        return text
    return f"{text[:MAX_TEXT]}… ({len(text) - MAX_TEXT} characters more)"
