"""By how much is one worker ahead of another that sends to the same server?

Connections do not get equal shares of a link at each moment. Where several workers send the same
number of bytes to a server, the last one is behind at first, and has the link for itself in the
end. The link is busy all the time, so the last byte arrives when it would with equal shares. But
what a server makes of the bytes of all workers it makes later, and then faster.
"""

from __future__ import annotations

LEAD = 0.5
"""By what share of all that it sends the first worker is ahead of the last one in the end.

When it was chosen, steps of two workers with one server at 1 Gbit/s were predicted 5 % shorter with
it than they were measured (ResNet-50 v2 and Inception v3, variables ahead), and 16 to 19 % without
it. How far predictions are off now, `benchmarks.ps.predicted` tells. It differs from step to step:
a few steps at 200 Mbit/s, on a busy machine, told 0 to 0.5.
"""


class LastSender:
    """When what the last of some workers sends has arrived.

    Args:
        amount: all that it sends.
        workers: how many send as much on the same link.
        lead: by what share of it the first worker is ahead in the end.
    """

    def __init__(self, amount: float, workers: int, lead: float = LEAD) -> None:
        lead = lead if workers > 1 else 0.0
        # The others send all of theirs while it sends this, and the rest it sends alone.
        self._behind = (1.0 - lead) * amount
        self._slower, self._alone = (1.0 - lead / workers) / (1.0 - lead), 1.0 / workers
        self._sent = 0.0

    def times(self, amount: float) -> float:
        """How many times as long as with an equal share of the link the next amount takes."""
        if amount <= 0.0:
            return 1.0
        behind = min(amount, max(0.0, self._behind - self._sent))
        self._sent += amount
        return (self._slower * behind + self._alone * (amount - behind)) / amount
