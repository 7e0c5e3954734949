"""Facts: frozen answers to one question each, which analyzers take and give.

The question a fact answers is the first line of its docstring. Those about times are in
`time_facts`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from caramel.core.graph import TensorSpec
from caramel.core.names import TensorRef

Reduction = Literal["mean", "sum"]


@dataclass(frozen=True, slots=True)
class Variable:
    """One variable of the single-device graph.

    Attributes:
        name: the user's name for it, without ``:0``.
        handle: the op that puts out its resource handle.
        initializer: the op that assigns its initial value.
        read: an op that reads its value, outside the training step.
        spec: its dtype and shape.
        trainable: whether it is a parameter: declared trainable, updated by an optimizer's op, or
            given with its gradient.
        saved: whether checkpoints hold it (it is a global, not a local variable).
        full_name: the name under which checkpoints hold it; that of the whole if it is a slice.
        slice_spec: TensorFlow's description of the slice, empty for a whole variable.
    """

    name: str
    handle: str
    initializer: str
    read: str
    spec: TensorSpec
    trainable: bool
    saved: bool
    full_name: str
    slice_spec: str = ""


@dataclass(frozen=True, slots=True)
class RawGradient:
    """The gradient of one parameter as differentiation produced it.

    `indices` is None for a dense gradient; else rows ``indices`` of the gradient are ``values``.
    """

    parameter: str
    values: TensorRef
    indices: TensorRef | None = None

    @property
    def tensors(self) -> tuple[TensorRef, ...]:
        """The tensors it consists of."""
        return (self.values,) if self.indices is None else (self.values, self.indices)


@dataclass(frozen=True, slots=True)
class Factors:
    """The smaller tensors that a gradient is computed from, by ops that any worker can repeat.

    Attributes:
        tensors: what is needed of the worker whose gradient it is: the input of a layer, and the
            gradient of its output.
        specs: their dtypes and shapes, in which dimensions may be unknown.
        ops: what computes the gradient from them, in order; the last one puts it out. What else
            these read is the same on every worker.
    """

    tensors: tuple[TensorRef, ...]
    specs: tuple[TensorSpec, ...]
    ops: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class GradientFactors:
    """From which smaller tensors can a gradient be computed again? By parameter, where it can."""

    of: Mapping[str, Factors]


@dataclass(frozen=True, slots=True)
class Divisor:
    """A number by which a loss is divided, and which differs between workers.

    Attributes:
        tensor: a scalar; or a tensor whose number of rows it is.
        rows: whether it is the number of rows.
        sums: what it is computed from: scalars whose value on the whole batch is the sum of the
            workers'.
        means: further ones, whose value on the whole batch is the mean over the examples.
        ops: what computes it from these, in order; the last one puts it out.
    """

    tensor: TensorRef
    rows: bool = False
    sums: tuple[TensorRef, ...] = ()
    means: tuple[TensorRef, ...] = ()
    ops: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Weight:
    """How much does what a worker computed count in the whole batch's value?

    Every worker's value is multiplied by its part of all examples, to the power `examples`, and by
    its part of each divisor; then all are added.

    Attributes:
        name: what it is called; unique in a plan.
        examples: 1 for a mean over the examples, 0 if their number does not count.
        divisors: what else the value was divided by.
    """

    name: str
    examples: int = 0
    divisors: tuple[Divisor, ...] = ()

    @property
    def needs_examples(self) -> bool:
        """Whether it depends on the workers' numbers of examples."""
        return self.examples > 0 or any(divisor.means for divisor in self.divisors)


MEAN = Weight("mean", 1)
SUM = Weight("sum")


@dataclass(frozen=True, slots=True)
class SharedTerm:
    """A part of a loss that is the same on every worker: a product of scalars.

    Attributes:
        sign: 1 or -1.
        factors: what is multiplied.
        divisors: by what the product is divided.
    """

    sign: int = 1
    factors: tuple[TensorRef, ...] = ()
    divisors: tuple[TensorRef, ...] = ()

    def times(self, tensor: TensorRef) -> SharedTerm:
        """The term times a scalar."""
        return SharedTerm(self.sign, (*self.factors, tensor), self.divisors)

    def divided_by(self, tensor: TensorRef) -> SharedTerm:
        """The term divided by a scalar."""
        return SharedTerm(self.sign, self.factors, (*self.divisors, tensor))

    def negated(self) -> SharedTerm:
        """The term with the other sign."""
        return SharedTerm(-self.sign, self.factors, self.divisors)


