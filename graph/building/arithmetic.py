"""Python's operators on tensors, as operators of graphs."""

from __future__ import annotations

from typing import Any, Self


class Arithmetic:
    """Adds a node for each of Python's operators, through `_node` of a subclass."""

    __slots__ = ()

    def _node(self, op: str, *operands: Any, **attributes: Any) -> Self:
        raise NotImplementedError

    def _is_bool(self) -> bool:
        """Return whether & and | are logical rather than bitwise."""
        raise NotImplementedError

    def _logical(self, op: str, *operands: Any) -> Self:
        return self._node(op if self._is_bool() else f"Bitwise{op}", *operands)

    # A number is the second operand of a commutative operator, whichever side it was on.
    def __add__(self, other: Any) -> Self:
        return self._node("Add", self, other)

    def __radd__(self, other: Any) -> Self:
        return self.__add__(other)

    def __sub__(self, other: Any) -> Self:
        return self._node("Sub", self, other)

    def __rsub__(self, other: Any) -> Self:
        return self._node("Sub", other, self)

    def __mul__(self, other: Any) -> Self:
        return self._node("Mul", self, other)

    def __rmul__(self, other: Any) -> Self:
        return self.__mul__(other)

    def __truediv__(self, other: Any) -> Self:
        return self._node("Div", self, other)

    def __rtruediv__(self, other: Any) -> Self:
        return self._node("Div", other, self)

    def __mod__(self, other: Any) -> Self:
        return self._node("Mod", self, other)

    def __rmod__(self, other: Any) -> Self:
        return self._node("Mod", other, self)

    def __pow__(self, other: Any) -> Self:
        return self._node("Pow", self, other)

    def __rpow__(self, other: Any) -> Self:
        return self._node("Pow", other, self)

    def __matmul__(self, other: Any) -> Self:
        return self._node("MatMul", self, other)

    def __rmatmul__(self, other: Any) -> Self:
        return self._node("MatMul", other, self)

    def __and__(self, other: Any) -> Self:
        return self._logical("And", self, other)

    def __rand__(self, other: Any) -> Self:
        return self.__and__(other)

    def __or__(self, other: Any) -> Self:
        return self._logical("Or", self, other)

    def __ror__(self, other: Any) -> Self:
        return self.__or__(other)

    def __xor__(self, other: Any) -> Self:
        return self._logical("Xor", self, other)

    def __rxor__(self, other: Any) -> Self:
        return self.__xor__(other)

    def __lshift__(self, other: Any) -> Self:
        return self._node("BitShift", self, other, direction="LEFT")

    def __rlshift__(self, other: Any) -> Self:
        return self._node("BitShift", other, self, direction="LEFT")

    def __rshift__(self, other: Any) -> Self:
        return self._node("BitShift", self, other, direction="RIGHT")

    def __rrshift__(self, other: Any) -> Self:
        return self._node("BitShift", other, self, direction="RIGHT")

    def __neg__(self) -> Self:
        return self._node("Neg", self)

    def __pos__(self) -> Self:
        return self

    def __invert__(self) -> Self:
        return self._logical("Not", self)

    def __abs__(self) -> Self:
        return self._node("Abs", self)

    def __lt__(self, other: Any) -> Self:
        return self._node("Less", self, other)

    def __le__(self, other: Any) -> Self:
        return self._node("LessOrEqual", self, other)

    def __gt__(self, other: Any) -> Self:
        return self._node("Greater", self, other)

    def __ge__(self, other: Any) -> Self:
        return self._node("GreaterOrEqual", self, other)
