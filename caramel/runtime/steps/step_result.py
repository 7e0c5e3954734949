"""What a step is asked for, and what it returned."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from caramel.core.names import TensorRef
from caramel.runtime.steps.factor_comparison import Unlike


@dataclass(frozen=True, slots=True)
class Fetch:
    """One fetch of a step: a tensor of the single-device graph, or an op (`tensor` is None).

    If it is `apart`, its result is a list with one value for each worker in any case. If it is the
    workers' `own`, that is also so of what is aggregated: the values before that are wanted.
    """

    op: str
    tensor: TensorRef | None
    apart: bool = False
    own: bool = False


@dataclass(frozen=True, slots=True)
class StepResult:
    """What a step returned.

    Attributes:
        values: for each fetch its result; None for an op.
        is_usual: whether the call did what calls do in a row of equal steps: it prepared nothing,
            and did the deferred part of exactly one step, if the plan defers anything.
        unlike: a worker that was found to compute other bits than the others; the variables are not
            the same on all workers then.
        examples: the workers' numbers of examples, None if unknown.
    """

    values: list[Any]
    is_usual: bool
    unlike: Unlike | None = None
    examples: Sequence[int] | None = None
