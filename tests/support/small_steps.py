"""Small training steps, of which timelines are computed by hand.

A link carries 1024 bytes/s in each direction and nothing else takes time unless a test says so. Two
workers that aggregate 2048 bytes by `shuffle` send each other 1024, add, and send 1024 back: 2 s.
"""

from __future__ import annotations

from caramel.core.decision import Group
from caramel.core.workload import Piece, Size, Update, Workload
from caramel.simulation.conditions import Conditions
from caramel.simulation.simulate import simulate_groups
from tests.support.simulations import hosts

RATE = 1024.0
KIB_2 = Size(512, 4)
TWO = hosts(2, RATE)
ADDING = hosts(2, RATE, reduce_s_per_byte=0.5 / 1024)


def group(name, *members, pattern="shuffle", **options):
    return Group(name, members, pattern, **options)


def update(parameter, seconds=0.5):
    own = frozenset([parameter])
    return Update(f"u_{parameter}", seconds, own, own, own)


ONE_LAYER = Workload(
    (Piece("f", 1.0, needs=frozenset("p")), Piece("b", 2.0, yields=("p",))), (update("p"),)
)
TWO_LAYERS = Workload(
    (
        Piece("f_p", 0.5, needs=frozenset("p")),
        Piece("f_q", 0.5, needs=frozenset("q")),
        Piece("b_q", 1.0, yields=("q",)),
        Piece("b_p", 1.0, yields=("p",)),
    ),
    (update("q"), update("p")),
)
BOTH = (group("g_q", "q"), group("g_p", "p"))


def predicted(workload, *groups, hardware=TWO, gates=(), sizes=None, pending=True):
    sizes = sizes or dict.fromkeys("pq", KIB_2)
    return simulate_groups(groups, gates, Conditions(sizes, workload, hardware), pending=pending)


def spans(prediction, worker=0, resources=("compute", "reduce", "send")):
    """What one worker does, and what it sends: (resource, name, begin, end)."""
    return [
        (span.resource, span.name, round(span.begin_s, 9), round(span.end_s, 9))
        for span in prediction.timeline.spans
        if span.worker == worker and span.resource in resources
    ]


def computed(prediction, worker=0):
    """When a worker computes what."""
    return {name: times for _, name, *times in spans(prediction, worker, ("compute",))}
