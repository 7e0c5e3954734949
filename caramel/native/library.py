"""TensorFlow's shared library, by ctypes, without TensorFlow's Python.

The functions are those of the stable part of ``tensorflow/c/c_api.h``, which is installed with
TensorFlow.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from ctypes import c_char_p, c_int, c_void_p
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from caramel.core.errors import InstallationError
from caramel.native import check

_LIBRARIES = ("libtensorflow_cc.so.2", "libtensorflow_cc.2.dylib")
_PLUGINS = "tensorflow-plugins"  # the folder beside TensorFlow's own that its import looks into
_PLUGIN = "TF_PLUGGABLE_DEVICE_LIBRARY_PATH"  # the variable that names one elsewhere

Signatures = Mapping[str, tuple[Any, tuple[Any, ...]]]
"""For each function the type of its result, and those of its arguments."""

_STATUS: Signatures = {
    "TF_NewStatus": (c_void_p, ()),
    "TF_DeleteStatus": (None, (c_void_p,)),
    "TF_GetCode": (c_int, (c_void_p,)),
    "TF_Message": (c_char_p, (c_void_p,)),
}


class StatusError(Exception):
    """TensorFlow says that a function has failed.

    Attributes:
        code: the number of the error, as in `tf.errors`.
        message: what TensorFlow says.
    """

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code, self.message = code, message


def functions(signatures: Signatures, *, long: Collection[str] = ()) -> SimpleNamespace:
    """Functions of the library, as attributes.

    Args:
        signatures: of the functions.
        long: the functions during which other threads of Python run; the others are over at once.

    Raises:
        InstallationError: TensorFlow is not installed, or is not as Caramel needs it.
    """
    others_run, alone = _loaded()
    found = {}
    for name, (result, arguments) in signatures.items():
        found[name] = check.function(others_run if name in long else alone, name)
        found[name].restype, found[name].argtypes = result, arguments
    return SimpleNamespace(**found)


@contextmanager
def status() -> Iterator[int]:
    """A TF_Status; what it says in the end is raised.

    Raises:
        StatusError: it is not OK.
    """
    library = _status_functions()
    pointer = library.TF_NewStatus()
    try:
        yield pointer
        if code := library.TF_GetCode(pointer):
            raise StatusError(code, library.TF_Message(pointer).decode(errors="replace"))
    finally:
        library.TF_DeleteStatus(pointer)


def has_plugins() -> bool:
    """Whether plugins are installed, of which the library learns by ``import tensorflow`` only."""
    # All ops and kernels are in the library but for those that call Python, and those of plugins.
    folders = (Path(folder, _PLUGINS) for folder in sys.path)
    return bool(os.environ.get(_PLUGIN)) or any(folder.is_dir() for folder in folders)


@cache
def _status_functions() -> SimpleNamespace:
    return functions(_STATUS)


@cache
def _loaded() -> tuple[ctypes.CDLL, ctypes.PyDLL]:
    """The library: other threads of Python run during calls of the first one, not of the second."""
    # `CDLL` releases Python's lock during a call, which takes longer than short functions do.
    try:
        others_run, alone = ctypes.CDLL(path()), ctypes.PyDLL(path())
    except OSError as error:
        raise InstallationError(f"TensorFlow's library cannot be loaded: {error}") from None
    version = check.function(alone, "TF_Version")
    version.restype, version.argtypes = c_char_p, ()
    check.check_version(version().decode())
    return others_run, alone


@cache
def path() -> str:
    """Where the library is.

    Raises:
        InstallationError: TensorFlow is not installed, or has no such library.
    """
    package = find_spec("tensorflow")  # of a package that is not in another one: imports nothing
    if package is None or package.origin is None:
        raise InstallationError("TensorFlow is not installed")
    folder = Path(package.origin).parent
    for name in _LIBRARIES:
        if (folder / name).exists():
            return str(folder / name)
    raise InstallationError(
        f"none of {', '.join(_LIBRARIES)} is in '{folder}'; TensorFlow's wheels for Linux and "
        "macOS have one"
    )
