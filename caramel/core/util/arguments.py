"""Checks what public functions are given, in one place: of the type that the annotation says, and
within limits.

`checked` is for functions, `check_fields` for records. Where an annotation is `Any`, the function
itself has to look.
"""

from __future__ import annotations

import collections.abc
import functools
import inspect
import math
import os
import types
import typing
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, Literal, ParamSpec, TypeVar

from caramel.core.errors import CaramelError
from caramel.core.util.suggestion import suggestion

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

_SHOWN = 200  # characters of a value in a message
_TOLD: Mapping[Any, str] = {
    bool: "True or False",
    int: "a whole number",
    float: "a number",
    str: "a text",
    types.NoneType: "None",
    os.PathLike: "a path",
}


@dataclass(frozen=True, slots=True)
class Limit:
    """Which numbers there may be.

    Attributes:
        least: the least of them.
        is_excluded: whether `least` is none of them.
        unit: what they are numbers of.
        most: the largest of them.
    """

    least: float
    is_excluded: bool = False
    unit: str = ""
    most: float = math.inf

    def admits(self, value: Any) -> bool:
        """Whether a number is one of them; what is none always is."""
        if not _is_number(value):
            return True
        if math.isinf(value):
            return False
        return self.least < value <= self.most or (value == self.least and not self.is_excluded)

    def __str__(self) -> str:
        told = f"more than {self.least:g}" if self.is_excluded else f"at least {self.least:g}"
        return told if math.isinf(self.most) else f"{told} and at most {self.most}"


def at_least(least: float, unit: str = "", *, most: float = math.inf) -> Limit:
    """Numbers that are not less, and not more than the most."""
    return Limit(least, unit=unit, most=most)


def more_than(least: float, unit: str = "") -> Limit:
    """Numbers that are larger."""
    return Limit(least, True, unit)


SECONDS = Limit(0, is_excluded=True, unit="seconds")
"""Times that something may take."""


def checked(
    error: type[CaramelError], *, apart: Collection[str] = (), **limits: Limit
) -> Callable[[Callable[Arguments, Result]], Callable[Arguments, Result]]:
    """A public function whose arguments are looked at before it is called.

    Args:
        error: is raised for an argument that cannot be.
        apart: names of parameters at which the function itself looks.
        limits: of numbers, by the names of parameters.
    """

    def decorate(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
        signature = inspect.signature(function)
        called = function.__qualname__.removesuffix(".__init__")

        @functools.cache
        def kinds() -> Mapping[str, Any]:  # when all that annotations name is imported
            return typing.get_type_hints(function)

        @functools.wraps(function)
        def checking(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
            try:
                given = signature.bind(*args, **kwargs).arguments
            except TypeError as wrong:
                known = signature.parameters
                unknown = [f"'{name}'{suggestion(name, known)}" for name in kwargs.keys() - known]
                # Python tells first what is missing, which may only be misspelt.
                told = f"there is no argument {unknown[0]}" if unknown else str(wrong)
                raise TypeError(f"{called}: {told}") from None
            hints = kinds()
            for name, value in given.items():
                if name in hints and name not in apart and not _is_variadic(signature, name):
                    _check(name, value, hints[name], limits.get(name), error)
            return function(*args, **kwargs)

        return checking

    return decorate


def check_fields(record: Any, error: type[CaramelError], **limits: Limit) -> None:
    """Raise unless the fields of a record are of their types, and within limits.

    Args:
        record: a dataclass.
        error: is raised for one that cannot be.
        limits: of numbers, by the names of fields.
    """
    kind_of: Any = type(record)
    kinds = _kinds_of(kind_of)
    for name, kind in kinds.items():
        _check(name, getattr(record, name), kind, limits.get(name), error)


def check_changes(record: Any, changes: Mapping[str, Any], error: type[CaramelError]) -> None:
    """Raise unless what some fields of a record are to be is of their types.

    Args:
        record: a dataclass.
        changes: by the names of fields; what it has no field of is left alone.
        error: is raised for one that cannot be.
    """
    kinds = _kinds_of(record)
    for name, value in changes.items():
        if name in kinds:
            _check(name, value, kinds[name], None, error)


@functools.cache
def _kinds_of(record: Any) -> Mapping[str, Any]:
    return typing.get_type_hints(record)


def _is_variadic(signature: inspect.Signature, name: str) -> bool:
    kind = signature.parameters[name].kind
    return kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def _check(
    name: str, value: Any, kind: Any, limit: Limit | None, error: type[CaramelError]
) -> None:
    if fits(value, kind) and (limit is None or limit.admits(value)):
        return
    wanted = _joined(list(_told(kind, limit)))
    shown = repr(value)
    if len(shown) > _SHOWN:
        shown = f"{shown[:_SHOWN]}..."
    raise error(f"{name} must be {wanted}, not {shown}")


# Types ------------------------------------------------------------------------------------------


def fits(value: Any, kind: Any) -> bool:
    """Whether a value is of the type that an annotation says."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any or isinstance(kind, TypeVar):
        return True
    if origin in (typing.Union, types.UnionType):
        return any(fits(value, each) for each in arguments)
    if origin is Literal:
        return any(type(value) is type(each) and value == each for each in arguments)
    if kind is bool:  # also NumPy's, which this package does without
        return type(value).__name__ in ("bool", "bool_")
    if kind is int:
        return isinstance(value, Integral) and not isinstance(value, bool)
    if kind is float:
        return _is_number(value) and not math.isnan(value)
    if kind is None:
        return value is None
    if origin is not None and issubclass(origin, collections.abc.Mapping):
        return isinstance(value, Mapping) and all(
            fits(key, arguments[0]) and fits(each, arguments[1]) for key, each in value.items()
        )
    if origin is tuple and arguments[-1] is not ...:  # whoever takes pairs looks at them
        return True
    if origin in _SEVERAL:
        is_several = hasattr(value, "__iter__") and not isinstance(value, str | bytes | Mapping)
        return is_several and (
            not hasattr(value, "__len__") or all(fits(each, arguments[0]) for each in value)
        )
    return isinstance(value, origin or kind)


_SEVERAL = (collections.abc.Sequence, collections.abc.Collection, collections.abc.Iterable, tuple)


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _joined(possible: Sequence[str]) -> str:
    """What is expected, if it may be one of several things. That it may be left out is last."""
    *others, last = possible
    if last != "None" or not others:
        others.append(last)
    are_words = len(others) > 2 and all(each.startswith("'") for each in others)
    told = f"one of {', '.join(others)}" if are_words else " or ".join(others)
    return f"{told}, or None" if len(others) < len(possible) else told


def _told(kind: Any, limit: Limit | None) -> Iterator[str]:
    """What is expected, in words: one for each possibility."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        # What may be None may be left out: that is said last.
        for each in sorted(arguments, key=lambda each: each is types.NoneType):
            yield from _told(each, limit)
    elif origin is Literal:
        yield from map(repr, arguments)
    elif origin is not None and issubclass(origin, collections.abc.Mapping):
        yield "a mapping"
    elif origin in _SEVERAL:
        items = " or ".join(_told(arguments[0], None))
        yield "a list of texts" if items == _TOLD[str] else f"a list, each of it {items}"
    elif kind in (int, float):
        several = f" of {limit.unit}" if limit is not None and limit.unit else ""
        yield _TOLD[kind] + several + (f", {limit}" if limit is not None else "")
    else:
        of = origin or kind
        name = getattr(of, "__name__", str(of))
        is_own = getattr(of, "__module__", "").startswith("caramel.")
        yield _TOLD.get(of) or f"a {'caramel.' * is_own}{name}"
