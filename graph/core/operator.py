"""Operators: their inputs, attributes, shape rule and cost. Kernels live with devices.

`define` registers them, `find_operator` looks them up. Plait's own are imported when an unknown one
is needed, or a package's is registered.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from inspect import isasyncgenfunction, isclass, iscoroutinefunction
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from ..values.dims import UNKNOWN
from ..values.errors import GraphError, OperatorError, PlaitError
from ..values.installed import OPERATORS, STANDARD, describe_package, list_prefixes, load, load_own
from ..values.registry import Registry, note_registration
from ..values.tensor import MOST_DIMS, Array, Shape, TensorSpec
from .attribute import Attribute, Attributes
from .traits import IN_PLANS_ALONE, NO_TRAITS, NOTHING, UNSTATED, Float16, Part, Trait

Specs: TypeAlias = tuple[TensorSpec, ...]


@dataclass(frozen=True, slots=True)
class Call:
    """The view of a node for shape and cost rules, without names.

    Attributes
    ----------
    inputs : tuple of TensorSpec or None
        None where an optional input is absent.
    values : tuple of Array or None
        The value of each input that is a constant, None elsewhere.
    attributes : Mapping
        Complete: defaults are filled in.
    n_outputs : int
        How many outputs the node asks for.
    elements : tuple of (tuple of int or str) or None
        The elements of each computed list of lengths, such as a Shape's, where they are known.

    Examples
    --------
    >>> import plait as pl
    >>> from plait.operators import Call
    >>> call = Call((pl.TensorSpec("float32", (2,)), None), (None, None), {"axis": 0})
    >>> print(call.spec(0), call.has(1), call.attributes["axis"])
    float32[2] False 0
    """

    inputs: tuple[TensorSpec | None, ...]
    values: tuple[Array | None, ...]
    attributes: Attributes
    n_outputs: int = 1
    elements: tuple[Shape | None, ...] = ()

    def spec(self, index: int) -> TensorSpec:
        spec = self.inputs[index]
        assert spec is not None
        return spec

    def has(self, index: int) -> bool:
        """Return whether the optional input `index` is present."""
        return index < len(self.inputs) and self.inputs[index] is not None

    def value(self, index: int) -> Array | None:
        """Return the constant value of the input `index`, or None if it is absent or computed."""
        return self.values[index] if index < len(self.values) else None

    def lengths(self, index: int) -> Shape | None:
        """Return the integers of the input `index`, a list or one number, as far as known."""
        value, found = self.value(index), self.elements[index : index + 1] or (None,)
        if value is not None and value.dtype.kind in "iu" and value.size <= MOST_DIMS:
            found = (tuple(value.reshape(-1).tolist()),)
        return found[0] if found[0] is not None and self.spec(index).rank in (0, 1) else None


class Cost(NamedTuple):
    """The cost of a node: floating-point operations, and bytes read and written."""

    flops: int
    nbytes: int


InferRule: TypeAlias = Callable[[Call], Sequence[TensorSpec]]
CostRule: TypeAlias = Callable[[Call, Specs], int]
"""Returns the floating-point operations of a node, given its static input and output specs."""

Pairs: TypeAlias = tuple[tuple[int, int], ...]
"""Pairs of (output index, input index)."""


class Alias(NamedTuple):
    """An output and an input of a node, one of which is a run of the other's bytes.

    The run begins after `offset` bytes.
    """

    output: int
    input: int
    offset: int = 0


AliasRule: TypeAlias = Callable[[Call], Iterable[Alias]]
"""Returns the outputs and inputs that share bytes in a node of static shapes."""


DrawsRule: TypeAlias = Callable[[Sequence[str]], bool]


@dataclass(frozen=True, slots=True)
class Operator:
    """A kind of computation.

    Attributes
    ----------
    name : str
        As in ONNX where ONNX has it.
    inputs, outputs : str
        Formal names, such as ``"x w b?"``: ``?`` marks an optional one, a trailing ``*`` (none or
        more) or ``+`` (one or more) a variadic one.
    infer : callable
        Gives the output specs.
    cost : callable
        Gives the floating-point operations.
    views : pairs of (output, input)
        The output is the input's bytes under another shape: no kernel needs to run.
    parts : callable, optional
        Says which outputs are a run of an input's bytes.
    joins : callable, optional
        Says which inputs are a run of an output's bytes; if any is, then all of the output is made
        of such runs.
    inplace : pairs of (output, input)
        The kernel allows the output to overwrite the input.
    effects : bool
        True if a node must run even without readers.
    draws : callable, optional
        Says of a node's inputs, by name or ``""``, whether it draws random numbers. Such nodes are
        no function of their inputs: `graph/passes/randomness.py` makes them that before they are
        planned.
    function : callable, optional
        The Python function of a Python operator, or the class of its nodes' instances.
    bounded : str, optional
        Where output lengths depend on values: the operator that computes the same into buffers of
        an upper bound, and says how much of them it filled. Kernels are for that one.
    module : str
        Where it is defined: the operator's family.
    traits : Trait
        Facts that passes ask for.
    float16 : Float16
        Whether it computes in float16 where that is allowed.
    lacks : Mapping of Part to str
        The implementations that it lacks, with reasons.
    concurrency : int or None
        How many calls of an async function a session has under way at most.
    version : int
        That of its domain since which ONNX models have it in this form.
    declared : tuple of TensorSpec
        The declared inputs of a Python function, if any.
    by_value : callable, optional
        Pickles its function, and the arguments of `plait.operator`, for processes that cannot
        import it.
    arrays : str
        Where the arrays lie that its function takes and returns: ``"host"`` or ``"cuda"``.
    ordered : bool or None
        Whether its function is called for one item after the other, in order; None if its effects,
        or the state that it visibly keeps, decide that.
    """

    name: str
    inputs: str
    outputs: str
    attributes: Mapping[str, Attribute]
    infer: InferRule
    cost: CostRule
    views: Pairs = ()
    inplace: Pairs = ()
    effects: bool = False
    draws: DrawsRule | None = field(default=None, compare=False)
    function: Callable[..., Any] | None = field(default=None, compare=False)
    bounded: str | None = None
    module: str = ""
    parts: AliasRule | None = field(default=None, compare=False)
    joins: AliasRule | None = field(default=None, compare=False)
    traits: Trait = NO_TRAITS
    float16: Float16 = UNSTATED
    lacks: Mapping[Part, str] = field(default_factory=dict, compare=False)
    concurrency: int | None = None
    version: int = 1
    declared: Specs = ()
    by_value: Callable[[], bytes] | None = field(default=None, compare=False)
    arrays: str = "host"
    ordered: bool | None = None

    @property
    def is_async(self) -> bool:
        """True when its function is awaited on an event loop."""
        return iscoroutinefunction(self.function) or isasyncgenfunction(self.function)

    @property
    def owns(self) -> bool:
        """True when its nodes are instances of a class."""
        return isclass(self.function)

    def name_input(self, index: int) -> str:
        return _get_formal(self.inputs, index)

    def check_arity(
        self, n_inputs: int, present: Sequence[bool], n_outputs: int, at: object
    ) -> None:
        """Raise OperatorError unless the counts fit and required inputs are `present`.

        The node at `at` has `n_inputs` and `n_outputs`.
        """
        low, high = _count_formals(self.inputs)
        if not low <= n_inputs <= high:
            raise OperatorError(
                f"{self.name} takes {_describe_range(low, high)} inputs ({self.inputs}), "
                f"got {n_inputs}",
                at=str(at),
                fix=f"pass {self.inputs}",
            )
        missing = [i for i in range(n_inputs) if not (present[i] or _is_optional(self.inputs, i))]
        if missing:
            names = ", ".join(_get_formal(self.inputs, i) for i in missing)
            raise OperatorError(
                f"{self.name} needs its input {names}", at=str(at), fix=f"pass {names}"
            )
        low, high = _count_formals(self.outputs)
        if not low <= n_outputs <= high:
            raise OperatorError(
                f"{self.name} has {_describe_range(low, high)} outputs ({self.outputs}), "
                f"asked for {n_outputs}",
                at=str(at),
                fix=f"ask for {self.outputs}",
            )

    def widen_counts(self, inputs: Sequence[Any]) -> list[Any]:
        """Return inputs with plain integers as int64 where the operator counts or names an axis."""
        formals = self.inputs.split()[: len(inputs)]
        counted = [formal.rstrip("?") in _COUNTS for formal in formals]
        counted += [False] * (len(inputs) - len(formals))
        return [
            np.int64(value) if is_count and type(value) is int else value
            for value, is_count in zip(inputs, counted, strict=True)
        ]

    @property
    def usual_outputs(self) -> int:
        """How many outputs a node has by default: those that are not optional, at least one."""
        return max(_count_formals(self.outputs)[0], 1)

    def complete(self, given: Mapping[str, Any], at: object) -> Attributes:
        """Return the attributes `given` with types checked and defaults filled in.

        Raises
        ------
        OperatorError
            If an attribute is unknown, missing, of the wrong type or out of range.
        """
        for name in given:
            if name not in self.attributes:
                known = ", ".join(self.attributes) or "none"
                raise OperatorError(
                    f"{self.name} has no attribute {name!r}", at=str(at), fix=f"it has: {known}"
                )
        return MappingProxyType(
            {
                name: attribute.complete(self.name, name, given.get(name), at)
                for name, attribute in self.attributes.items()
            }
        )


def _import_families() -> None:
    from ..operators import families  # noqa: F401


_operators: Registry[str, Operator] = Registry(
    lambda name: GraphError(
        f"operator {name!r} is defined twice", fix="choose another name for one"
    ),
    own=_import_families,
    group=OPERATORS,
    counts=True,
    function_of=lambda operator: operator.function,
)
_BOUNDED = "Bounded."
_COUNTS = ("axes", "axis", "indices", "k")
"""Inputs that are integers for any dtype of the first tensor."""
_registered: ContextVar[list[str] | None] = ContextVar("plait registered", default=None)
_PACKAGE = __name__.partition(".")[0]


def elements(call: Call, outputs: Specs) -> int:
    """Estimate `call` as one operation per element of `outputs`."""
    return sum(spec.size for spec in outputs)


def free(call: Call, outputs: Specs) -> int:
    """Return 0, the cost of a `call` without arithmetic, for any `outputs`."""
    return 0


def define(
    name: str,
    *,
    inputs: str,
    outputs: str = "y",
    attributes: Mapping[str, Attribute] | None = None,
    cost: CostRule = elements,
    views: Pairs = (),
    parts: AliasRule | None = None,
    joins: AliasRule | None = None,
    inplace: Pairs = (),
    effects: bool = False,
    draws: DrawsRule | None = None,
    bound: InferRule | None = None,
    traits: Trait = NO_TRAITS,
    float16: Float16 = UNSTATED,
    lacks: Mapping[Part, str] = NOTHING,
) -> Callable[[InferRule], InferRule]:
    """Register an operator with the decorated function as its shape rule.

    `bound` is given where output lengths depend on values: a second shape rule, that yields the
    largest shapes. The operator called `name_bounded_form` is registered too: its outputs have
    these shapes, and one more, a vector of int64, holds the true shapes, one after the other. The
    elements of an output lie at the beginning of its buffer, without gaps.

    Examples
    --------
    >>> import plait as pl
    >>> from plait.operators import define, unregister_operator
    >>> @define("example.Halve", inputs="x", outputs="y")
    ... def halve(call):
    ...     return (call.spec(0),)
    >>> b = pl.GraphBuilder("half")
    >>> b.output("y", b.op("example.Halve", b.input("x", "float32", (2, 3))))
    >>> print(b.build().tensors["y"])
    float32[2, 3]
    >>> unregister_operator("example.Halve")
    """
    known = dict(attributes or {})
    module = sys._getframe(1).f_globals["__name__"]  # as namedtuple does

    def decorate(infer: InferRule) -> InferRule:
        bounded = None
        if bound is not None:
            bounded = name_bounded_form(name)
            rule, names = _with_shapes(bound), f"{outputs.replace('?', '')} shapes"
            register_operator(
                Operator(
                    bounded,
                    inputs,
                    names,
                    known,
                    rule,
                    cost,
                    float16=float16,
                    module=module,
                    lacks=IN_PLANS_ALONE,
                )
            )
        register_operator(
            Operator(
                name,
                inputs,
                outputs,
                known,
                infer,
                cost,
                views,
                inplace,
                effects,
                draws,
                bounded=bounded,
                module=module,
                parts=parts,
                joins=joins,
                traits=traits,
                float16=float16,
                lacks=lacks,
            )
        )
        return infer

    return decorate


def name_bounded_form(name: str) -> str:
    """Return the name of the operator that computes `name` into buffers of its largest shape."""
    return f"{_BOUNDED}{name}"


def is_bounded_form(op: str) -> bool:
    """Return whether `op`, in plans, writes to buffers of the largest shape of another operator."""
    return op.startswith(_BOUNDED)


def strip_bounded_form(text: str) -> str:
    return text.replace(_BOUNDED, "")


def _with_shapes(bound: InferRule) -> InferRule:
    def infer(call: Call) -> Sequence[TensorSpec]:
        largest = tuple(bound(call))
        ranks = [spec.rank for spec in largest]
        # A number for each axis of each output.
        length = UNKNOWN if None in ranks else sum(filter(None, ranks))
        return (*largest, TensorSpec("int64", (length,)))

    return infer


def register_operator(operator: Operator) -> None:
    """Add `operator` to the registry; raises GraphError if the name is taken or invalid."""
    if not isinstance(operator.name, str) or not operator.name:
        raise GraphError(f"{operator.name!r} is not the name of an operator", fix="use some text")
    # Plait's own come first, in any order of imports: a second one of a name is refused, and
    # never plait's.
    if not operator.module.startswith(f"{_PACKAGE}."):
        _operators.import_own()
        load_own(OPERATORS, operator.name)
    _operators.register(operator.name, operator)
    noted = _registered.get()
    if noted is not None:
        noted.append(operator.name)


_aliases: dict[str, str] = {}


def alias_operator(alias: str, name: str) -> None:
    """Let builders and editors take `alias` for the operator `name`, which nodes keep.

    Raises
    ------
    OperatorError
        If the operator is unknown.
    GraphError
        If the alias is the name of an operator, or stands for another one.

    Examples
    --------
    >>> import plait as pl
    >>> from plait.operators import alias_operator, remove_alias
    >>> alias_operator("mul", "Mul")
    >>> b = pl.GraphBuilder("double")
    >>> b.output("y", b.op("mul", b.input("x", "float32", (2,)), 2.0))
    >>> b.build().nodes[0].op
    'Mul'
    >>> remove_alias("mul")
    """
    find_operator(name)
    if not isinstance(alias, str) or not alias:
        raise GraphError(f"{alias!r} is not the name of an operator", fix="use some text")
    if is_operator(alias) or _aliases.get(alias, name) != name:
        stands_for = f", of {_aliases[alias]!r}" if alias in _aliases else ""
        raise GraphError(f"{alias!r} is a name already{stands_for}", fix="choose another alias")
    _aliases[alias] = name


def remove_alias(alias: str) -> None:
    """Forget `alias`; raises GraphError if it is unknown."""
    if alias not in _aliases:
        raise GraphError(f"{alias!r} is not an alias", fix="name one of alias_operator")
    del _aliases[alias]


def resolve_alias(op: str) -> str:
    """Return the name of the operator that the alias `op` stands for; other names as they are."""
    return op if not isinstance(op, str) or op in _operators else _aliases.get(op, op)


def unregister_operator(name: str) -> None:
    """Remove the operator `name` from the registry; raises OperatorError if it is unknown."""
    find_operator(name)
    del _operators[name]
    note_registration()


def find_operator(name: str, at: object = None) -> Operator:
    """Return the operator `name`; errors name the place `at`.

    If it is not registered, an installed package that offers it is imported.

    Raises
    ------
    OperatorError
        If it is unknown, with similar names in the message; or if its package is broken.
    """
    try:
        return _operators[name]
    except (KeyError, TypeError):
        if not isinstance(name, str):
            raise OperatorError(
                f"{name!r} is not the name of an operator", fix="use text, such as 'Add'"
            ) from None
        if is_operator(name):
            return _operators[name]
        listed = "list them: import plait; plait.operators.list_operators()"
        where = None if at is None else str(at)
        raise _operators.unknown_error("operator", name, listed, OperatorError, where) from None


def is_operator(name: str) -> bool:
    """Return whether an operator `name` is registered, or a package offers it.

    Raises
    ------
    OperatorError
        If that package is broken.
    """
    if name not in _operators:
        _operators.import_own()
    return name in _operators or _is_installed(name)


def _is_installed(name: str) -> bool:
    """Import the package that offers operator `name`, or all operators of its first parts.

    For names without a dot those are ONNX's. An offered function registers the requested operator.
    """
    for offer in list_prefixes(name) if "." in name else (name, STANDARD):
        with _undo_on_error():
            found = load(OPERATORS, offer, OperatorError)
            if callable(found):
                found(name)
        if name in _operators:
            return True
        # Of a package that offers the first parts of a name, not every name must be there.
        if found is not None and offer == name and not load_own(OPERATORS, name):
            raise OperatorError(
                f"package {describe_package(OPERATORS, name)} offers an operator {name!r}, "
                "but importing it defines none of that name",
                fix="correct the name in its pyproject.toml, or that of the operator",
            )
    return False


@contextmanager
def _undo_on_error() -> Iterator[None]:
    # Otherwise the next attempt of a failed import would define operators twice.
    token = _registered.set([])
    try:
        yield
    except PlaitError:
        for name in _registered.get() or ():
            _operators.pop(name, None)
        raise
    finally:
        _registered.reset(token)


def list_known_operators() -> tuple[str, ...]:
    """Return the names of plait's operators, and of others that are registered by now.

    Those of dialects and packages are loaded when one is asked for: some import much for that.
    """
    _operators.import_own()
    return tuple(_operators)


def list_operators() -> tuple[str, ...]:
    return tuple(sorted(_operators.all()))


def _count_formals(formals: str) -> tuple[int, float]:
    names = formals.split()
    low = sum(name[-1] not in "?*" for name in names)
    variadic = bool(names) and names[-1][-1] in "*+"
    return low, float("inf") if variadic else len(names)


def _get_formal(formals: str, index: int) -> str:
    names = formals.split()
    return names[min(index, len(names) - 1)].rstrip("?*+")


def _is_optional(formals: str, index: int) -> bool:
    names = formals.split()
    return names[min(index, len(names) - 1)].endswith("?")


def _describe_range(low: int, high: float) -> str:
    if low == high:
        return str(low)
    return f"{low} or more" if high == float("inf") else f"{low} to {int(high)}"
