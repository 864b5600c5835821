"""Damage: what is still like a file of its kind, and wrong somewhere."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from copy import deepcopy
from random import Random
from typing import Any

import msgpack

NUMBERS = (0, 1, -1, 2, 7, 64, 65, 127, 128, 255, 2**16, 2**31 - 1, 2**31, -(2**31), 2**32)
BEYOND = (2**40, 2**62, 2**63 - 1, -(2**63), 2**64 - 1, 10**25)
FLOATS = (0.0, -1.5, 1e-300, 1e300, float("inf"), float("nan"))
TEXTS = ("", "\0", "\x1b[2J", "../x", "\ud800", "float32", "a" * 300, "{", "%s", "-")


def value_like(random: Random, old: Any, texts: Sequence[str] = ()) -> Any:
    """Return another value, most often of the same kind."""
    if random.random() < 0.15:
        old = random.choice([None, True, 1, 0.5, "x", [], {}])
    if isinstance(old, bool) or old is None:
        return random.choice([None, True, False])
    if isinstance(old, int):
        return random.choice([old + 1, old - 1, -old, 2 * old, *NUMBERS, *BEYOND])
    if isinstance(old, float):
        return random.choice([-old, 2 * old, *FLOATS])
    if isinstance(old, str):
        return random.choice([old[:-1], old + "x", *TEXTS, *texts])
    return deepcopy(old)


def damaged_bytes(random: Random, data: bytes, other: bytes = b"") -> bytes:
    """Return bytes with some changed, cut out, doubled or taken from elsewhere."""
    made = bytearray(data)
    for _ in range(random.choice([1, 1, 2, 3, 8])):
        start = random.randrange(len(made) + 1)
        end = min(len(made), start + random.choice([1, 1, 2, 4, 8, 64]))
        kind = random.randrange(6)
        if kind == 0:
            made[start:end] = random.randbytes(end - start)
        elif kind == 1:
            del made[start : end if random.random() < 0.8 else len(made)]
        elif kind == 2:
            made[start:start] = made[start:end] * random.choice([1, 1, 2, 50])
        elif kind == 3:
            number = random.choice([*NUMBERS, *BEYOND]) % 2**64
            made[start:end] = number.to_bytes(8, random.choice(["little", "big"]))[: end - start]
        elif kind == 4 and start < len(made):
            made[start] ^= 1 << random.randrange(8)
        else:
            made[start:end] = other[start : start + random.choice([1, 8, 64])]
    return bytes(made)


def damaged_text(random: Random, text: str, words: Sequence[str] = ()) -> str:
    """Return text with words and lines changed, removed, doubled or moved."""
    for _ in range(random.choice([1, 1, 2, 4])):
        parts = re.split(random.choice([r"(\n)", r"(\W)", r"(\d+)", r"(,)"]), text)
        place = random.randrange(len(parts))
        kind = random.randrange(5)
        if kind == 0:
            del parts[place]
        elif kind == 1:
            parts.insert(place, parts[place] * random.choice([1, 2, 100]))
        elif kind == 2:
            parts[place] = random.choice(parts)
        else:
            numbers = [str(number) for number in (*NUMBERS, *BEYOND, *FLOATS)]
            parts[place] = random.choice([*numbers, *TEXTS, *words])
        text = "".join(parts)[: 4 * len(text) + 99]
    return text


def damaged_tree(random: Random, root: Any, texts: Sequence[str] = ()) -> Any:
    """Return a JSON value with parts changed, removed, doubled or moved; it is copied."""
    root = [deepcopy(root)]
    for _ in range(random.choice([1, 1, 2, 3])):
        holder, key = random.choice(_places(root))
        kind = random.randrange(6)
        if kind == 0 and holder is not root:
            del holder[key]
        elif kind == 1 and isinstance(holder, list):
            holder[key:key] = [deepcopy(holder[key])] * random.choice([1, 1, 40])
        elif kind == 2:
            other, place = random.choice(_places(root))
            holder[key] = deepcopy(other[place])
        elif kind == 3 and isinstance(holder, dict):
            holder[random.choice([*TEXTS, *texts])] = holder.pop(key)
        else:
            holder[key] = value_like(random, holder[key], texts)
    return root[0]


def json_bytes(root: Any) -> bytes:
    """Return JSON, in which half characters and infinities may stand as they should not."""
    return json.dumps(root).encode()


def _places(value: Any) -> list[tuple[Any, Any]]:
    found: list[tuple[Any, Any]] = []
    pending = [value]
    while pending and len(found) < 2000:
        holder = pending.pop()
        keys = range(len(holder)) if isinstance(holder, list) else list(holder)
        for key in keys:
            found.append((holder, key))
            if isinstance(holder[key], list | dict):
                pending.append(holder[key])
    return found


def damaged_scalars(random: Random, data: bytes, texts: Sequence[str] = ()) -> bytes:
    """Return a run of msgpack scalars of which some are others, gone, doubled or moved."""
    unpacker = msgpack.Unpacker(max_buffer_size=len(data) + 1)
    unpacker.feed(data)
    values = list(unpacker)
    for _ in range(random.choice([1, 1, 2, 3, 6])):
        place, kind = random.randrange(len(values)), random.randrange(6)
        if kind == 0 and len(values) > 1:
            del values[place]
        elif kind == 1:
            values[place:place] = values[place : place + random.choice([1, 2, 5])]
        elif kind == 2:
            values[place] = random.choice(values)
        else:
            values[place] = value_like(random, values[place], texts)
    pack = msgpack.Packer(unicode_errors="surrogatepass").pack
    # No file holds others.
    held = (min(max(one, -(2**63)), 2**64 - 1) if type(one) is int else one for one in values)
    return b"".join(map(pack, held))


def damaged_message(random: Random, message: Any, texts: Sequence[str] = ()) -> None:
    """Change fields of a protobuf message, or of messages in it."""
    for _ in range(random.choice([1, 1, 2, 3])):
        holder = random.choice(_messages(message))
        fields = [field for field, _ in holder.ListFields()]
        field = random.choice(fields or list(holder.DESCRIPTOR.fields))
        value = getattr(holder, field.name)
        is_many = hasattr(value, "append") and not isinstance(value, str | bytes)
        kind = random.randrange(4)
        if kind == 0:
            holder.ClearField(field.name)
        elif is_many and len(value):
            place = random.randrange(len(value))
            if kind == 1:
                del value[place]
            elif kind == 2 or field.message_type:
                value.extend([deepcopy(value[place])])
            else:
                _set(value, place, random, texts)
        elif not is_many and field.message_type is None:
            _set(holder, field.name, random, texts)


def _set(holder: Any, key: Any, random: Random, texts: Sequence[str]) -> None:
    old = holder[key] if isinstance(key, int) else getattr(holder, key)
    new = damaged_bytes(random, old) if isinstance(old, bytes) else value_like(random, old, texts)
    try:
        if isinstance(key, int):
            holder[key] = new
        else:
            setattr(holder, key, new)
    except (TypeError, ValueError):  # the field cannot hold that, so no file can
        pass


def _messages(message: Any) -> list[Any]:
    found = [message]
    for one in found:
        for field, value in one.ListFields():
            if field.message_type is not None and len(found) < 2000:
                found += list(value) if hasattr(value, "append") else [value]
    return found
