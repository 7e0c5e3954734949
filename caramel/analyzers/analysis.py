"""Runs analyzers: works out from annotations which are needed and in what order.

An analyzer is a function whose parameters are annotated with fact types and whose return
annotation is the fact it gives::

    def loop_frames(graph: OpGraph) -> LoopFrames: ...

This is the "Static Analysis" component of the Caramel paper (section 5).
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import FunctionType
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from caramel.core.errors import MissingFactError

Analyzer = Callable[..., Any]
Fact = TypeVar("Fact")
Signature = tuple[Mapping[str, type], type]


class Analysis:
    """Facts by type, completed on demand; every analyzer runs at most once.

    Args:
        facts: what is known from the start.
        analyzers: how to find out more. Where two give the same type, the later one counts, so a
            user's list put after the built-in one replaces what it wants to replace.

    Raises:
        TypeError: an analyzer without the annotations that say what it takes and gives.
    """

    def __init__(self, facts: Iterable[Any], analyzers: Sequence[Analyzer]) -> None:
        self._facts: dict[type, Any] = {type(fact): fact for fact in facts}
        self._analyzers = {signature_of(analyzer)[1]: analyzer for analyzer in analyzers}
        self._running: list[type] = []

    def get(self, fact: type[Fact]) -> Fact:
        """A fact of the given type, found out if need be.

        Raises:
            MissingFactError: nobody provides it, or it depends on itself; names the chain of facts
                that led to it.
        """
        if fact not in self._facts:
            self._facts[fact] = self._find(fact)
        return typing.cast(Fact, self._facts[fact])

    def _find(self, fact: type) -> Any:
        chain = " needs ".join(needed.__name__ for needed in (*self._running, fact))
        if fact in self._running:
            raise MissingFactError(f"a fact depends on itself: {chain}")
        if fact not in self._analyzers:
            raise MissingFactError(
                f"no {fact.__name__} is given and no analyzer finds it ({chain}); pass it as a "
                "fact or add an analyzer that returns it"
            )
        analyzer = self._analyzers[fact]
        self._running.append(fact)
        try:
            wanted, _ = signature_of(analyzer)
            arguments: dict[str, Any] = {name: self.get(kind) for name, kind in wanted.items()}
        finally:
            self._running.pop()
        return analyzer(**arguments)


_signatures: WeakKeyDictionary[Analyzer, Signature] = WeakKeyDictionary()


def signature_of(analyzer: Analyzer) -> Signature:
    """The facts that an analyzer takes, by parameter name, and the fact it gives."""
    if not isinstance(analyzer, FunctionType):  # others need not be hashable
        return _read_signature(analyzer)
    if analyzer not in _signatures:
        # Annotations are text, which is compiled each time that it is asked for.
        _signatures[analyzer] = _read_signature(analyzer)
    return _signatures[analyzer]


def _read_signature(analyzer: Analyzer) -> Signature:
    name = getattr(analyzer, "__name__", repr(analyzer))
    hints = typing.get_type_hints(analyzer)
    parameters = inspect.signature(analyzer).parameters
    missing = [parameter for parameter in (*parameters, "return") if parameter not in hints]
    if missing:
        raise TypeError(
            f"analyzer '{name}' has no annotation for {', '.join(missing)}; annotate each "
            "parameter with the fact it takes and the result with the fact it gives"
        )
    takes = {parameter: hints[parameter] for parameter in parameters}
    return takes, hints["return"]
