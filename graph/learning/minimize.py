"""One step of training: gradients, updates, assignments, gathered in one tensor to fetch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..building.builder import GraphBuilder
from ..building.named_tensor import Tensor
from ..core.ir import ASSIGN, VARIABLE, find_needed
from ..gradients.build import gradients
from ..gradients.checkpoints import Checkpoints
from ..gradients.formula import Formula, Term
from ..operators.state import GROUP
from ..values.dtypes import kind_of
from ..values.errors import GraphError, ShapeError
from ..values.names import Names
from .initializers import zeros
from .optimizers import Optimizer, Update
from .schedules import Progress


def minimize(
    builder: GraphBuilder,
    loss: str,
    optimizer: Optimizer,
    variables: Sequence[str] | None = None,
    *,
    name: str = "train",
    checkpoint: Checkpoints = None,
) -> Tensor:
    """Add the nodes that minimize a loss, item by item; return the tensor to fetch for it.

    Parameters
    ----------
    loss : str
        A float tensor of one element.
    optimizer : Optimizer
        Such as ``SGD(0.1, momentum=0.9)``.
    variables : sequence of str, optional
        The variables to change; `trainable(builder, loss)` by default.
    name : str, default "train"
        The prefix of new nodes' names; the name itself stays free for tensors and outputs.
    checkpoint : sequence of str, or "auto", optional
        Tensors kept for the gradients instead of recomputed: see `plait.gradients`.

    Returns
    -------
    Tensor
        A Group of all assignments. Fetching it, or everything, changes the variables.

    Raises
    ------
    GraphError
        If the loss depends on no variable, a gradient is unknown, or a checkpoint is not a tensor.
    ShapeError
        If the loss has more than one element.

    Examples
    --------
    >>> import plait as pl
    >>> b = pl.GraphBuilder("parabola")
    >>> x = b.variable("x", 3.0, dtype="float32")
    >>> loss = x * x
    >>> train = pl.learning.minimize(b, loss, pl.learning.SGD(0.1))
    >>> [node.op for node in b.nodes if node.op in ("Assign", "Group")]
    ['Assign', 'Group']
    """
    spec = builder.spec(loss)
    if spec.is_static and spec.size != 1:
        raise ShapeError(
            f"the loss {loss!r} is {spec}", at=builder.name, fix="reduce it to one number first"
        )
    loss = builder.own_name(loss)
    chosen = [*(trainable(builder, loss) if variables is None else variables)]
    slopes = gradients(builder, loss, chosen, checkpoint=checkpoint) if chosen else []
    return apply_gradients(builder, optimizer, chosen, slopes, name=name)


def apply_gradients(
    builder: GraphBuilder,
    optimizer: Optimizer,
    variables: Sequence[str],
    gradients: Sequence[str],
    *,
    name: str = "train",
) -> Tensor:
    """Add nodes to `builder` that change `variables` by `gradients`, as `optimizer` does.

    Slots are variables named after the variable, such as ``w/momentum``; the step is
    ``train/step`` by default, after `name`. Variables and slots narrower than float32 are computed,
    and slots kept, in float32.

    Raises
    ------
    GraphError
        Without variables, or without one gradient for each; or if one is not a variable or is
        already assigned.
    ShapeError
        If a gradient does not have its variable's shape.
    """
    if not variables or len(variables) != len(gradients):
        raise GraphError(
            f"there are {len(variables)} variables to change and {len(gradients)} gradients",
            at=builder.name,
            fix="make weights with variable(), and pass one gradient for each",
        )
    return _Training(builder, optimizer, name).apply(variables, gradients)


def trainable(builder: GraphBuilder, loss: str) -> list[Tensor]:
    """Return the float variables that `loss` depends on and that are not assigned in `builder` yet.

    Averages that a graph assigns itself, such as those of batch normalization, are not included.
    """
    assigned = {node.inputs[0] for node in builder.nodes if node.op == ASSIGN}
    needed = [*find_needed([builder.own_name(loss)], builder.nodes)][::-1]
    found = (node.outputs[0] for node in needed if node.op == VARIABLE)
    floats = (one for one in found if kind_of(builder.spec(one).dtype) == "f")
    return [builder.tensor(one) for one in floats if one not in assigned]


class _Training:
    """The nodes of one call of `apply_gradients`."""

    def __init__(self, builder: GraphBuilder, optimizer: Optimizer, name: str) -> None:
        self._builder = builder
        self._optimizer = optimizer
        self._name = Names(node.name for node in builder.nodes).take(name)
        self._formula = Formula(builder, f"{self._name}/")
        self._assigned: list[str] = []
        self._updates: dict[np.dtype[np.floating], Update] = {}
        self._progress = Progress(self._formula, optimizer.learning_rate, self._counted)

    def apply(self, variables: Sequence[str], gradients: Sequence[str]) -> Tensor:
        for variable, gradient in zip(variables, gradients, strict=True):
            self._change(self._builder.own_name(variable), gradient)
        # Outputs and inputs may well be called "train": the tensor leaves them that name.
        done = f"{self._name}/done"
        made: tuple[Tensor] = self._builder.op(
            GROUP, *self._assigned, name=self._name, outputs=[done]
        )
        return made[0]

    def _change(self, variable: str, gradient: str) -> None:
        x, g = self._formula.term(variable), self._formula.term(gradient)
        wide = np.result_type(np.float32, x.dtype)
        update = self._update_in(wide)
        self._formula.prefix = f"{self._name}/{variable}/"
        slots = {slot: self._slot(x, slot, wide) for slot in self._optimizer.slots}
        value, kept = update(x.cast(wide), g.cast(wide), slots)
        self._assign(x, value.cast(x.dtype))
        for slot, term in kept.items():
            self._assign(slots[slot], term)

    def _update_in(self, dtype: np.dtype[np.floating]) -> Update:
        if dtype not in self._updates:
            self._formula.prefix = f"{self._name}/"
            self._updates[dtype] = self._optimizer.updates(self._progress, dtype)
        return self._updates[dtype]

    def _slot(self, x: Term, slot: str, dtype: np.dtype[np.floating]) -> Term:
        lengths = [dim for dim in x.spec.shape or () if isinstance(dim, int)]
        made = self._builder.variable(f"{x.name}/{slot}", zeros(lengths, dtype))
        return self._formula.term(made)

    def _counted(self) -> Term:
        made = self._builder.variable(f"{self._name}/step", zeros((), "int64"))
        step = self._formula.term(made)
        self._assign(step, step + 1)
        return step

    def _assign(self, variable: Term, value: Term) -> None:
        self._assigned.append(self._builder.assign(variable.name, value.name))
