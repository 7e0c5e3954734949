"""What does each group of a plan bring to a step: how much, from when on, and until when?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from caramel.core.decision import Group
from caramel.core.workload import Size, Workload
from caramel.simulation.hardware import Hardware


@dataclass(frozen=True, slots=True)
class Load:
    """A group, as far as its time depends on it.

    Attributes:
        group: the group.
        parameters: those to which its members belong.
        elements: of all members.
        element_bytes: of one element.
        complete_at: the number of the piece of the chain with which its last raw gradient is there;
            None if the chain brings none of them.
        urgency: the number of the piece that waits for it; what is not deferred is needed at the
            end.
    """

    group: Group
    parameters: tuple[str, ...]
    elements: int
    element_bytes: int
    complete_at: int | None
    urgency: int

    @property
    def bytes(self) -> int:
        """All of it."""
        return self.elements * self.element_bytes

    def copy_s(self, hardware: Hardware) -> float:
        """What it takes to lay the members side by side."""
        return hardware.copy_s_per_byte * self.bytes if len(self.group.members) > 1 else 0.0


def load_of(group: Group, sizes: Mapping[str, Size], workload: Workload) -> Load:
    """The load of a group.

    Args:
        sizes: of what is aggregated for each parameter, or part of its gradient.
    """
    yielded_at, needed_after, last = workload.yielded_at, workload.needed_after, len(workload.chain)
    own = [sizes[name] for name in group.members]
    parameters = tuple(s.parameter or n for s, n in zip(own, group.members, strict=True))
    ends = [yielded_at[name] for name in parameters if name in yielded_at]
    needed = [needed_after.get(name, last) for name in parameters] if group.deferred else ()
    return Load(
        group,
        parameters,
        sum([size.elements for size in own]),
        own[0].element_bytes,
        max(ends) if ends else None,
        min(needed, default=last),
    )
