"""In which orders could parameters come that come in any order?

TensorFlow sends in another one in nearly each step (TicTac 2018, section 2.2). So what is predicted
is the mean over some random ones.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

RANDOM_ORDERS = 5


def random_orders(names: Sequence[str]) -> list[list[str]]:
    """The same ones each time, so that predictions repeat."""
    draw = random.Random(0)
    return [draw.sample(names, len(names)) for _ in range(RANDOM_ORDERS)]
