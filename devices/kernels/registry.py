"""The registry of kernels.

A kernel writes into memory that the plan owns: ``kernel(xp, inputs, outputs, attributes)``
for any array module. One that declares scratch gets it as a fifth argument. One with
``binds=True`` is called once, when a plan is opened, and returns a function of no arguments that
does the work: computations on shapes and attributes alone then happen once. A kernel computes the
ONNX operator of its name, unless it has another source.

An operator may have several kernels: those with a condition or a score are used for the nodes
for which they rank higher than the usual one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from importlib import import_module
from typing import Any, TypeAlias

import numpy as np

from ...graph.core.operator import Call, Specs
from ...graph.values.errors import GraphError, OperatorError
from ...graph.values.installed import KERNELS, load_for, load_own
from ...graph.values.registry import ListRegistry, Registry, note_registration
from ...graph.values.tensor import Array, TensorSpec
from .families import FAMILIES, FAMILY_OF

ArrayModule: TypeAlias = Any
Arrays: TypeAlias = Sequence[Array]
Step: TypeAlias = Callable[[], object]
"""A function of no arguments: one call of the array module, its operands bound."""
KernelFunction: TypeAlias = Callable[..., Any]
ScratchRule: TypeAlias = Callable[[Call, Specs], Sequence[TensorSpec]]
"""Returns the specs of the scratch buffers, given a node's static input and output specs."""
Condition: TypeAlias = Callable[[Call], bool]
"""Returns whether a kernel serves for a call, whose specs are static."""
Score: TypeAlias = float | Callable[[Call], float]
"""How good a kernel is, or is for a call; 0 is the usual one's."""

HostRule: TypeAlias = str | Callable[[Call], str | None]
"""The reason why a kernel uses the host; as a function of a call, None if it does not."""

ANY = "any"


def run_in_order(steps: Iterable[Step]) -> Step:
    listed = tuple(steps)
    if len(listed) == 1:
        return listed[0]

    def run() -> None:
        for step in listed:
            step()

    return run


@dataclass(frozen=True, slots=True)
class Kernel:
    """The kernel of an operator for one kind of device, or any.

    Without `when`, it serves for all calls.
    """

    op: str
    device: str
    function: KernelFunction
    scratch: ScratchRule | None = None
    binds: bool = False
    when: Condition | None = None
    score: Score = 0
    host: HostRule | None = None

    @property
    def is_usual(self) -> bool:
        """True for the one that there is once for an operator and a kind of device."""
        return self.when is None and self.score == 0

    def serves(self, call: Call) -> bool:
        return self.when is None or bool(self.when(call))

    def rank(self, call: Call) -> tuple[float, bool, bool]:
        score = self.score(call) if callable(self.score) else self.score
        # The more specific comes first, where scores are equal.
        return score, self.device != ANY, self.when is not None

    def why_host(self, call: Call) -> str | None:
        """Return why `call` would have the host wait for a device with its own memory, or None."""
        return self.host(call) if callable(self.host) else self.host

    def step(self, *arguments: Any) -> Step:
        bound = partial(self.function, *arguments)
        return bound() if self.binds else bound


_kernels: Registry[tuple[str, str], Kernel] = Registry(
    lambda key: GraphError(
        f"two kernels for {key[0]!r} on {key[1]!r}",
        fix="remove one, or say by when= or score= which of them serves for what",
    ),
    function_of=lambda kernel: kernel.function,
)
_others: ListRegistry[str, Kernel] = ListRegistry(function_of=lambda listed: listed[0].function)
"""Those with a condition or a score, by operator."""


def kernel(
    op: str,
    *,
    device: str = ANY,
    scratch: ScratchRule | None = None,
    binds: bool = False,
    when: Condition | None = None,
    score: Score = 0,
    host: HostRule | None = None,
) -> Callable[[KernelFunction], KernelFunction]:
    """Return the decorator that registers a kernel of `op` on `device`, a kind ("cuda") or any.

    Parameters
    ----------
    scratch : callable, optional
        Returns the specs of the scratch buffers that it takes as its fifth argument.
    binds : bool, default False
        Whether it is called when a plan is opened, and returns the function that does the work.
    when : callable, optional
        Takes the call, with static specs, and returns whether the kernel serves for it.
    score : float or callable, default 0
        Of the kernels that serve for a call, the one with the highest score is used. Of equal
        ones, that for the kind of device comes before that for any, one with a condition before
        one without, the first that was registered before later ones.
    host : str or callable, optional
        Why it computes or reads values on the host each time it runs, or a function of the call
        that returns that, or None. Devices that would have to wait for the host refuse it.

    Raises
    ------
    GraphError
        If there is one already, and this one has neither a condition nor a score; or the condition
        is not a function, or the score neither a function nor a number.
    """
    at = f"kernel for {op!r} on {device!r}"
    if when is not None and not callable(when):
        raise GraphError(f"when is {when!r}", at=at, fix="pass a function of the call")
    if not callable(score) and not _is_number(score):
        raise GraphError(
            f"score is {score!r}", at=at, fix="pass a number, or a function of the call"
        )

    def decorate(function: KernelFunction) -> KernelFunction:
        if op in FAMILY_OF:  # so that a second registration is detected
            _import_family(FAMILY_OF[op])
        else:
            load_own(KERNELS, op)
        note_registration()
        made = Kernel(op, device, function, scratch, binds, when, score, host)
        # Those that serve for some calls are listed, as many as there are.
        if not made.is_usual:
            _others.add(op, made)
            return function
        _kernels.register((op, device), made)
        return function

    return decorate


def _import_for(op: str) -> None:
    """Import the kernel of `op` that plait, or a package, has."""
    if (op, ANY) in _kernels:
        return
    if op in FAMILY_OF:
        _import_family(FAMILY_OF[op])
        return
    load_for(KERNELS, op, OperatorError)
    # Not a known operator: some module may still register it.
    if (op, ANY) not in _kernels:
        _import_all()


@cache
def _import_family(family: str) -> None:
    import_module(f"{__package__}.{family}")


@cache
def _import_all() -> None:
    for family in FAMILIES:
        _import_family(family)
    load_own(KERNELS)


def _is_number(value: object) -> bool:
    """Return whether `value` can be compared with other numbers: no text, no NaN."""
    return isinstance(value, int | float | np.number) and value == value


def find_kernel(op: str, device: str, call: Call | None = None) -> Kernel | None:
    """Return the best kernel of `op` for the kind `device`, or None.

    Without a `call`, or with unknown shapes, conditions cannot be checked: the usual kernel is
    returned, else any.
    """
    _import_for(op)
    usual = _kernels.get((op, device)) or _kernels.get((op, ANY))
    if op not in _others:
        return usual
    others = [each for each in _others[op] if each.device in (device, ANY)]
    if call is None or not all(spec is None or spec.is_static for spec in call.inputs):
        # Conditions depend on lengths: without these the usual kernel is assumed.
        return usual or next(iter(others), None)
    # `max` takes the first of equals, and the usual one was there before.
    known = others if usual is None else [usual, *others]
    return max(
        (each for each in known if each.serves(call)),
        key=lambda each: each.rank(call),
        default=None,
    )


def list_kernels_for(op: str, device: str) -> tuple[Kernel, ...]:
    _import_for(op)
    known = (_kernels.get((op, device)), _kernels.get((op, ANY)), *_others.get(op, ()))
    return tuple(each for each in known if each is not None and each.device in (device, ANY))


def list_kernels() -> tuple[Kernel, ...]:
    _import_all()
    return (*_kernels.values(), *(each for listed in _others.values() for each in listed))
