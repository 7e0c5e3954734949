"""The command ``caramel run``: starts a program again when it has crashed.

It waits for signals, and for the end of the program, in one place (`signal.sigtimedwait`), so that
nothing can happen between two looks. What it is sent it passes on; what a terminal sends (Ctrl-C)
has reached the program already, which is in the same group of processes.
"""

from __future__ import annotations

import ctypes
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence

from caramel.cluster.processes import describe_exit
from caramel.cluster.restarts import Restarts
from caramel.core.errors import ClusterError

_LOOK_EVERY_S = 5.0  # should another thread of this process have got the signal
_USAGE = 2  # the exit code of Caramel's and many other commands for a mistake of the user
_CANNOT_RUN = (126, 127)  # that of shells

_PASSED_ON = frozenset(
    {
        signal.SIGTERM,
        signal.SIGINT,
        signal.SIGHUP,
        signal.SIGQUIT,
        signal.SIGUSR1,
        signal.SIGUSR2,
    }
)
_ENDING = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT})
_BY_KERNEL = 128  # the `si_code` of a signal that a terminal has sent, to the whole group
_SET_DEATH_SIGNAL = 1  # of prctl, from linux/prctl.h


def run(
    command: Sequence[str],
    restarts: int,
    environment: Mapping[str, str] | None = None,
    has_begun: Callable[[], bool] = lambda: True,
) -> int:
    """Run a program, and start it again when it crashes.

    Args:
        command: the program and its arguments.
        restarts: how often in a row.
        environment: variables that it gets besides those of this process.
        has_begun: whether it has done something by now that another start may go on with. One that
            exits before is not started again: it would end the same way.

    Returns:
        Its exit code; 128 and the number of the signal that has ended it.

    Raises:
        ClusterError: it cannot be started.
    """
    # What this process ignores (under nohup, say), the program does, too.
    passed_on = {s for s in _PASSED_ON if signal.getsignal(s) is not signal.SIG_IGN}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {*passed_on, signal.SIGCHLD})
    try:
        supervisor = _Supervisor(
            command, Restarts(restarts), passed_on, before, environment or {}, has_begun
        )
        return supervisor.run()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class _Supervisor:
    """Runs a program until it is not started again.

    Args:
        command: the program and its arguments.
        restarts: how often it may be started again.
        passed_on: the signals that it gets; they are blocked here.
        mask: the signals that are blocked in the program.
        environment: variables that it gets besides those of this process.
        has_begun: whether it has done something that another start may go on with.
    """

    def __init__(
        self,
        command: Sequence[str],
        restarts: Restarts,
        passed_on: set[signal.Signals],
        mask: set[int],
        environment: Mapping[str, str],
        has_begun: Callable[[], bool],
    ) -> None:
        self._command, self._restarts, self._mask = command, restarts, mask
        self._passed_on, self._environment = passed_on, environment
        self._has_begun = has_begun
        self._told: int | None = None  # the last signal by which this process was told to end

    def run(self) -> int:
        """Run it; returns the exit code."""
        while True:
            begin_s = time.monotonic()
            code = self._end_of(self._start())
            if self._told is not None or not _is_crash(code):
                return _as_of_shell(code)
            self._restarts.ended(time.monotonic() - begin_s)
            if not self._wait(code):
                return _as_of_shell(code)

    def _start(self) -> subprocess.Popen[bytes]:
        prctl = ctypes.CDLL(None).prctl

        def prepare() -> None:  # in the child: there are no other threads
            signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)
            # It does not outlive this process: whoever starts that again would start a second one.
            prctl(_SET_DEATH_SIGNAL, signal.SIGTERM)

        try:
            return subprocess.Popen(
                self._command, preexec_fn=prepare, env={**os.environ, **self._environment}
            )
        except (OSError, ValueError) as error:  # the latter for what no argument can be
            reason = error.strerror if isinstance(error, OSError) else error
            raise ClusterError(
                f"cannot start '{self._command[0]}': {reason}; expected a program and its "
                "arguments, as in 'caramel run -- python train.py'"
            ) from None

    def _end_of(self, process: subprocess.Popen[bytes]) -> int:
        """Pass signals on until a program ends; returns how it did, as `subprocess` has it."""
        while process.poll() is None:
            got = signal.sigtimedwait({*self._passed_on, signal.SIGCHLD}, _LOOK_EVERY_S)
            if got is None or got.si_signo == signal.SIGCHLD:
                continue
            self._note(got.si_signo)
            if got.si_code != _BY_KERNEL:
                process.send_signal(got.si_signo)
        return int(process.returncode)

    def _wait(self, code: int) -> bool:
        """Wait before the program is started again; whether it is."""
        name, how = shlex.quote(os.path.basename(self._command[0])), describe_exit(code)
        restarts = self._restarts
        if code > 0 and not self._has_begun():  # a signal is no mistake in the program
            say(f"{name} ended ({how}) before it opened a session; it is not started again")
            return False
        if not restarts.are_left:
            again = f", after {restarts.done} restarts in a row" if restarts.done else ""
            say(f"{name} ended ({how}){again}; it is not started again")
            return False
        wait_s = restarts.wait_s
        restarts.done += 1
        say(
            f"{name} ended ({how}); it is started again in {wait_s:g} s "
            f"(restart {restarts.done} of {restarts.most})"
        )
        deadline_s = time.monotonic() + wait_s
        while self._told is None and (left_s := deadline_s - time.monotonic()) > 0:
            got = signal.sigtimedwait(self._passed_on, left_s)
            if got is not None:
                self._note(got.si_signo)
        return self._told is None

    def _note(self, number: int) -> None:
        if number in _ENDING:
            self._told = number


def _is_crash(code: int) -> bool:
    """Whether a program that has ended so is worth another start.

    Not if it was told to end, or was used in a wrong way: then it would end the same way again.
    """
    told = {_as_of_shell(-number) for number in (signal.SIGTERM, signal.SIGINT)}
    return code not in (0, _USAGE, *_CANNOT_RUN) and _as_of_shell(code) not in told


def _as_of_shell(code: int) -> int:
    """An exit code in which a signal is a number above 128."""
    return code if code >= 0 else 128 - code


def say(text: str) -> None:
    """Write a line for the user, of this command itself."""
    print(f"caramel: {text}.", file=sys.stderr, flush=True)
