"""Which rows count: the mean was right, and the bytes of aggregations crossed the wire.

Interfaces count headers, and what starts a step: `SHARE` of the tensor's bytes, `STEP_BYTES` for
each aggregation and `MESSAGE_BYTES` for each message besides. MPI sends small tensors whole to
several others; they are smaller than that.
"""

from __future__ import annotations

from collections.abc import Sequence

TOLERANCE = 1e-5
SHARE = 0.1
STEP_BYTES = 30_000
MESSAGE_BYTES = 2_000
SEGMENT_BYTES = 1_514  # of a segment that TCP sends again, with its headers


def needed_bytes(system: str, size_bytes: int, workers: int) -> list[float]:
    """What each host must send for one aggregation.

    A parameter server, on the first host, sends the mean to every worker elsewhere.
    """
    if system == "parameter_server":
        return [float((workers - 1) * size_bytes)] + [float(size_bytes)] * (workers - 1)
    return [2 * (workers - 1) / workers * size_bytes] * workers


def problem(
    *,
    error: float,
    sent_bytes: Sequence[float],
    needed: Sequence[float],
    resent: Sequence[float],
    depth: int = 1,
) -> str | None:
    """Why a row does not count, or None.

    Args:
        error: of the mean, relative.
        sent_bytes: by each host for one aggregation.
        needed: see `needed_bytes`.
        resent: segments that TCP sent again, by each host for one aggregation. They may be counted
            once or twice: a segment that was dropped on its own host never reached the interface.
        depth: how many parts are sent one by one.
    """
    if not error <= TOLERANCE:  # nan is none of the two
        return f"the mean is wrong by {error:.1e}"
    if sum(sent_bytes) < sum(needed):
        return f"{sum(sent_bytes):,.0f} bytes crossed the wire; {sum(needed):,.0f} are needed"
    messages = 4 * (len(needed) - 1) * depth
    for host, (sent, least, again) in enumerate(zip(sent_bytes, needed, resent, strict=True)):
        most = (1 + SHARE) * least + STEP_BYTES + MESSAGE_BYTES * messages
        most += again * SEGMENT_BYTES
        if sent > most:
            return f"host {host} sent {sent:,.0f} bytes, more than {most:,.0f}"
    return None
