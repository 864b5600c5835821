"""The definition of Philox, in exact integers."""

from __future__ import annotations

from ...graph.operators.normal_quantile import normal_quantile
from ...graph.operators.randomness import INTEGER, PHILOX, UNIFORM
from ...graph.values.tensor import Array
from .registry import definition, indices, table

_MULTIPLIERS = 0xD2E7470EE14C6C93, 0xCA5A826395121157
_WEYL = 0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B
_ROUNDS = 10
_MASK = 2**64 - 1


def generate_block(
    key: tuple[int, int], counter: tuple[int, int, int, int]
) -> tuple[int, int, int, int]:
    """Return the four words that Philox4x64-10 makes of `counter` with `key`.

    Source: Salmon, Moraes, Dror, Shaw, *Parallel Random Numbers: As Easy as 1, 2, 3* (2011).
    """
    for number in range(_ROUNDS):
        k0, k1 = ((k + number * step) & _MASK for k, step in zip(key, _WEYL, strict=True))
        first, second = _MULTIPLIERS[0] * counter[0], _MULTIPLIERS[1] * counter[2]
        counter = (
            (second >> 64) ^ counter[1] ^ k0,
            second & _MASK,
            (first >> 64) ^ counter[3] ^ k1,
            first & _MASK,
        )
    return counter


@definition(PHILOX)
def philox(
    key: Array, shape: Array, *, distribution: str, dtype: str, sequence: int, seeded: bool
) -> Array:
    # Element i is from word i of the blocks of the key, the sequence and block numbers from 1 on.
    # Source: `plait.graph.operators.randomness`.
    seed, item = int(key[0]), int(key[1])
    lengths = [int(length) for length in shape.flat]
    bits = 32 if dtype == "float32" else 64
    drawn = {}
    for i, index in enumerate(indices(lengths)):
        at = i * bits // 64
        words = generate_block((0 if seeded else seed, sequence), (at // 4 + 1, item, 0, 0))
        word = (words[at % 4] >> (i * bits % 64)) % 2**bits
        if distribution == INTEGER:
            drawn[index] = word
        elif distribution == UNIFORM:
            digits = 24 if bits == 32 else 53
            drawn[index] = (word >> (bits - digits)) / 2**digits
        else:
            digits = 32 if bits == 32 else 52
            drawn[index] = normal_quantile(((word >> (bits - digits)) + 0.5) / 2**digits)
    return table(lengths, lambda *index: drawn[index])
