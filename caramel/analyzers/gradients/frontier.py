"""Where does differentiation end and post-processing begin?

The raw gradients are found from structure alone, if that is possible. Aggregation has to separate
all that depends on the worker from the updates: at tensors of the shape of the parameter, with as
few bytes as possible, and as early as possible, so that nothing is post-processed before it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from caramel.analyzers.branches import predicates_around
from caramel.analyzers.examples.courses import Kind
from caramel.analyzers.examples.examples import Examples
from caramel.analyzers.gradients.calls import refuse_gradients_of_functions
from caramel.analyzers.gradients.proven import ProvenSearch, chosen_by_parts
from caramel.analyzers.gradients.regions import Regions, regions_of
from caramel.analyzers.gradients.search import Search, Step
from caramel.analyzers.gradients.seeded import SeededSearch
from caramel.core import op_types
from caramel.core.dtypes import is_integer
from caramel.core.errors import AmbiguousGradientError
from caramel.core.facts import (
    Cut,
    GradientFrontier,
    LoopFrames,
    RawGradient,
    StateAccess,
    TrainingJob,
    WorkerInputs,
)
from caramel.core.graph import OpGraph
from caramel.core.names import TensorRef


def gradient_frontier(
    graph: OpGraph,
    job: TrainingJob,
    access: StateAccess,
    inputs: WorkerInputs,
    frames: LoopFrames,
    examples: Examples,
) -> GradientFrontier:
    """The raw gradient of every parameter, and who must see its aggregated value.

    Gradients that were given count as given; those of other parameters are found.

    Raises:
        AmbiguousGradientError: the structure does not tell, and `gradients=` was not given; names
            the parameter, what may be its gradient, and the line to write.
    """
    regions = regions_of(graph, job, access, inputs)
    _refuse_gradients_in_loops(graph, frames, job.given_gradients)
    updated = {name for sink in regions.sinks for name in access.writes[sink]}
    trained = [v.name for v in job.variables if v.trainable and v.name in updated]
    gradients = list(job.given_gradients)
    served = {parameter for name in updated for parameter in job.serves.get(name, ())}
    if not {gradient.parameter for gradient in gradients}.issuperset([*trained, *served]):
        refuse_gradients_of_functions(graph, job, access, regions.forward, regions.sinks)
        gradients += _found(Step(graph, job, access, frames, regions), examples)
    cuts = _cuts(graph, regions, examples, _in_order(job, gradients))
    found = {gradient.parameter for gradient in gradients}
    untouched = [name for name in trained if name not in found]
    return GradientFrontier(tuple(cuts), tuple(untouched))


def _found(step: Step, examples: Examples) -> list[RawGradient]:
    """The raw gradients that were not given, by the first way that finds them."""
    loss = examples.of(step.job.loss)
    is_known = loss.kind is Kind.SUM and not loss.marks

    def searches() -> Iterator[Search]:
        yield ProvenSearch(step, examples)
        choosing = chosen_by_parts(step.graph, step.regions, examples)

        def is_wrong(tensor: TensorRef) -> bool:
            # Where the loss itself is not known to be a sum, neither are its gradients.
            known = is_known and examples.of(tensor).kind is Kind.LOCAL
            return known or tensor.op in choosing

        yield SeededSearch(step, is_wrong)

    first = None
    try:
        first = Search(step).gradients()
        # It may leave out what depends on a batch that the loss does not (that of a second loss,
        # say): then the others are tried, and if they find nothing, replicas would drift there.
        if not _is_one_missing(step, first):
            return first
    # Differentiation may compute something that is not linear behind the last forward value that it
    # reads, or what is post-processed is not yet summed over the examples.
    except AmbiguousGradientError:
        pass
    for search in searches():
        try:
            return search.gradients()
        except AmbiguousGradientError as refused:
            # The last error counts: its search knows most of what is a candidate.
            error = refused
    if first is None:
        raise error
    return first


def _is_one_missing(step: Step, found: Sequence[RawGradient]) -> bool:
    """Whether the update of a parameter without gradient depends on the worker."""
    known = {gradient.parameter for gradient in (*found, *step.job.given_gradients)}
    missing = {v.name for v in step.job.variables if v.trainable} - known
    return any(
        tensor.op in step.regions.differing
        for sink in step.regions.sinks
        if step.access.writes[sink] & missing
        for tensor in step.graph[sink].inputs
    )


def _in_order(job: TrainingJob, gradients: list[RawGradient]) -> list[RawGradient]:
    """In the order of the variables, but as they were given if all were."""
    if len(gradients) == len(job.given_gradients):
        return gradients
    position = {variable.name: index for index, variable in enumerate(job.variables)}
    return sorted(gradients, key=lambda gradient: position[gradient.parameter])


def _refuse_gradients_in_loops(
    graph: OpGraph, frames: LoopFrames, gradients: Sequence[RawGradient]
) -> None:
    if not gradients:
        return
    predicates = predicates_around(graph)
    for gradient in gradients:
        for tensor in gradient.tensors:
            if frames.frame[tensor.op] or predicates[tensor.op]:
                raise AmbiguousGradientError(
                    f"gradients: '{tensor}', given as the gradient of '{gradient.parameter}', is "
                    "inside a loop or a conditional; name the tensor that comes out of it"
                )


def _cuts(
    graph: OpGraph, regions: Regions, examples: Examples, gradients: list[RawGradient]
) -> list[Cut]:
    """Each gradient with the ops that read it outside differentiation."""
    # Some gradients are used to compute others: there the worker's own value must stay.
    inside = graph.data_ancestors([t.op for gradient in gradients for t in gradient.tensors])
    cuts = []
    for gradient in gradients:
        readers = {
            name
            for tensor in gradient.tensors
            for name in graph.consumers[tensor.op]
            if tensor in graph[name].inputs and name not in inside
        }
        consumers = tuple(name for name in graph.ops if name in readers)
        merge = gradient.indices is not None and _only_summed(graph, gradient.values, inside)
        shared = tuple(_shared_inputs(graph, regions, examples, gradient.values))
        cuts.append(Cut(gradient, consumers, merge, shared))
    return cuts


def _shared_inputs(
    graph: OpGraph, regions: Regions, examples: Examples, gradient: TensorRef
) -> Iterator[tuple[str, TensorRef]]:
    """What is added to a gradient behind differentiation although no example is in it."""

    def is_alike(tensor: TensorRef) -> bool:
        if tensor.op not in regions.differing:
            return True
        if tensor.op in regions.by_value:
            return False
        course = examples.of(tensor)  # perhaps only the shape of a scalar is in it
        return course.kind is Kind.SHARED and not course.powers

    waiting, seen = [gradient.op], {gradient.op}
    while waiting:
        op = graph[waiting.pop()]
        if op.name not in regions.differing or op.name in regions.forward:
            continue
        values = [t for t in op.inputs if not is_integer(graph.spec(t).dtype)]
        differing = [t for t in values if not is_alike(t)]
        if op.kind in op_types.SUMS:
            alike = dict.fromkeys(t for t in values if t not in differing)
            yield from ((op.name, t) for t in alike)
        # Behind an op of another kind the shared part is no summand any more.
        if op.kind in op_types.LINEAR and op.name in regions.tail:
            new = [t.op for t in differing if t.op not in seen]
            seen.update(new)
            waiting += new


_SUMMING = frozenset({op_types.SUM_OF_ROWS, *op_types.SPARSE_UPDATES})
_SCALING = frozenset({"Cast", "Identity", "Mul", "Neg", "RealDiv"})


def _only_summed(graph: OpGraph, values: TensorRef, inside: set[str]) -> bool:
    """Whether rows of equal index are added up before anything but scaling happens to them."""
    for name in graph.consumers[values.op]:
        op = graph[name]
        if values not in op.inputs or name in inside or op.kind in op_types.SHAPE_ONLY:
            continue
        if op.kind in _SUMMING:
            continue
        scales = op.kind in _SCALING and all(
            _only_summed(graph, TensorRef(name, index), inside) for index in range(len(op.outputs))
        )
        if not scales:
            return False
    return True
