"""What happened when a session went on after a loss, as plain data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RecoveryRecord:
    """One time that a session went on after a loss, or with workers that had come back.

    Attributes:
        lost: names and addresses of the workers that were lost; none where one answered again, or
            where workers came back.
        returned: likewise of those that were missing before and take part again.
        at_s: when it was noticed, in seconds since 1970.
        took_s: how long it took until the session was where it had been, in seconds.
        snapshot: after how many steps of the session the snapshot was taken that it went back to.
        repeated: how many steps were done again.
        workers: how many workers there are since then.
        servers: how many parameter servers; 0 where there are none anyway.
        reason: what was seen.
    """

    lost: tuple[str, ...]
    returned: tuple[str, ...]
    at_s: float
    took_s: float
    snapshot: int
    repeated: int
    workers: int
    servers: int
    reason: str
