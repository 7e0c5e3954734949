"""Measured timings, and plans that proved the fastest, on disk for jobs that start again.

One file for each key in a directory that is this user's alone: ``$CARAMEL_CACHE``, else
``$XDG_CACHE_HOME/caramel``, else ``~/.cache/caramel``.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from caramel.core.errors import CaramelError
from caramel.core.plan import Plan
from caramel.core.time_facts import TimingTable
from caramel.core.util.atomic_files import is_own, make_private, write_whole
from caramel.core.util.json_records import from_json_value, to_json_value

VARIABLE = "CARAMEL_CACHE"

T = TypeVar("T")


def cache_directory() -> Path:
    """Where things are kept; it need not exist."""
    own = os.environ.get(VARIABLE)
    if own:
        return Path(own)
    shared = os.environ.get("XDG_CACHE_HOME")
    return (Path(shared) if shared else Path.home() / ".cache") / "caramel"


def kept_timing(key: str) -> TimingTable | None:
    """The timing that was kept under a key, or None."""
    return _kept(f"timing-{key}", lambda text: from_json_value(TimingTable, json.loads(text)))


def keep_timing(key: str, timing: TimingTable) -> None:
    """Keep a timing under a key."""
    _keep(f"timing-{key}", json.dumps(to_json_value(timing)))


def kept_plan(key: str) -> Plan | None:
    """The plan that was kept under a key, or None."""
    return _kept(f"plan-{key}", Plan.from_json)


def keep_plan(key: str, plan: Plan) -> None:
    """Keep a plan under a key."""
    _keep(f"plan-{key}", plan.to_json())


def drop_plan(key: str) -> None:
    """Forget the plan that was kept under a key, if there is one."""
    with contextlib.suppress(OSError, RuntimeError):
        (cache_directory() / f"plan-{key}.json").unlink(missing_ok=True)


def _kept(name: str, read: Callable[[str], T]) -> T | None:
    try:
        directory = cache_directory()
        if not is_own(directory):
            return None
        return read((directory / f"{name}.json").read_text())
    # Whatever is wrong with a file or the directory, it is as if nothing had been kept.
    except (OSError, TypeError, ValueError, RuntimeError, CaramelError):
        return None


def _keep(name: str, text: str) -> None:
    with contextlib.suppress(OSError, RuntimeError):  # the latter without a home directory
        file = cache_directory() / f"{name}.json"
        make_private(file.parent)
        write_whole(file, f"{text}\n")
