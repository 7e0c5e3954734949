"""What a user says of how a session chooses between plans, plans anew, and looks for stalls."""

from __future__ import annotations

from dataclasses import dataclass, field

from caramel.runtime.control.drift import ReplanSettings
from caramel.runtime.control.trials import TrialSettings
from caramel.runtime.stalls.diagnosis import StallSettings


@dataclass(frozen=True, slots=True)
class ControlSettings:
    """How a session controls its plans.

    Attributes:
        trials: how plans are tried; None for not at all, and nothing is planned while it runs then.
        tries_all: whether all plans of the model are tried, and in every session.
        replanning: when a session plans while it runs.
        stalls: when a step counts as stalled; None for never.
    """

    trials: TrialSettings | None = field(default_factory=TrialSettings)
    tries_all: bool = False
    replanning: ReplanSettings = field(default_factory=ReplanSettings)
    stalls: StallSettings | None = field(default_factory=StallSettings)
