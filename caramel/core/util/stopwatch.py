"""How long do the parts of a build take?"""

from __future__ import annotations

import time
from collections.abc import Sequence


class Stopwatch:
    """Prints the parts of the build with their times, if asked to."""

    def __init__(self, verbose: bool) -> None:
        self._verbose = verbose
        self._last = time.perf_counter()

    def note(self, part: str) -> None:
        """A part ends now; it began when the one before ended."""
        now = time.perf_counter()
        self.tell(f"{part:<12} {now - self._last:8.3f} s")
        self._last = now

    def add(self, parts: Sequence[tuple[str, float]]) -> None:
        """Parts that were timed elsewhere."""
        for part, seconds in parts:
            self.tell(f"{part:<12} {seconds:8.3f} s")
        self._last = time.perf_counter()

    def tell(self, text: str) -> None:
        """Print one line."""
        if self._verbose:
            print(f"caramel: {text}", flush=True)
