"""A plan as far as it is searched, and what is known for predicting its steps."""

from __future__ import annotations

from dataclasses import dataclass

from caramel.core.calibration import DEFAULT, Calibration
from caramel.core.decision import Gate, Group, Part
from caramel.core.plan import Plan
from caramel.core.time_facts import NetworkModel
from caramel.core.workload import Workload
from caramel.simulation.conditions import Conditions
from caramel.simulation.hardware import Hardware
from caramel.simulation.simulate import Prediction, simulate_groups, sizes_of


@dataclass(frozen=True, slots=True)
class Candidate:
    """A plan as far as it is searched.

    Attributes:
        name: where it comes from, for people.
        groups: in the order of transfer, the deferred ones first.
        gates: which group waits for which.
        ordered: whether control edges let gradients get ready in one order.
        in_flight_bytes: from which the gates were made; None if they were given.
        parts: of gradients that are split.
    """

    name: str
    groups: tuple[Group, ...]
    gates: tuple[Gate, ...] = ()
    ordered: bool = True
    in_flight_bytes: int | None = None
    parts: tuple[Part, ...] = ()

    @classmethod
    def of(cls, plan: Plan, name: str) -> Candidate:
        """A plan that was made."""
        own = plan.decision
        return cls(name, own.groups, own.gates, bool(own.edges), parts=own.parts)

    @property
    def deferred(self) -> frozenset[str]:
        """The parameters whose gradients are deferred, or parts of them."""
        parameters = {part.name: part.parameter for part in self.parts}
        deferred = [name for group in self.groups if group.deferred for name in group.members]
        return frozenset(parameters.get(name, name) for name in deferred)


@dataclass(frozen=True)
class Outlook:
    """What is known for predicting steps of one job.

    Attributes:
        plain: the plain plan.
        network: the model of the network.
        hardware: workers and links.
        free: the workload without control edges.
        ordered: the workload with them.
        calibration: the sizes that suit the machines.
    """

    plain: Plan
    network: NetworkModel
    hardware: Hardware
    free: Workload
    ordered: Workload
    calibration: Calibration = DEFAULT

    def workload(self, ordered: bool) -> Workload:
        """What a worker computes, with or without control edges."""
        return self.ordered if ordered else self.free

    @property
    def least_s(self) -> float:
        """What no step falls short of: computation, or the time to send what must be sent."""
        plain, product = self.plain, self.free.product
        sent_s = sent_bytes(plain, self.free) / self.hardware.bytes_per_s
        again_s = sum(product(group.members[0]).seconds for group in plain.factored)
        computation_s = self.free.computation_s + (plain.workers - 1) * again_s
        return max(sent_s, computation_s * min(host.slowdown for host in self.hardware.hosts))

    def predict(self, candidate: Candidate) -> Prediction:
        """A steady step."""
        return simulate_groups(
            candidate.groups,
            candidate.gates,
            Conditions(
                sizes_of(self.plain, candidate.parts),
                self.workload(candidate.ordered),
                self.hardware,
            ),
        )


def sent_bytes(plan: Plan, workload: Workload) -> float:
    """What a worker sends in a step, on average: 2 S (N - 1) / N of what is summed, and the factors
    of others once to each.

    Rows of sparse gradients, of which nobody knows how many there will be, count nothing.
    """
    others = plan.workers - 1
    summed = sum(plan.bytes(group) for group in plan.decision.groups if group.is_summed)
    factor_bytes = sum(workload.product(group.members[0]).bytes for group in plan.factored)
    return 2 * others / plan.workers * summed + others * factor_bytes
