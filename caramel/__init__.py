"""Caramel: a single-device TensorFlow training graph goes in, a distributed one comes out.

Importing this package imports no TensorFlow and has no effects: the public names below are
loaded when they are first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from caramel.errors import CaramelError
from caramel.version import __version__

if TYPE_CHECKING:
    from caramel.builder import ARModel
    from caramel.cluster import Cluster
    from caramel.context import Context
    from caramel.memory import keep_memory
    from caramel.plan import Plan
    from caramel.replanning import ReplanSettings
    from caramel.report.saved import save_timelines
    from caramel.session import Session
    from caramel.stalls import StallSettings
    from caramel.trials import TrialSettings

_HOME = {
    "ARModel": "caramel.builder",
    "Cluster": "caramel.cluster",
    "Context": "caramel.context",
    "Plan": "caramel.plan",
    "ReplanSettings": "caramel.replanning",
    "Session": "caramel.session",
    "StallSettings": "caramel.stalls",
    "TrialSettings": "caramel.trials",
    "keep_memory": "caramel.memory",
    "save_timelines": "caramel.report.saved",
}

__all__ = [
    "ARModel",
    "CaramelError",
    "Cluster",
    "Context",
    "Plan",
    "ReplanSettings",
    "Session",
    "StallSettings",
    "TrialSettings",
    "__version__",
    "keep_memory",
    "save_timelines",
]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(_HOME[name]), name)
    raise AttributeError(f"module 'caramel' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))
