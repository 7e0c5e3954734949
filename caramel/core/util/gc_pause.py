"""Python's cyclic garbage collector, held back while much is made that stays."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def held_back() -> Iterator[None]:
    """No collection begins inside it, if it would by itself; also a decorator."""
    # While hundreds of thousands of objects are made that all stay, the collector would look
    # through them again and again: a tenth of the time it takes to build a large graph, or to
    # import TensorFlow.
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
