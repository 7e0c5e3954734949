"""What an explanation calls what it is about: groups between workers, or transfers from servers.

And what its figures mean.
"""

from __future__ import annotations

from dataclasses import dataclass

from caramel.core.explanation import Explanation, GroupExplanation
from caramel.core.names import server_at
from caramel.core.util.sizes import counted
from caramel.report.units import percent_text


@dataclass(frozen=True, slots=True)
class Words:
    """Words of a page.

    Attributes:
        group: one of what the table lists.
        places: by place of a group, what that is called.
        kinds: what the colours of the timeline mean.
        host: who trains, other than servers.
    """

    group: str
    places: dict[str, str]
    kinds: dict[str, str]
    host: str = "worker"


BETWEEN_WORKERS = Words(
    "group",
    {"in-step": "in-step", "deferred": "deferred"},
    {
        "compute": "computation",
        "reduce": "reduction",
        "in-step": "in-step group",
        "deferred": "deferred group (of the step before)",
        "other": "other transfer",
    },
)
FROM_SERVERS = Words(
    "transfer",
    {"in-step": "ahead", "deferred": "in order"},
    {
        "compute": "computation",
        "reduce": "reduction",
        "in-step": "parameter, sent ahead for the next step",
        "deferred": "parameter, in order",
        "other": "gradient, and other transfers",
    },
)
BETWEEN_DEVICES = Words(
    "transfer",
    {},
    {
        "chain": "computation that bounds the step",
        "compute": "other computation",
        "other": "tensor on its way",
        "held": "memory: variables, and tensors above them",
        "held-measured": "memory, as measured",
    },
    "device",
)


def words_of(explanation: Explanation) -> Words:
    """The words for an explanation."""
    if explanation.placed is not None:
        return BETWEEN_DEVICES
    return FROM_SERVERS if explanation.servers else BETWEEN_WORKERS


def place_text(explanation: Explanation, number: int, group: GroupExplanation) -> str:
    """The place of a group: with servers its number in the order, too."""
    place = words_of(explanation).places[group.place]
    return f"{number + 1}, {place}" if explanation.servers else place


def who_text(explanation: Explanation, place: int) -> str:
    """A worker, a device or a server, by its place."""
    return host_text(place, words_of(explanation).host).capitalize()


def host_text(place: int, host: str = "worker") -> str:
    """The same in the middle of a sentence, without an explanation: "worker 0", "server 1"."""
    server = server_at(place)
    return f"{host} {place}" if server is None else f"server {server}"


def hosts_text(explanation: Explanation) -> str:
    """Who trains: "8 workers", "2 devices", or "8 workers and 2 servers"."""
    workers = counted(explanation.workers, words_of(explanation).host)
    servers = len(explanation.servers)
    return f"{workers} and {counted(servers, 'server')}" if servers else workers


# What the figures of a step mean, each in a sentence without a full stop.


def rho_text(explanation: Explanation) -> str:
    """What rho says."""
    if explanation.rho < 1:
        return "the wire limit \u00f7 computation; below 1 a plan can hide all transfers"
    return "the wire limit \u00f7 computation; above 1 workers wait for the network"


def alpha_text(explanation: Explanation) -> str:
    """What alpha says."""
    share = percent_text(explanation.alpha)
    if explanation.rho < 1:
        return f"{share} of the transfers go on beside computation"
    return f"{share} of the computation goes on beside transfers"


def utilisation_text(explanation: Explanation) -> str:
    """What U says."""
    who = "the busiest device" if explanation.placed is not None else "a worker"
    return f"of the step {who} computes; the rest is waiting, and what transfers cost"


def efficiency_text(efficiency: float) -> str:
    """What the efficiency E of an order says."""
    if efficiency < 0:
        return "ordering efficiency; below 0 more than the order holds up a step"
    return "ordering efficiency; 1 is a perfect order"


def batch_text(explanation: Explanation) -> str | None:
    """The examples of a step, as far as they are known: "48 examples of each worker in a step"."""
    own = explanation.examples
    if own is None:
        return None
    if explanation.placed is not None or explanation.workers == 1:
        return f"{counted(own, 'example')} in a step"
    # The first workers may have one more.
    return f"{counted(own, 'example')} of each worker in a step"


def about_text(explanation: Explanation) -> str:
    """The batch and the day, as far as they are known: "; 48 examples in a step; 2026-11-28"."""
    known = (batch_text(explanation), explanation.made)
    return "".join(f"; {each}" for each in known if each)
