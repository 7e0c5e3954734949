"""Malformed texts, made from a seed out of well-formed ones."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Sequence
from random import Random
from typing import Any

NASTY: Sequence[Any] = (
    None,
    True,
    False,
    0,
    -1,
    1,
    2**31,
    2**63,
    10**30,
    0.5,
    -0.0,
    1e308,
    1e-320,
    float("nan"),
    float("inf"),
    float("-inf"),
    "",
    " ",
    "0",
    "²",
    "\0",
    "a" * 5000,
    "9" * 5000,
    "../../etc/passwd",
    "\ud800",
    "ü:1",
    [],
    [[]],
    {},
    {"": None},
)

_PIECES = ("[", "]", "{", "}", ",", ":", "-", '"', "\0", "²", "9" * 5000, "[" * 3000, "(x9999999)")


def mutated_json(text: str, random: Random) -> str:
    """A JSON text with one or two things changed; perhaps no JSON any more."""
    if random.random() < 0.3:
        return mutated_text(text, random)
    value = json.loads(text)
    for _ in range(random.choice((1, 1, 1, 2))):
        value = _changed(value, random)
    return json.dumps(value)


def mutated_text(text: str, random: Random) -> str:
    """A text with a part left out, doubled, replaced or put in."""
    begin = random.randrange(len(text) + 1)
    end = min(len(text), begin + random.choice((0, 1, 1, 3, 20)))
    kind = random.randrange(4)
    if kind == 0:
        return text[:begin] + text[end:]
    if kind == 1:
        return text[:end] + text[begin:]
    if kind == 2:
        return text[:begin]
    return text[:begin] + random.choice(_PIECES) + text[end:]


def mutated_bytes(content: bytes, random: Random) -> bytes:
    """Bytes of which some are changed, left out, or put in."""
    changed = bytearray(content)
    for _ in range(random.choice((1, 1, 2, 8))):
        at = random.randrange(len(changed) + 1)
        kind = random.randrange(4)
        if kind == 0 and at < len(changed):
            changed[at] ^= 1 << random.randrange(8)
        elif kind == 1:
            del changed[at : at + random.choice((1, 4, 100))]
        elif kind == 2:
            changed[at:at] = random.randbytes(random.choice((1, 4, 100)))
        else:
            del changed[at:]
    return bytes(changed)


def nasty(random: Random) -> Any:
    """A value that is rarely expected; not the same object twice."""
    return copy.deepcopy(random.choice(NASTY))


def _changed(value: Any, random: Random) -> Any:
    """A JSON value with one place changed."""
    places = [place for place in _places(value) if place]
    if not places:
        return nasty(random)
    *way, last = random.choice(places)
    whole = copy.deepcopy(value)
    inside = whole
    for key in way:
        inside = inside[key]
    kind = random.randrange(4)
    if kind == 0 and isinstance(inside, dict):
        del inside[last]
    elif kind == 1 and isinstance(inside, dict):
        inside[random.choice(("extra", "", "²", f"{last}2"))] = nasty(random)
    elif kind == 1:
        inside.insert(last, nasty(random))
    elif kind == 2 and isinstance(inside, list):
        inside.append(copy.deepcopy(inside[last]))
    else:
        inside[last] = nasty(random)
    return whole


def _places(value: Any, way: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The keys that lead to each value inside of a value."""
    yield way
    items: Any = ()
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list):
        items = enumerate(value)
    for key, inner in items:
        yield from _places(inner, (*way, key))
