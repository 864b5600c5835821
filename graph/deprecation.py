"""Deprecation of public names: first a warning, then a release without them."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


def warn_deprecated(what: str, *, since: str, removed_in: str, instead: str) -> None:
    """Warn the caller's caller of a deprecated feature that is not a function, such as an argument.

    See `deprecated`.

    Parameters
    ----------
    what : str
        Such as ``"the argument 'depth' of pl.plan"``.
    since, removed_in, instead : str
    """
    message = f"{what} is deprecated since plait {since} and will be removed in {removed_in}"
    warnings.warn(f"{message}: use {instead}", DeprecationWarning, stacklevel=3)


def deprecated(
    *, since: str, removed_in: str, instead: str
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Make a function warn when it is called; the policy is in docs/policies.md.

    Parameters
    ----------
    since, removed_in : str
        The first release with the warning, and the one without the function: a test fails once that
        is reached while the function exists.
    instead : str
        The replacement, as callers write it.

    Examples
    --------
    >>> import warnings
    >>> @deprecated(since="0.3.0", removed_in="0.5.0", instead="pl.plan")
    ... def place(graph):
    ...     return graph
    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warnings.simplefilter("always")
    ...     _ = place("graph")
    >>> print(caught[0].message)
    place is deprecated since plait 0.3.0 and will be removed in 0.5.0: use pl.plan
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @wraps(function)
        def warned(*args: P.args, **kwargs: P.kwargs) -> R:
            name = function.__qualname__
            warn_deprecated(name, since=since, removed_in=removed_in, instead=instead)
            return function(*args, **kwargs)

        return warned

    return decorate
