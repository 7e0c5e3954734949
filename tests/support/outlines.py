"""The outline of a small job, and a profile of it, without TensorFlow."""

from __future__ import annotations

from caramel.core.profile import Profile
from caramel.core.time_facts import TimingTable
from caramel.core.util.fingerprint import Machine
from caramel.core.workload import Gradient, JobOutline, Piece, Update, Workload

NAMES = [f"layer_{number}" for number in range(6)]
ELEMENTS = 2**20
WIDE_BYTES = 4 * ELEMENTS * len(NAMES)  # takes 0.21 s at 1 Gbit/s

# 10 ms forward and 20 ms backward for each layer.
WORK = Workload(
    (
        *(Piece(f"{name}/forward", 0.01, needs=frozenset([name])) for name in NAMES),
        *(Piece(f"{name}/backward", 0.02, yields=(name,)) for name in reversed(NAMES)),
    ),
    tuple(
        Update(f"{n}/update", 1e-4, frozenset([n]), frozenset([n]), frozenset([n])) for n in NAMES
    ),
)
OUTLINE = JobOutline(WORK, WORK, tuple(Gradient(name, ELEMENTS, "float32") for name in NAMES))
TIMING = TimingTable(
    {piece.name: piece.seconds for piece in (*WORK.chain, *WORK.updates)}, steps=10
)
PROFILE = Profile("2.21.0", Machine("a processor", 2, "CPU"), "abc", TIMING, OUTLINE)
