"""Frozen dataclasses to JSON and back, by their annotations.

Supports what plans are made of: dataclasses, named tuples, tuples, frozen sets, mappings with
string keys, optional values, literals, strings, numbers and booleans.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import math
import types
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

from caramel.core.errors import PlanError

Record = TypeVar("Record")

_SHOWN = 100  # characters of a value in a message


def to_json_value(value: Any) -> Any:
    """A record as plain lists, dicts and scalars, ready for `json.dumps`."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_json_value(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {key: to_json_value(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [to_json_value(item) for item in value]
    if isinstance(value, frozenset | set):
        # So that equal records give equal text.
        return sorted(to_json_value(item) for item in value)
    return value


def read_json(text: str) -> Any:
    """The plain lists, dicts and scalars of a JSON text.

    Raises:
        ValueError: it is not JSON, nests too deep, or has a number that is none, or infinite.
    """

    def refuse(name: str) -> None:
        raise ValueError(f"{name} is no number of JSON")

    def number(digits: str) -> float:
        found = float(digits)
        if math.isinf(found):
            refuse(digits[:_SHOWN])
        return found

    try:
        return json.loads(text, parse_constant=refuse, parse_float=number)
    except RecursionError:
        raise ValueError("it nests too deep") from None


def from_json_value(kind: type[Record], value: Any, where: str = "$") -> Record:
    """The record of type `kind` that `to_json_value` made `value` of.

    Raises:
        PlanError: `value` does not have the form of `kind`; says where.
    """
    return typing.cast(Record, _read(kind, value, where))


def _read(kind: Any, value: Any, where: str) -> Any:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return _read_optional(arguments, value, where)
    if origin is typing.Literal:
        return _expect(value in arguments, value, f"one of {arguments}", where)
    if origin is tuple:
        _expect(isinstance(value, list), value, "a list", where)
        return tuple(_read(arguments[0], v, f"{where}[{i}]") for i, v in enumerate(value))
    if origin is frozenset:
        _expect(isinstance(value, list), value, "a list", where)
        found = frozenset(_read(arguments[0], v, f"{where}[{i}]") for i, v in enumerate(value))
        _expect(len(found) == len(value), value, "a list that has nothing twice", where)
        return found
    if origin is Mapping:
        _expect(isinstance(value, dict), value, "an object", where)
        return {key: _read(arguments[1], item, f"{where}.{key}") for key, item in value.items()}
    if dataclasses.is_dataclass(kind):
        return _read_dataclass(kind, value, where)
    if hasattr(kind, "_fields"):
        return _read_named_tuple(kind, value, where)
    if kind is float:
        # Other programs may write 1.0 as 1.
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return float(_expect(is_number, value, "a number", where))
    return _expect(type(value) is kind, value, f"a {kind.__name__}", where)


def _read_optional(arguments: tuple[Any, ...], value: Any, where: str) -> Any:
    if value is None and type(None) in arguments:
        return None
    kinds = [argument for argument in arguments if argument is not type(None)]
    return _read(kinds[0], value, where)


def _read_named_tuple(kind: Any, value: Any, where: str) -> Any:
    hints, fields = typing.get_type_hints(kind), inspect.signature(kind).parameters
    least = sum(field.default is inspect.Parameter.empty for field in fields.values())
    is_whole = isinstance(value, list) and least <= len(value) <= len(fields)
    _expect(is_whole, value, f"a list of {', '.join(fields)}", where)
    given = zip(fields, value, strict=False)  # the last ones may have defaults
    return kind(*(_read(hints[name], item, f"{where}.{name}") for name, item in given))


def _read_dataclass(kind: Any, value: Any, where: str) -> Any:
    _expect(isinstance(value, dict), value, "an object", where)
    hints = typing.get_type_hints(kind)
    fields = {field.name for field in dataclasses.fields(kind)}
    unknown = sorted(set(value) - fields)
    if unknown:
        raise PlanError(f"{where}: unknown keys {unknown!s:.{_SHOWN}} in a {kind.__name__}")
    required = {
        f.name
        for f in dataclasses.fields(kind)
        if f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
    }
    missing = sorted(required - set(value))
    if missing:
        raise PlanError(f"{where}: keys {missing} are missing from a {kind.__name__}")
    return kind(**{key: _read(hints[key], item, f"{where}.{key}") for key, item in value.items()})


def _expect(holds: bool, value: Any, wanted: str, where: str) -> Any:
    if not holds:
        shown = repr(value)
        raise PlanError(
            f"{where}: expected {wanted}, got {shown[:_SHOWN]}{'...' * (len(shown) > _SHOWN)}"
        )
    return value
