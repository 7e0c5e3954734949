"""Under which conditions are steps simulated, and what is the same for many plans?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from caramel.core.decision import Group
from caramel.core.workload import Size, Workload
from caramel.simulation.hardware import Hardware
from caramel.simulation.loads import Load, load_of


@dataclass(frozen=True, slots=True)
class Send:
    """What a worker sends in one round of a group.

    Attributes:
        bytes: that it sends, and as many that it receives.
        worth: how many bytes on the wire each of them takes the time of.
        latency_s: from the last byte until it has arrived.
        added: bytes that are added up then.
    """

    bytes: float
    worth: float
    latency_s: float
    added: float


@dataclass(frozen=True, slots=True)
class Conditions:
    """Sizes, computation and hardware.

    Attributes:
        sizes: of what is aggregated for each parameter, or part of its gradient.
        workload: what each worker computes.
        hardware: workers and links.
        sends: what is sent for groups of a size and pattern, in each of the parts in which it goes,
            as far as it is known.
    """

    sizes: Mapping[str, Size]
    workload: Workload
    hardware: Hardware
    sends: dict[tuple[object, ...], tuple[tuple[Send, ...], ...]] = field(default_factory=dict)
    # A search simulates thousands of plans that are made of the same groups.
    _loads: dict[Group, Load] = field(default_factory=dict)

    def load(self, group: Group) -> Load:
        """What a group brings to a step."""
        known = self._loads.get(group)
        if known is None:
            known = self._loads[group] = load_of(group, self.sizes, self.workload)
        return known
