"""How does what a worker computes count in the loss, and in the gradients, of the whole batch?

The course of the loss (`examples.courses`) tells: a mean counts in proportion to the worker's
number of examples, a sum counts once, and what is divided by a count of its own (the sum of a mask,
the number of tokens) counts in proportion to that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import networkx as nx

from caramel.analyzers.branches import predicates_around
from caramel.analyzers.examples.courses import EXAMPLES, ROOT, Count, Course, Kind, as_sum
from caramel.analyzers.examples.examples import Examples
from caramel.core.errors import LossScaleError
from caramel.core.facts import (
    MEAN,
    SUM,
    Divisor,
    GradientFrontier,
    LoopFrames,
    LossScale,
    LossScales,
    RawGradient,
    SharedTerm,
    TrainingJob,
    Weight,
)
from caramel.core.graph import Op, OpGraph
from caramel.core.names import TensorRef

_PASSING = frozenset({"Enter", "Identity", "StopGradient", "Switch"})
_ADVICE = (
    "settle it by Context(loss_reduction='mean') or Context(loss_reduction='sum'); if the loss is "
    "divided by a count of its own, such as the sum of a mask, name that scalar: "
    "Context(loss_weight=count)"
)


def loss_scales(
    graph: OpGraph, job: TrainingJob, frames: LoopFrames, courses: Examples
) -> LossScales:
    """How each loss of a job scales with the examples; what cannot be told is only noted."""
    scales = Scales(graph, job, frames, courses)
    return LossScales({loss: scales.of_loss(loss) for loss in job.losses})


class Scales:
    """Finds how tensors scale with the examples."""

    def __init__(
        self, graph: OpGraph, job: TrainingJob, frames: LoopFrames, courses: Examples
    ) -> None:
        self._graph, self._job, self._frames, self._courses = graph, job, frames, courses
        self._predicates: Mapping[str, object] | None = None

    def of_loss(self, loss: TensorRef) -> LossScale:
        """The scale of a loss, as it is found or as the user has said."""
        found = self.of(loss)
        if self._job.loss_weight is not None:
            count = self._job.loss_weight
            weight = Weight(f"by {count}", divisors=(Divisor(count, sums=(count,)),))
            return LossScale(weight, found.shared)
        if self._job.reduction is None:
            return found
        given = MEAN if self._job.reduction == "mean" else SUM
        doubt = "" if found.weight in (None, given) else _told(loss, found.weight, given)
        # The shared parts were found for another reduction than the user says.
        if given == MEAN and found.weight != MEAN:
            return LossScale(given, (), doubt=doubt)
        return LossScale(given, found.shared, doubt=doubt)

    def of(self, tensor: TensorRef) -> LossScale:
        """The scale of a floating-point scalar."""
        course = self._courses.of(tensor)
        if not _is_clear(course):
            # It may be clear only if placeholders without a shape are fed scalars.
            scalars = self._courses.with_scalars().of(tensor)
            course = scalars if _is_clear(scalars) else course
        if course.kind is Kind.ROWS and not course.marks:  # of one example
            return LossScale(MEAN)
        if not _is_clear(course):
            return LossScale(None, problem=_problem(tensor, course))
        return self._of_course(tensor, course)

    @property
    def is_settled(self) -> bool:
        """Whether the user has said how the loss scales."""
        return self._job.reduction is not None or self._job.loss_weight is not None

    def shown_by(self, gradient: RawGradient) -> Weight | None:
        """How much a worker's gradient counts, if the gradient itself leaves no doubt.

        Where the graph fixes the number of examples, a constant may be it or may not.
        """
        course = self._courses.of(gradient.values)
        wanted = Kind.SUM if gradient.indices is None else Kind.ROWS
        if (
            self._courses.batch is not None
            or course.marks
            or course.kind not in (wanted, Kind.SUM)
            or course.affine
        ):
            return None
        return self.weight_of(gradient.values)

    def differentiations(self, frontier: GradientFrontier) -> list[list[str]]:
        """The parameters whose gradients have ops behind the forward pass in common."""
        forward = self._graph.data_ancestors([loss.op for loss in self._job.losses])
        common = nx.Graph()
        for cut in frontier.cuts:
            common.add_node((cut.gradient.parameter, ""))
            behind = self._graph.data_ancestors([cut.gradient.values.op], stop=frozenset(forward))
            common.add_edges_from(
                ((cut.gradient.parameter, ""), ("", name))
                for name in behind - forward
                # Constants and reads are common to everything.
                if self._graph[name].inputs and self._graph[name].kind != "ReadVariableOp"
            )
        return [
            [
                cut.gradient.parameter
                for cut in frontier.cuts
                if (cut.gradient.parameter, "") in part
            ]
            for part in nx.connected_components(common)
        ]

    def weight_of(self, tensor: TensorRef) -> Weight | None:
        """How much a worker's gradient counts; None if that cannot be told."""
        course = self._courses.of(tensor)
        if course.kind is Kind.ROWS and not (course.marks - {ROOT}):
            return self._weight(course) or None
        return self._weight(as_sum(course)) if _is_clear(course) else None

    def plain_weight_of(self, tensor: TensorRef) -> Weight | None:
        """The same, where nobody has told what it is the gradient of.

        What was done with values of the worker's own batch may be a batch norm, or a root of the
        whole loss: that cannot be told.
        """
        return None if self._courses.of(tensor).marks else self.weight_of(tensor)

    def _of_course(self, tensor: TensorRef, course: Course) -> LossScale:
        if course.kind is Kind.SHARED and not course.powers:
            return LossScale(MEAN)
        weight = self._weight(as_sum(course))
        if weight is None:
            return LossScale(None, problem=self._unreadable(tensor, course))
        if not course.affine:
            return LossScale(weight)
        shared = self._shared(tensor)
        if shared is None:
            return LossScale(weight, problem=_no_parts(tensor))
        return LossScale(weight, tuple(shared))

    # Weights

    def _weight(self, course: Course) -> Weight | None:
        """The weight of a sum of certain powers; None if a count cannot be read."""
        powers = dict(course.powers)
        examples = -powers.pop(EXAMPLES, 0)
        # A loss that is multiplied by a count is no weighted sum of its parts.
        if examples < 0 or any(power > 0 for power in powers.values()):
            return None
        divisors: list[Divisor] = []
        for count, power in powers.items():
            divisor = self._divisor(count)
            if divisor is None:
                return None
            divisors += [divisor] * -power
        if not divisors and examples < 2:
            return MEAN if examples else SUM
        told = [f"{each.tensor}" for each in divisors] + ["examples"] * examples
        return Weight("by " + " and ".join(told), examples, tuple(divisors))

    def _divisor(self, count: Count) -> Divisor | None:
        tensor = self._outside(count.tensor)
        if tensor is None:
            return None
        if count.of == "rows":
            return Divisor(tensor, rows=True, sums=(tensor,))
        leaves = {leaf: self._outside(leaf.tensor) for leaf in sorted(count.leaves)}
        if any(outside is None for outside in leaves.values()):
            return None
        sums = tuple(t for leaf, t in leaves.items() if t is not None and leaf.of == "sum")
        means = tuple(t for leaf, t in leaves.items() if t is not None and leaf.of == "mean")
        ops = self._between(tensor, {*sums, *means})
        return None if ops is None else Divisor(tensor, sums=sums, means=means, ops=ops)

    def _between(self, tensor: TensorRef, leaves: set[TensorRef]) -> tuple[str, ...] | None:
        """The ops that compute a tensor from others; None if they cannot be run again."""
        if tensor in leaves:
            return ()
        stop = frozenset(leaf.op for leaf in leaves)
        behind = self._graph.data_ancestors([tensor.op], stop=stop) - stop
        found: dict[str, None] = {}
        for name in self._graph.topological_order():
            if name in behind and any(
                t in leaves or t.op in found for t in self._graph[name].inputs
            ):
                found[name] = None
        # An op inside a loop, a branch or a function cannot be run once more.
        if any(self._outside(TensorRef(name)) != TensorRef(name) for name in found):
            return None
        return tuple(found)

    def _outside(self, tensor: TensorRef | None) -> TensorRef | None:
        """A tensor as it can be read in every step: in no loop, no branch and no function."""
        while tensor is not None and tensor.op in self._graph:
            op = self._graph[tensor.op]
            if self._predicates is None:
                self._predicates = predicates_around(self._graph)
            inside = self._frames.frame.get(op.name) or self._predicates.get(op.name)
            if not inside and op.kind not in ("Enter", "Switch"):
                return tensor
            tensor = op.inputs[0] if op.kind in _PASSING else None
        return None

    def _unreadable(self, tensor: TensorRef, course: Course) -> str:
        names = [str(count.tensor).lstrip("@") for count, _ in course.powers if count.tensor]
        by = f"by '{names[0]}'" if names else "by powers of the number of examples"
        return (
            f"loss '{tensor}' is divided {by}, a count that differs between workers, and that "
            f"cannot be read in each step (it is in a function, a loop or a branch); {_ADVICE}"
        )

    # What is the same on every worker

    def _shared(self, tensor: TensorRef) -> list[SharedTerm] | None:
        """The parts of a sum that are the same on every worker; None if that cannot be told."""
        found: list[SharedTerm] = []
        # A stack in place of recursion: a network may have a thousand decays, added one by one.
        waiting = [(tensor, SharedTerm())]
        while waiting:
            tensor, term = waiting.pop()
            course = self._courses.of(tensor)
            if course.kind is Kind.SHARED and not course.powers:
                found.append(term.times(tensor))
            # Else it goes with the examples: nothing of it is shared.
            elif course.kind is not Kind.SHARED and course.affine:
                parts = self._parts(self._graph[tensor.op], term)
                if parts is None:
                    return None
                waiting += reversed(parts)
        return found

    def _parts(self, op: Op, term: SharedTerm) -> list[tuple[TensorRef, SharedTerm]] | None:
        """What a number is the sum of, and by what each is multiplied; None if it is no sum.

        Args:
            term: by what the number itself is multiplied.
        """
        if op.kind in _SAME_NUMBER:
            return [(op.inputs[0], term)]
        if op.kind == "Neg":
            return [(op.inputs[0], term.negated())]
        if op.kind in ("Add", "AddV2", "AddN", "AccumulateNV2"):
            return [(each, term) for each in op.inputs]
        if op.kind == "Sub":
            return [(op.inputs[0], term), (op.inputs[1], term.negated())]
        if op.kind in ("Mul", "RealDiv", "DivNoNan"):
            return self._part_of_product(op.inputs, term, divides=op.kind != "Mul")
        return None

    def _part_of_product(
        self, inputs: Sequence[TensorRef], term: SharedTerm, *, divides: bool
    ) -> list[tuple[TensorRef, SharedTerm]] | None:
        value, factor = inputs
        if self._courses.of(value).kind is Kind.SHARED and not divides:
            value, factor = factor, value
        other = self._courses.of(factor)
        if other.kind is not Kind.SHARED or other.powers:
            return None
        return [(value, term.divided_by(factor) if divides else term.times(factor))]


