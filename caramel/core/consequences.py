"""What follows from a job and what was decided for it; nobody decides it (`planning.complete`)."""

from __future__ import annotations

from dataclasses import dataclass

from caramel.core.decision import Edge
from caramel.core.graph import TensorSpec
from caramel.core.names import TensorRef


@dataclass(frozen=True, slots=True)
class Detour:
    """An op stays in its step although it waited for ops that move into the next one.

    Attributes:
        op: the op.
        moved: the control inputs that it loses.
        before: what those waited for in the step; it waits for these ops instead.
    """

    op: str
    moved: tuple[str, ...]
    before: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Kept:
    """A tensor that a moved op reads from the step before, kept in a variable of its worker.

    Attributes:
        tensor: the tensor of the single-device graph.
        spec: its dtype and shape.
        aggregated: whether what is read is not this raw gradient but its aggregated value.
    """

    tensor: TensorRef
    spec: TensorSpec
    aggregated: bool = False


@dataclass(frozen=True, slots=True)
class Barrier:
    """Ops touch a variable that moved ops touch too, and wait for those in the next step.

    Attributes:
        variable: its name.
        moved: the ops that move.
        waiting: the ops that stay and wait, unless a loop is around them; then the op that brings
            the variable into the loop.
    """

    variable: str
    moved: tuple[str, ...]
    waiting: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Deferral:
    """What moves into the next step with the deferred groups; ops of the single-device graph.

    It follows from the job and from which gradients are deferred (`analyzers.deferral`).

    Attributes:
        moved: ops that run at the start of the next step, in topological order.
        kept: what they read from the step before, but for the deferred gradients themselves.
        results: moved ops that no other moved op waits for: running them runs all.
        stays: ops that a step still runs: the train op, or what is left of it.
        detours: ops that stay although they waited for moved ones.
        orders: control edges between moved ops, in place of those that led over ops that stay.
        barriers: which ops of the next step wait for which moved ones.
    """

    moved: tuple[str, ...] = ()
    kept: tuple[Kept, ...] = ()
    results: tuple[str, ...] = ()
    stays: tuple[str, ...] = ()
    detours: tuple[Detour, ...] = ()
    orders: tuple[Edge, ...] = ()
    barriers: tuple[Barrier, ...] = ()


@dataclass(frozen=True, slots=True)
class Consequences:
    """What follows from the job and from what was decided (`planning.complete`).

    Nobody needs to give it: it is made anew for every plan that is carried out.

    Attributes:
        orders: further control edges, which order what a step reads and writes of variables where
            the user's graph does not. They follow from the job (`analyzers.state_order`).
        deferral: what moves into the next step with the deferred groups.
        input_reads: ops that read the input pipelines of a step.
        held: updates that must wait until all workers have read their inputs: nothing else keeps
            them from running in a step that another worker's ended pipeline stops.
        evaluation: whether an unsharded copy of the graph stands on worker 0, whose local
            variables hold what those of all workers are together. It goes without what only
            training needs.
    """

    orders: tuple[Edge, ...] = ()
    deferral: Deferral = Deferral()
    input_reads: tuple[str, ...] = ()
    held: tuple[str, ...] = ()
    evaluation: bool = False