@dataclass(frozen=True, slots=True)
class LossScale:
    """How does a loss scale with the examples?

    Attributes:
        weight: how much each worker's loss counts in the whole batch's; None if that is not so.
        shared: the parts of it that are the same on every worker, and count once.
        problem: why nothing can be done, and what the user can do; empty if all is well.
        doubt: what speaks against what the user has said; empty if nothing does.
    """

    weight: Weight | None
    shared: tuple[SharedTerm, ...] = ()
    problem: str = ""
    doubt: str = ""


@dataclass(frozen=True, slots=True)
class LossScales:
    """How does each loss of a job scale with the examples?"""

    of: Mapping[TensorRef, LossScale]


@dataclass(frozen=True)
class TrainingJob:
    """Which training job is it: what is run, what is minimised, what is fed?

    Attributes:
        train_op: the op that a step runs.
        loss: the tensor that is minimised.
        other_losses: further tensors that the step minimises, of train ops joined into `train_op`.
        reduction: whether `loss` is the mean or the sum over the examples; None to find out.
        loss_weight: the scalar by which the user says that the loss is divided; its sum over the
            workers takes its place on the whole batch.
        variables: all variables of the graph.
        given_gradients: raw gradients that the user named; empty if they are to be found.
        replicated_feeds: ops whose fed value goes to every worker unsplit.
        whole_feeds: those of them that the user did not name.
        table_initializers: ops that fill lookup tables.
        differing: variables and tables (by their handle's op) that other steps over the same state
            make differ between workers.
        told: parameters whose gradients are of these losses; None for all. Of what a fetched train
            op minimises nobody has told.
        forward: scalars that belong to the forward pass beside the losses, as far as is known.
        serves: variables that updates of parameters read in other steps, such as gradients that
            are gathered over several, and which parameters these are.
        equal: names of variables that this step must leave equal on all workers although they are
            no parameters, since other steps rely on it.
        together: names of variables that are to be on one parameter server, in sets: a part of a
            parameter that is split, and those of its slots.
    """

    train_op: str
    loss: TensorRef
    reduction: Reduction | None = None
    variables: tuple[Variable, ...] = ()
    given_gradients: tuple[RawGradient, ...] = ()
    replicated_feeds: frozenset[str] = frozenset()
    whole_feeds: frozenset[str] = frozenset()
    table_initializers: tuple[str, ...] = ()
    other_losses: tuple[TensorRef, ...] = ()
    differing: frozenset[str] = frozenset()
    equal: frozenset[str] = frozenset()
    serves: Mapping[str, frozenset[str]] = field(default_factory=dict)
    told: frozenset[str] | None = None
    forward: tuple[TensorRef, ...] = ()
    loss_weight: TensorRef | None = None
    together: tuple[frozenset[str], ...] = ()

    @property
    def losses(self) -> tuple[TensorRef, ...]:
        """Everything that the step minimises."""
        return (self.loss, *self.other_losses)

    def variable(self, name: str) -> Variable:
        """The variable of that name."""
        return self._variable_of[name]

    @cached_property
    def _variable_of(self) -> Mapping[str, Variable]:
        return {variable.name: variable for variable in self.variables}


@dataclass(frozen=True, slots=True)
class StateAccess:
    """Which variables does each op read and write, also from inside functions it calls?

    Both map an op's name to the names of variables; an op that touches none is in neither.
    """

    reads: Mapping[str, frozenset[str]]
    writes: Mapping[str, frozenset[str]]


@dataclass(frozen=True, slots=True)
class Merging:
    """How is one value made of what each worker's variable has gathered from its own examples?

    Attributes:
        summed: variables that are added to (counters, totals, confusion matrices).
        averaged: variables that move towards something (moving averages), or add up what is a mean
            already.
        conditions: those of either for which each worker decides by its own examples whether it
            writes: no value is what one device has. With the ops that put out the predicates.
    """

    summed: tuple[str, ...] = ()
    averaged: tuple[str, ...] = ()
    conditions: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class UnorderedPair:
    """Two ops of a step that touch a variable, one writing, of which neither waits for the other.

    Attributes:
        variable: its name.
        first: the one that is to run first.
        second: the other one.
        edges: the control edges that see to it: pairs of ops of which the second is to wait.
        obstacle: why no edges can; empty if they do.
    """

    variable: str
    first: str
    second: str
    edges: tuple[tuple[str, str], ...] = ()
    obstacle: str = ""


