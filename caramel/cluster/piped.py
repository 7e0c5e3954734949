"""A program that one speaks with through pipes, in lines, and that hears whether one is there."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress

BEAT_S = 5.0
"""How often an empty line is sent, in seconds."""

_KEPT = 20  # lines of errors
_GRACE_S = 5.0  # between the end of its input and its own


class PipedProgram:
    """A program that is started, with pipes to it.

    It is in a session of its own: Ctrl-C in a terminal does not reach it.

    Args:
        command: the program and its arguments.

    Attributes:
        errors: the last lines of its errors.
        code: how it has ended, as `subprocess` has it; None while it runs.

    Raises:
        OSError, ValueError: it cannot be started.
    """

    def __init__(self, command: Sequence[str]) -> None:
        self.errors: deque[str] = deque(maxlen=_KEPT)
        self.code: int | None = None
        self._sending = threading.Lock()
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,
            preexec_fn=_see_signals,
        )

    def send(self, data: bytes) -> None:
        """Send something to it; where it has ended, nothing happens."""
        assert self._process.stdin is not None
        with self._sending, suppress(OSError, ValueError):  # broken, or closed
            self._process.stdin.write(data)

    def lines(self) -> Iterator[tuple[str, bool]]:
        """The lines that come, and whether each is one of errors, until the program has ended.

        Meanwhile it gets an empty line every few seconds.
        """
        output, errors = self._process.stdout, self._process.stderr
        assert output is not None
        assert errors is not None
        begun = {output.fileno(): b"", errors.fileno(): b""}
        of_errors = errors.fileno()
        next_beat_s = 0.0
        with selectors.DefaultSelector() as selector:
            for number in begun:
                selector.register(number, selectors.EVENT_READ)
            while selector.get_map():
                ready = selector.select(BEAT_S)
                if not ready and self._process.poll() is not None:
                    break  # others (a connection that several runs of ssh share) keep the pipes
                for key, _ in ready:
                    got = os.read(key.fd, 1 << 16)
                    if not got:
                        selector.unregister(key.fd)
                    *whole, begun[key.fd] = (begun[key.fd] + (got or b"\n")).split(b"\n")
                    for line in filter(None, whole):
                        text = line.decode(errors="replace").rstrip("\r")
                        if key.fd == of_errors:
                            self.errors.append(text)
                        yield text, key.fd == of_errors
                if time.monotonic() >= next_beat_s:
                    self.send(b"\n")
                    next_beat_s = time.monotonic() + BEAT_S
        for pipe in (output, errors):
            pipe.close()
        self.code = self._process.wait()

    def close_input(self) -> None:
        """Let it see the end of its input."""
        assert self._process.stdin is not None
        with self._sending, suppress(OSError):
            self._process.stdin.close()

    def terminate(self) -> None:
        """Ask it to end."""
        self._process.terminate()

    def end(self) -> None:
        """Wait for its end, and hasten it if need be."""
        self.close_input()
        for hasten in (self._process.terminate, self._process.kill):
            try:
                self._process.wait(_GRACE_S)
                return
            except subprocess.TimeoutExpired:
                hasten()
        self._process.wait()


def _see_signals() -> None:
    """In the child: the thread that starts it may see none."""
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