_SAME_NUMBER = frozenset(
    {"Cast", "CheckNumerics", "Identity", "Mean", "Reshape", "Squeeze", "StopGradient", "Sum"}
)


def _is_clear(course: Course) -> bool:
    """Whether the whole batch's value follows from the parts'."""
    if course.kind is Kind.SUM:
        return not course.marks or ROOT in course.marks  # which is how batches are normalised
    return course.kind is Kind.SHARED


def _problem(tensor: TensorRef, course: Course) -> str:
    if course.kind is Kind.UNKNOWN:
        return (
            f"it cannot be told whether loss '{tensor}' is a mean or a sum over the examples: "
            f"{course.why}; {_ADVICE}"
        )
    return (
        f"loss '{tensor}' is neither a mean nor a sum over the examples: {course.why}, so that the "
        "loss of the whole batch does not follow from those of the workers' parts; reduce "
        "what each example loses by tf.reduce_mean. If each worker's own loss is what you want to "
        "be averaged (or added up), say so by Context(loss_reduction='mean') (or 'sum')"
    )


def _no_parts(tensor: TensorRef) -> str:
    return (
        f"loss '{tensor}' has a part that is the same on every worker, such as a weight decay, and "
        "it cannot be told which; add it to the loss behind all loops and conditionals, as in "
        "loss = tf.reduce_sum(losses) + decay"
    )


