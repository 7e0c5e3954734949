"""The public methods of an object take turns: one is done before that of another thread begins.

Threads have their turns in the order in which they came. Nobody waits for himself: a method that is
called within another one of the same thread, by a signal handler or a callback, is refused, since
the other one is in the middle of something.
"""

from __future__ import annotations

import functools
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from caramel.core.errors import SessionError

_LOOK_EVERY_S = 1.0  # whether a turn was left by an interruption

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


@dataclass(eq=False, frozen=True)
class _Ticket:
    """The turn of one call, for as long as the call refers to it.

    Attributes:
        what: what is done in it, for messages.
        thread: whose it is.
        called: is released when its turn has come.
        afterwards: what the thread is to do when it has left the turn.
    """

    what: str
    thread: int = field(default_factory=threading.get_ident)
    called: threading.Lock = field(default_factory=threading.Lock)
    afterwards: list[Callable[[], None]] = field(default_factory=list)


class Turns:
    """Who is in turn, and who waits.

    They belong to the process that made them: a forked child has none of its threads. Only locks
    that an interruption cannot leave locked are used: those of `threading.Condition` are not.
    """

    def __init__(self) -> None:
        self._process = os.getpid()
        self._lock = threading.RLock()
        # What is referred to by nobody any more is over, however it ended.
        self._line: deque[weakref.ref[_Ticket]] = deque()

    @property
    def are_forked(self) -> bool:
        """Whether this process is a fork of the one to which they belong."""
        return os.getpid() != self._process

    @property
    def are_of_others(self) -> bool:
        """Whether another thread is in turn, or this process is a fork."""
        return self.are_forked or not self._is_first(threading.get_ident())

    def take(self, ticket: _Ticket, *, is_last: bool) -> None:
        """Wait for a turn.

        Args:
            ticket: stands for the turn until it is left.
            is_last: whether it comes before those that wait, and within another one.

        Raises:
            SessionError: this thread is in another turn, or waits for one; or this is a fork.
        """
        if self.are_forked:
            raise SessionError(
                f"{ticket.what} was called in a forked child, which has none of the session's "
                "connections; use the session in the process that opened it"
            )
        with self._lock:
            outer = self._of_thread(ticket.thread)
            if outer is not None and not is_last:
                raise SessionError(
                    f"{ticket.what} was called within {outer.what} of the same thread, by a signal "
                    "handler or a callback; let it set a flag, and call it when that has returned"
                )
            if outer is None:
                self._line.insert(1 if is_last else len(self._line), weakref.ref(ticket))
        ticket.called.acquire()
        while not self._is_first(ticket.thread):
            ticket.called.acquire(timeout=_LOOK_EVERY_S)

    def leave(self, ticket: _Ticket) -> None:
        """End a turn, or do not wait for it any more. Doing it again does nothing."""
        if self.are_forked:
            return
        with self._lock:
            for each in [each for each in list(self._line) if each() is ticket]:
                self._line.remove(each)
            first = self._first()
            if first is not None and first.called.locked():
                first.called.release()

    def when_left(self, action: Callable[[], None]) -> None:
        """Let this thread do something that is refused within a turn: now, or when it has left.

        Args:
            action: what a signal handler has to do, say.
        """
        with self._lock:
            outer = self._of_thread(threading.get_ident())
            if outer is not None:
                outer.afterwards.append(action)
        if outer is None:
            action()

    def _of_thread(self, thread: int) -> _Ticket | None:
        """What a thread does, or waits for."""
        tickets = (each() for each in list(self._line))  # a signal handler may change it
        return next((t for t in tickets if t is not None and t.thread == thread), None)

    def _is_first(self, thread: int) -> bool:
        with self._lock:
            first = self._first()
            return first is None or first.thread == thread

    def _first(self) -> _Ticket | None:
        """Whose turn it is."""
        while self._line:
            ticket = self._line[0]()
            if ticket is not None:
                return ticket
            self._line.popleft()
        return None


class TakesTurns(Protocol):
    """An object whose methods take turns."""

    _turns: Turns


Taker = TypeVar("Taker", bound=TakesTurns)
Method = Callable[Concatenate[Taker, Arguments], Result]


def in_turn(method: Method[Taker, Arguments, Result]) -> Method[Taker, Arguments, Result]:
    """A public method that takes turns with the others that do."""

    @functools.wraps(method)
    def taking(self: Taker, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        turns, ticket = self._turns, _Ticket(f"session.{method.__name__}")
        try:
            turns.take(ticket, is_last=False)
            return method(self, *args, **kwargs)
        finally:
            interruption: BaseException | None = None
            while True:  # it has to be left, also if it is interrupted
                try:
                    turns.leave(ticket)
                    break
                except BaseException as error:
                    interruption = error
            _do(ticket.afterwards)
            if interruption is not None:
                raise interruption

    return taking


def last_turn(method: Method[Taker, [], None]) -> Method[Taker, [], None]:
    """The method that ends an object: it comes before those that wait, and nothing in a fork."""

    @functools.wraps(method)
    def taking(self: Taker) -> None:
        turns, ticket = self._turns, _Ticket(f"session.{method.__name__}")
        if turns.are_forked:
            return
        try:
            turns.take(ticket, is_last=True)
            method(self)
        finally:
            turns.leave(ticket)
            _do(ticket.afterwards)

    return taking


def _do(actions: Sequence[Callable[[], None]]) -> None:
    """Do what was to be done when a turn was left."""
    for action in actions:
        action()
