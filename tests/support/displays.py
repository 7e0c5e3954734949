"""A display of what the library says while it works, for tests."""

from __future__ import annotations


class Recorded:
    """A display that remembers what it was told."""

    def __init__(self):
        self.told = []

    @property
    def begun(self):
        return [each[1] for each in self.told if each[0] == "begin"]

    def begin(self, what):
        self.told.append(("begin", what))
        return what

    def move(self, work, done, total):
        self.told.append((work, done, total))

    def end(self, work):
        self.told.append(("end", work))

    def tell(self, text):
        self.told.append(text)