def _told(loss: TensorRef, found: Weight | None, given: Weight) -> str:
    assert found is not None
    names = {MEAN: "a mean over the examples", SUM: "a sum over the examples"}
    by = ", ".join(f"'{divisor.tensor}'" for divisor in found.divisors)
    return (
        f"loss '{loss}' is {names.get(found, f'divided by {by}, which differs between workers')}, "
        f"but loss_reduction={given.name!r} was given: training differs from that on one device; "
        "leave loss_reduction out"
    )


# Gradients --------------------------------------------------------------------------------------


def gradient_weights(
    scales: LossScales, frontier: GradientFrontier, job: TrainingJob, of_gradients: Scales
) -> dict[str, Weight]:
    """How much each worker's gradient counts, by parameter.

    If all losses of the step scale alike, so do their gradients, but there may be others: of a
    loss that was not named, or multiplied by a number of examples. So each is looked at, and what
    all gradients of one differentiation show counts unless the user has said how the loss scales.

    Raises:
        LossScaleError: it cannot be told; says why and what to do.
    """
    found = [scale.weight for scale in scales.of.values()]
    alike = found[0] if len(set(found)) == 1 else None
    shown_by = {}
    if not of_gradients.is_settled:
        shown_by = _shown(frontier, of_gradients, alike)
    weights = {}
    for cut in frontier.cuts:
        gradient = cut.gradient
        is_told = job.told is None or gradient.parameter in job.told
        if is_told or job.reduction is not None:
            shown = shown_by.get(gradient.parameter)
            weight = shown or alike or of_gradients.weight_of(gradient.values)
        else:
            weight = of_gradients.plain_weight_of(gradient.values)
            if weight is None:
                raise LossScaleError(
                    f"what is minimised with the gradient of '{gradient.parameter}' is no loss of "
                    "the Context, and it cannot be told how it scales with the examples"
                )
        if weight is None:
            raise LossScaleError(
                next((scale.problem for scale in scales.of.values() if scale.problem), "")
                or f"the losses of the step do not scale alike with the examples, and it cannot "
                f"be told how the gradient of '{cut.gradient.parameter}' does; {_ADVICE}"
            )
        weights[cut.gradient.parameter] = weight
    return weights


def _shown(
    frontier: GradientFrontier, of_gradients: Scales, alike: Weight | None
) -> dict[str, Weight]:
    """What gradients show of how they count, by parameter.

    One that shows something else than the named losses is believed only if no gradient of the same
    differentiation scales as these do: a rule that is wrong about an op must change no training.
    """
    shown = {
        cut.gradient.parameter: weight
        for cut in frontier.cuts
        if (weight := of_gradients.shown_by(cut.gradient)) is not None
    }
    if alike is None or all(weight == alike for weight in shown.values()):
        return shown
    believed: dict[str, Weight] = {}
    for family in of_gradients.differentiations(frontier):
        # Believed only if no gradient of the same differentiation scales as the loss does: a rule
        # that is wrong about an op must change no training.
        told = {shown[name] for name in family if name in shown}
        if len(told) == 1 and alike not in told:
            believed |= dict.fromkeys(family, told.pop())
        elif told and alike not in told:
            raise LossScaleError(
                f"the gradients of '{family[0]}' and others do not scale with the examples as the "
                f"loss does, nor as each other; {_ADVICE}"
            )
    return believed
