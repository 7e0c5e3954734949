"""Caramel: a single-device TensorFlow training graph goes in, a distributed one comes out.

Importing this package imports no TensorFlow and has no effects: the public names below are
loaded when they are first used.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

from caramel.core.errors import CaramelError
from caramel.core.version import __version__

if TYPE_CHECKING:
    from caramel.capture.context import Context
    from caramel.capture.functions import loss
    from caramel.capture.structures import per_worker
    from caramel.cluster.cluster import Cluster
    from caramel.core.plan import Plan
    from caramel.models import keras
    from caramel.models.allreduce import ARModel
    from caramel.models.distribute import distribute
    from caramel.models.parameter_server import PSModel
    from caramel.models.placed import PlacedModel
    from caramel.native.malloc import keep_memory
    from caramel.report.progress import show_progress
    from caramel.report.saved import save_timelines
    from caramel.runtime.control.drift import ReplanSettings
    from caramel.runtime.control.trials import TrialSettings
    from caramel.runtime.recovery.settings import Recovery
    from caramel.runtime.session import Session
    from caramel.runtime.stalls.diagnosis import StallSettings

_HOME = {
    "ARModel": "caramel.models.allreduce",
    "Cluster": "caramel.cluster.cluster",
    "Context": "caramel.capture.context",
    "PSModel": "caramel.models.parameter_server",
    "PlacedModel": "caramel.models.placed",
    "Plan": "caramel.core.plan",
    "Recovery": "caramel.runtime.recovery.settings",
    "ReplanSettings": "caramel.runtime.control.drift",
    "Session": "caramel.runtime.session",
    "StallSettings": "caramel.runtime.stalls.diagnosis",
    "TrialSettings": "caramel.runtime.control.trials",
    "distribute": "caramel.models.distribute",
    "keep_memory": "caramel.native.malloc",
    "keras": "caramel.models",
    "loss": "caramel.capture.functions",
    "per_worker": "caramel.capture.structures",
    "save_timelines": "caramel.report.saved",
    "show_progress": "caramel.report.progress",
}

__all__ = [
    "ARModel",
    "CaramelError",
    "Cluster",
    "Context",
    "PSModel",
    "PlacedModel",
    "Plan",
    "Recovery",
    "ReplanSettings",
    "Session",
    "StallSettings",
    "TrialSettings",
    "__version__",
    "distribute",
    "keep_memory",
    "keras",
    "loss",
    "per_worker",
    "save_timelines",
    "show_progress",
]


if not TYPE_CHECKING:  # else a name that does not exist would be no error for type checkers

    def _loaded(name: str) -> Any:
        if name in sys.modules:
            return importlib.import_module(name)
        from caramel.core.util.progress import working

        with working("loading Caramel"):  # hundreds of modules
            return importlib.import_module(name)

    def __getattr__(name: str) -> Any:
        if name in _HOME:
            home = _loaded(_HOME[name])
            # `keras` is a module of its own, which imports Keras.
            return _loaded("caramel.models.keras") if name == "keras" else getattr(home, name)
        raise AttributeError(f"module 'caramel' has no attribute '{name}'")

    def __dir__() -> list[str]:
        return list(__all__)
