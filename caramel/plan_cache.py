"""Plans that proved the fastest, on disk, so that a job that starts again need not try them again.

Beside the timings (`caramel.timing_cache`), one file for each key. Whatever is wrong with a file or
the directory, nothing fails: it is as if nothing had been kept.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from caramel.errors import CaramelError
from caramel.files import write_whole
from caramel.plan import Plan
from caramel.timing_cache import cache_directory


def kept_plan(key: str) -> Plan | None:
    """What was kept under a key, or None."""
    try:
        return Plan.from_json(_file(key).read_text())
    except (OSError, ValueError, RuntimeError, CaramelError):
        return None


def keep_plan(key: str, plan: Plan) -> None:
    """Keep a plan under a key."""
    with contextlib.suppress(OSError, RuntimeError):  # the latter without a home directory
        file = _file(key)
        file.parent.mkdir(parents=True, exist_ok=True)
        write_whole(file, plan.to_json() + "\n")


def _file(key: str) -> Path:
    return cache_directory() / f"plan-{key}.json"
