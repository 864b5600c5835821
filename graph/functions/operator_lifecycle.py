"""Operators that own something: classes with hooks, and the states their instances go through.

::

    made -- prepare --> checked -- open --> ready -- run, again and again -- close --> ended

A class has `run`, which takes a node's inputs and its attributes by keyword, as a Python function
would, and any of the other three. Making an instance is cheap: whenever shapes are inferred one is
made, to `prepare`, and dropped. An instance that runs is made again and goes through all states.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any

from ..core.ir import Graph
from ..core.operator import Call
from ..values.errors import OperatorError, PlaitError, describe_error
from ..values.tensor import Array, TensorSpec

HOOKS = {"prepare": 2, "open": 1, "close": 0}
"""The optional methods, and how many arguments they take."""


class State(Enum):
    """Where an instance is in its life."""

    MADE = "made"
    CHECKED = "prepared"
    READY = "open"
    ENDED = "closed"


class OperatorLifecycle:
    """An instance of an operator's class with its state.

    Parameters
    ----------
    kind : type
        The class.
    op : str
        The operator's name.
    at : str, optional
        The node, for errors.

    Examples
    --------
    >>> import numpy as np, plait as pl
    >>> from plait.operators import Call
    >>> @pl.operator(name="life.Count")
    ... class Count:
    ...     def open(self, inputs):
    ...         self.seen = 0
    ...     def run(self, x):
    ...         self.seen += 1
    ...         return x + np.float32(self.seen)
    >>> life = OperatorLifecycle(Count, "life.Count")
    >>> _ = life.prepare(Call((pl.TensorSpec("float32", ()),), (None,), {}))
    >>> life.open()
    >>> life.run(np.float32(0)), life.run(np.float32(0))
    (np.float32(1.0), np.float32(2.0))
    >>> life.close()
    >>> life.state
    <State.ENDED: 'closed'>
    """

    def __init__(self, kind: type, op: str, at: str | None = None) -> None:
        self.op, self.at = op, at
        self.state = State.MADE
        self._instance = self._own("__init__", kind)

    def prepare(self, call: Call) -> Sequence[TensorSpec] | None:
        """Check the node's `call`; return its outputs' specs if the class determines them.

        Raises
        ------
        OperatorError
            If the call is invalid, or was prepared already.
        """
        self._expect("prepare", State.MADE)
        hook = getattr(self._instance, "prepare", None)
        from ..core.checks import Checks  # most graphs own nothing

        made = None if hook is None else self._own("prepare", hook, call, Checks(call, self.op))
        self.state = State.CHECKED
        return (made,) if isinstance(made, TensorSpec) else made

    def open(self, inputs: Sequence[Array | None] = ()) -> None:
        """Acquire resources for `run`; a failing hook must release them itself.

        Parameters
        ----------
        inputs : sequence of Array or None, default ()
            Those of the node that are the same for every item, read-only; None for the others.

        Raises
        ------
        OperatorError
            If it is not prepared, or open.
        Exception
            Any error of the class.
        """
        self._expect("open", State.CHECKED)
        # Set first: one that fails to open is neither opened nor closed after that.
        self.state = State.ENDED
        self._call("open", tuple(inputs))
        self.state = State.READY

    def run(self, *inputs: Array | None, **attributes: Any) -> Any:
        """Compute the results with `attributes`; `inputs` are read-only.

        Raises
        ------
        OperatorError
            If it is not open.
        Exception
            Any error of the class; the instance stays open.
        """
        # Asked here: this is on every item's way, and a call costs more than the question.
        if self.state is not State.READY:
            self._expect("run", State.READY)
        return self._instance.run(*inputs, **attributes)

    def close(self) -> None:
        """Release all resources.

        Raises
        ------
        OperatorError
            If it is not open.
        Exception
            Any error of the class; the instance is closed nevertheless.
        """
        self._expect("close", State.READY)
        self.state = State.ENDED
        # With the state set: one that fails to close is not closed again.
        self._call("close")

    def _expect(self, hook: str, state: State) -> None:
        if self.state is not state:
            raise OperatorError(
                f"{self.op} cannot {hook} when it is {self.state.value}: it must be {state.value}",
                at=self.at,
                fix="prepare, open, run as often as wanted, close; then make another one",
            )

    def _call(self, hook: str, *arguments: Any) -> None:
        method = getattr(self._instance, hook, None)
        if method is not None:
            method(*arguments)

    def _own(self, hook: str, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call `function`, the check `hook` of a class, with `arguments`; errors blame the node."""
        try:
            return function(*arguments)
        except PlaitError:
            raise
        except Exception as error:
            raise OperatorError(
                f"{self.op}.{hook} raised {describe_error(error)}",
                at=self.at,
                fix="correct the node, or the operator",
            ) from error


def get_run(kind: Any) -> Callable[..., Any]:
    method: Callable[..., Any] = kind.run
    return method


def has_lives(graph: Graph) -> bool:
    return any(node.operator.owns for node in graph.nodes)


def check_class(kind: type) -> None:
    label = kind.__qualname__
    run = getattr(kind, "run", None)
    if not inspect.isfunction(run):
        raise OperatorError(f"{label} has no method 'run'", fix="def run(self, x, ...): return y")
    _check_takes(label, "__init__", kind, 0)
    for hook, count in HOOKS.items():
        method = getattr(kind, hook, None)
        if method is not None:
            _check_takes(label, hook, method, count + 1)
            if inspect.iscoroutinefunction(method):
                raise OperatorError(f"{label}.{hook} is asynchronous", fix="make it ordinary")


def _check_takes(label: str, hook: str, method: Callable[..., Any], count: int) -> None:
    try:
        inspect.signature(method).bind(*range(count))
    except TypeError as error:
        wanted = "call, check" if hook == "prepare" else "inputs" if hook == "open" else "nothing"
        raise OperatorError(
            f"{label}.{hook} must take {wanted}: {error}", fix="correct its parameters"
        ) from None
