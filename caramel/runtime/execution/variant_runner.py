"""Runs parts of one variant of the distributed graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from caramel.core.names import TensorRef, in_variant
from caramel.runtime.execution.calls import DEFAULT, CallOptions
from caramel.runtime.execution.runner import Call, Runner


class VariantRunner:
    """Runs parts of one variant; names are those of its plan's own graph.

    Args:
        runner: runs parts of the whole graph.
        variant: the variant's number.
    """

    def __init__(self, runner: Runner, variant: int) -> None:
        self._runner, self._variant = runner, variant

    def run(
        self,
        tensors: Sequence[TensorRef],
        targets: Sequence[str],
        fed: Mapping[TensorRef, Any],
        what: str,
        options: CallOptions = DEFAULT,
    ) -> list[Any]:
        """As `Runner.run`."""
        return self.call(self.compile(tensors, targets, fed, options), what, options)

    def compile(
        self,
        tensors: Sequence[TensorRef],
        targets: Sequence[str],
        fed: Mapping[TensorRef, Any],
        options: CallOptions = DEFAULT,
    ) -> Call:
        """As `Runner.compile`."""
        return self._runner.compile(tensors, targets, fed, options, variant=self._variant)

    def call(self, function: Call, what: str, options: CallOptions = DEFAULT) -> list[Any]:
        """As `Runner.call`."""
        return self._runner.call(function, what, options)

    def extend(self) -> None:
        """As `Runner.extend`."""
        self._runner.extend()

    def in_whole_graph(self, ops: Sequence[str]) -> list[str]:
        """What ops of the variant are called in the whole graph."""
        return [in_variant(self._variant, op) for op in ops]

    @property
    def compiled(self) -> int:
        """As `Runner.compiled`."""
        return self._runner.compiled

    @property
    def calls(self) -> int:
        """As `Runner.calls`."""
        return self._runner.calls
