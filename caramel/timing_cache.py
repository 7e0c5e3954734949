"""Measured timings on disk, so that a job that starts again need not be traced again.

One file for each key in ``$CARAMEL_CACHE``, else ``$XDG_CACHE_HOME/caramel``, else
``~/.cache/caramel``. Whatever is wrong with a file or the directory, nothing fails: it is as if
nothing had been kept.
"""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path

from caramel.errors import CaramelError
from caramel.facts import TimingTable
from caramel.files import write_whole
from caramel.records import from_json_value, to_json_value

VARIABLE = "CARAMEL_CACHE"


def cache_directory() -> Path:
    """Where timings are kept; it need not exist."""
    own = os.environ.get(VARIABLE)
    if own:
        return Path(own)
    shared = os.environ.get("XDG_CACHE_HOME")
    return (Path(shared) if shared else Path.home() / ".cache") / "caramel"


def kept_timing(key: str) -> TimingTable | None:
    """What was kept under a key, or None."""
    try:
        return from_json_value(TimingTable, json.loads(_file(key).read_text()))
    except (OSError, ValueError, RuntimeError, CaramelError):
        return None


def keep_timing(key: str, timing: TimingTable) -> None:
    """Keep a timing under a key."""
    with contextlib.suppress(OSError, RuntimeError):  # the latter without a home directory
        file = _file(key)
        file.parent.mkdir(parents=True, exist_ok=True)
        write_whole(file, json.dumps(to_json_value(timing)))


def _file(key: str) -> Path:
    return cache_directory() / f"timing-{key}.json"
