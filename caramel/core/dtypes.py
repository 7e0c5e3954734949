"""Dtypes as TensorFlow numbers and names them: how large an element is, and what it is good for."""

from __future__ import annotations

# Numbers of the DataType enum that TensorFlow has frozen: name and bytes per element.
# Handles, variants and strings have no size that can be known beforehand.
_DTYPES: dict[int, tuple[str, int | None]] = {
    1: ("float32", 4),
    2: ("float64", 8),
    3: ("int32", 4),
    4: ("uint8", 1),
    5: ("int16", 2),
    6: ("int8", 1),
    7: ("string", None),
    8: ("complex64", 8),
    9: ("int64", 8),
    10: ("bool", 1),
    11: ("qint8", 1),
    12: ("quint8", 1),
    13: ("qint32", 4),
    14: ("bfloat16", 2),
    15: ("qint16", 2),
    16: ("quint16", 2),
    17: ("uint16", 2),
    18: ("complex128", 16),
    19: ("float16", 2),
    20: ("resource", None),
    21: ("variant", None),
    22: ("uint32", 4),
    23: ("uint64", 8),
}
_NUMBERS = {name: number for number, (name, _) in _DTYPES.items()}
_BYTES = dict(_DTYPES.values())
_FIRST_REFERENCE_DTYPE = 100

STAYS = frozenset({"resource", "variant"})
"""Dtypes of what has no memory of its own, and cannot leave its device."""


def dtype_name(number: int) -> str:
    """The name of a DataType number; reference types end in ``_ref``."""
    if number > _FIRST_REFERENCE_DTYPE:
        return f"{dtype_name(number - _FIRST_REFERENCE_DTYPE)}_ref"
    return _DTYPES.get(number, ("unknown", None))[0]


def dtype_number(name: str) -> int:
    """The DataType number of a name, as it stands in attributes of a GraphDef."""
    return _NUMBERS[name]


def is_differentiable(dtype: str) -> bool:
    """Whether a dtype has no integers, so that gradients can be of it."""
    return dtype.startswith(("float", "bfloat", "complex"))


def is_integer(dtype: str) -> bool:
    """Whether a dtype has integers or truth values."""
    return dtype.startswith(("int", "uint", "bool"))


def dtype_bytes(name: str) -> int | None:
    """Bytes of one element, or None where elements have no fixed size."""
    return _BYTES.get(name)