@dataclass(frozen=True, slots=True)
class StateOrder:
    """In which order does a step read and write its variables where its edges leave that open?

    Attributes:
        pairs: ops that are to be ordered. What follows from others is not among them.
        draws_in_writes: whether an op waits for a write only because of the edges: run by itself,
            outside of the step, it must go without them.
    """

    pairs: tuple[UnorderedPair, ...] = ()
    draws_in_writes: bool = False

    @property
    def edges(self) -> tuple[tuple[str, str], ...]:
        """All control edges that are to be added, each once."""
        return tuple(dict.fromkeys(edge for pair in self.pairs for edge in pair.edges))


@dataclass(frozen=True, slots=True)
class LoopFrames:
    """In which v1 loop frame is each op? The root frame is the empty string."""

    frame: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Fusions:
    """Which ops may TensorFlow compute as one?

    Then all that any of them waits for comes before all that waits for any of them.

    Attributes:
        groups: names of such ops, in the order of the graph; no op is in two groups.
    """

    groups: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class WorkerInputs:
    """Which ops put out values that differ between workers by themselves, and why?

    Attributes:
        reasons: op to the reason ("a fed batch", "a random draw", ...).
        scalar_only: placeholders of unknown rank. They are taken to be scalars where a batch would
            be an error; feeding anything else is then refused.
        scalars: other placeholders of unknown rank, which must be scalars because the loss is one.
        taken_for_batches: other placeholders of unknown rank, which `reasons` has because nothing
            else makes a gradient differ. A scalar may be fed to them as well.
    """

    reasons: Mapping[str, str]
    scalar_only: frozenset[str] = frozenset()
    scalars: frozenset[str] = frozenset()
    taken_for_batches: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Cut:
    """One raw gradient and the ops that must see its aggregated value instead.

    Attributes:
        gradient: what is aggregated.
        consumers: ops of the single-device graph that read it for post-processing and updates.
        merge_duplicates: whether rows of equal index may be added up before they are sent (only
            for sparse gradients): no consumer can tell.
        shared: what is added to it before it is cut although it is the same on every worker, such
            as a weight decay: the ops that read it, and what they read.
    """

    gradient: RawGradient
    consumers: tuple[str, ...]
    merge_duplicates: bool = False
    shared: tuple[tuple[str, TensorRef], ...] = ()


@dataclass(frozen=True, slots=True)
class GradientFrontier:
    """Where does differentiation end and post-processing begin?

    One cut for each parameter whose gradient depends on the worker. `untouched` are parameters
    that the step updates the same way on every worker without any aggregation.
    """

    cuts: tuple[Cut, ...]
    untouched: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ReplicaState:
    """Which variables stay equal on all workers, and which differ?

    Attributes:
        parameters: trainable variables that the step updates.
        shared: other variables that stay equal on all workers (slots, step counters).
        local: variables updated from data without a gradient, such as moving averages, in the step
            or by what can be fetched beside it.
        scalar_only: placeholders of unknown rank for which equality depends on scalar feeds.
        undeclared: those of them that the loss is computed from; with a declared shape they would
            be batches.
        taken_for_batches: other placeholders of unknown rank, by way of which alone examples reach
            some parameter.
        worker_dependent: ops of the whole graph whose values differ between workers.
        generators: variables that hold a random generator's state.
        seeds: variables that hold the seed of stateless random ops.
        constant: variables whose initial value only hands out constants; it is the same wherever
            it is made.
        summed: those of the local ones whose values are added up; those of others are averaged.
        tables: tables, by the op of their handle, into which the step puts values that differ.
    """

    parameters: tuple[str, ...]
    shared: tuple[str, ...]
    local: tuple[str, ...]
    scalar_only: frozenset[str] = frozenset()
    undeclared: frozenset[str] = frozenset()
    taken_for_batches: frozenset[str] = frozenset()
    worker_dependent: frozenset[str] = frozenset()
    generators: tuple[str, ...] = ()
    seeds: tuple[str, ...] = ()
    constant: tuple[str, ...] = ()
    summed: tuple[str, ...] = ()
    tables: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Pipeline:
    """One `tf.data` pipeline of the step: `op`'s dataset output is what is to be sharded."""

    iterator: str
    op: str
    consumers: tuple[str, ...] = field(default=())


@dataclass(frozen=True, slots=True)
class InputPipelines:
    """Where are the input pipelines of the step split into shards?

    Attributes:
        pipelines: one entry for each place where a shard is taken.
        examples: the tensor whose first dimension is a worker's number of examples, where that
            number may differ between workers; None if the client decides or it never differs.
        fixed_examples: a worker's number of examples where it never differs, None if unknown.
        iterators: iterators that the step reads.
    """

    pipelines: tuple[Pipeline, ...] = ()
    examples: TensorRef | None = None
    fixed_examples: int | None = None
    iterators: tuple[str, ...] = ()
