"""What follows from a job and what was decided for it; nobody decides it (`planning.complete`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

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
class Reading:
    """A variable that is on a server is read on workers.

    Attributes:
        variable: its name.
        waiting: the ops that wait until it has arrived, unless a loop is around them; then the op
            that brings the variable into the loop.
        is_of_step: whether every step reads it, and not only what is fetched.
        readers: the ops of a step that read it; when they have run a worker's own may be
            overwritten. None if that cannot be told.
    """

    variable: str
    waiting: tuple[str, ...]
    is_of_step: bool = True
    readers: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Written:
    """A variable that is on a server is written there in a step.

    Attributes:
        variable: its name.
        ops: the ops that write it, unless a loop is around them; then the op that brings the
            variable into the loop.
    """

    variable: str
    ops: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Remote:
    """An op of a worker's replica that runs on a server, where the variable is that it reads.

    Attributes:
        op: the op.
        variable: what it reads.
        is_of_step: whether every step does it.
    """

    op: str
    variable: str
    is_of_step: bool = True


@dataclass(frozen=True, slots=True)
class Place:
    """An op that is done once, or touches a variable, is on a server."""

    op: str
    server: int


@dataclass(frozen=True)
class Serving:
    """What of a step is done once, with parameter servers, and what by each worker.

    What is done once stands in a copy of its own. It follows from the job and from where
    variables live (`analyzers.serving`); all are ops of the single-device graph.

    Attributes:
        once: what is done once.
        places: the server of each op that is done once.
        touching: the server of each op that touches a variable on one, also outside of a step.
        results: those of them that a step runs; the others are what they wait for.
        worker_results: what a step runs on each worker.
        absent: what replicas lack, since it is done once.
        readings: the variables that workers read.
        remote: ops that read only some rows of a variable.
        written: the variables that a step writes.
    """

    once: tuple[str, ...] = ()
    places: tuple[Place, ...] = ()
    touching: tuple[Place, ...] = ()
    results: tuple[str, ...] = ()
    worker_results: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()
    readings: tuple[Reading, ...] = ()
    remote: tuple[Remote, ...] = ()
    written: tuple[Written, ...] = ()

    @cached_property
    def reading_of(self) -> Mapping[str, Reading]:
        """What workers read, by the variable's name."""
        return {reading.variable: reading for reading in self.readings}

    @cached_property
    def writers_of(self) -> Mapping[str, tuple[str, ...]]:
        """The ops that write each variable that a step writes."""
        return {written.variable: written.ops for written in self.written}

    @cached_property
    def done_once(self) -> frozenset[str]:
        """What is done once, as a set."""
        return frozenset(self.once)


@dataclass(frozen=True, slots=True)
class Sending:
    """A tensor is sent to another device, where ops of a step read it.

    Attributes:
        tensor: the tensor of the single-device graph.
        source: the number of the device on which it is computed.
        target: the number of that to which it is sent.
        bytes: its size; None if it is open.
    """

    tensor: TensorRef
    source: int
    target: int
    bytes: int | None


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
            training needs. With parameter servers there always is one.
        serving: with parameter servers, what a step does once, and what workers do.
        sendings: what a step sends between the devices over which its replica is spread.
    """

    orders: tuple[Edge, ...] = ()
    deferral: Deferral = Deferral()
    input_reads: tuple[str, ...] = ()
    held: tuple[str, ...] = ()
    evaluation: bool = False
    serving: Serving = Serving()
    sendings: tuple[Sending, ...] = ()
