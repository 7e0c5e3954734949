"""Raw gradients among the tensors that are proven to be sums over the examples.

The value of such a tensor on the whole batch is the sum (or the mean) of its values on the workers'
parts. So any of them that separate the updates from the batch may be aggregated.
"""

from __future__ import annotations

from dataclasses import replace

from caramel.analyzers.examples.courses import PER_EXAMPLE, Course, Kind, Powers, as_sum
from caramel.analyzers.examples.examples import Examples
from caramel.analyzers.gradients.regions import Regions
from caramel.analyzers.gradients.roles import DENSE, ROWS, cost_of
from caramel.analyzers.gradients.search import Step
from caramel.analyzers.gradients.wider import WiderSearch
from caramel.core.dtypes import is_differentiable
from caramel.core.facts import TrainingJob, Variable
from caramel.core.graph import Op, OpGraph, TensorSpec
from caramel.core.names import TensorRef

_CHOICES = {
    **dict.fromkeys(("Case", "If", "Select", "SelectV2", "StatelessCase", "StatelessIf"), 0),
    "Switch": 1,
}
"""Kinds that choose by one of their inputs: which one."""
_LOGICAL = frozenset(
    {
        *("Equal", "Greater", "GreaterEqual", "Less", "LessEqual", "NotEqual"),
        *("Enter", "Identity", "LogicalAnd", "LogicalNot", "LogicalOr", "LoopCond"),
    }
)


class ProvenSearch(WiderSearch):
    """Finds a cut among tensors that are aggregated as one device would have computed them."""

    def __init__(self, step: Step, examples: Examples) -> None:
        regions = _ending_at_readers(step.graph, step.regions)
        super().__init__(replace(step, regions=regions))
        self._examples = examples
        self._powers = _wanted_powers(step.job, examples)
        self._choosing = chosen_by_parts(step.graph, step.regions, examples)

    def _accepts(self, tensor: TensorRef, role: str) -> bool:
        course = self._examples.of(tensor)
        # It was combined with values of the worker's own batch; one device has those of the whole
        # batch.
        if course.marks or tensor.op in self._choosing:
            return False
        if role == ROWS:
            return _are_rows(course) and not course.powers and not course.index
        if course.powers not in self._powers:
            return False
        if role == DENSE:
            # A part that is the same on every worker would be counted once for each.
            return course.kind is Kind.SUM and not course.affine
        return _are_rows(course)

    def _check(self, cut: TensorRef) -> None:
        """Nothing: what is accepted is proven."""

    def _collect_all(self) -> None:
        """Also tensors of a parameter's shape from which a way leads over other shapes."""
        super()._collect_all()
        alike: dict[TensorSpec, list[Variable]] = {}
        for variable in self._variables():
            alike.setdefault(variable.spec, []).append(variable)
        for name in self._regions.core | self._regions.tail:
            for index, spec in enumerate(self._graph[name].outputs):
                tensor = TensorRef(name, index)
                if tensor in self._cost or spec not in alike or not is_differentiable(spec.dtype):
                    continue
                # Flattened gradients, say: on the way back from the update another shape comes
                # first.
                if self._exists_everywhere(tensor) and self._accepts(tensor, DENSE):
                    self._owners[tensor] = {variable.name for variable in alike[spec]}
                    self._cost[tensor] = cost_of(spec, alike[spec][0]) or 0


def _wanted_powers(job: TrainingJob, examples: Examples) -> set[Powers]:
    """By which counts a gradient may be divided: as the losses are, or as it shows itself."""
    if job.reduction is not None:
        return {PER_EXAMPLE if job.reduction == "mean" else ()}
    of_losses = {as_sum(examples.of(loss)).powers for loss in job.losses}
    # With a fixed batch size, a division by it looks like one by any constant.
    if job.loss_weight is not None or examples.batch is not None:
        return of_losses
    return {PER_EXAMPLE, (), *of_losses}


def chosen_by_parts(graph: OpGraph, regions: Regions, examples: Examples) -> frozenset[str]:
    """Ops whose values are chosen by a value of the worker's part, as no differentiation does.

    Differentiation chooses by what the forward pass has chosen by.
    """
    forward = {tensor for name in regions.forward for tensor in _conditions(graph, graph[name])}
    between = regions.core | regions.tail
    found: set[str] = set()
    for name in graph.topological_order():
        if name not in between:
            continue
        op = graph[name]
        conditions = [tensor for tensor in _conditions(graph, op) if tensor not in forward]
        if any(tensor.op in found for tensor in op.inputs) or any(
            examples.of(tensor).kind in (Kind.LOCAL, Kind.SUM) for tensor in conditions
        ):
            found.add(name)
    return frozenset(found)


def _conditions(graph: OpGraph, op: Op) -> list[TensorRef]:
    """What decides what an op puts out, of all that it is, or how often a loop goes round."""
    if op.kind in ("StatelessWhile", "While"):
        # Lists of forward values decide nothing.
        return [t for t in _read_by_condition(graph, op) if graph.spec(t).dtype != "variant"]
    if op.kind not in _CHOICES:
        return []
    condition = op.inputs[_CHOICES[op.kind]]
    # In a loop the condition is computed from comparisons: these decide.
    if graph[condition.op].kind != "LoopCond":
        return [condition]
    compared, waiting = [], [condition]
    while waiting:
        tensor = waiting.pop()
        source = graph[tensor.op]
        if source.kind in _LOGICAL:
            waiting += source.inputs
        else:
            compared.append(tensor)
    return compared


def _read_by_condition(graph: OpGraph, op: Op) -> list[TensorRef]:
    """What the condition of a loop that is a function reads, as the loop puts it out."""
    read = []
    for name in op.functions:
        function = graph.functions.get(name)
        if function is None:
            continue
        dtypes = [function.body.spec(result).dtype for result in function.results]
        if dtypes == ["bool"]:
            used = function.body.data_ancestors([result.op for result in function.results])
            read += [
                TensorRef(op.name, position)
                for position, argument in enumerate(function.arguments)
                if argument in used
            ]
    return read


def _are_rows(course: Course) -> bool:
    return course.kind is Kind.ROWS and course.axis == 0


def _ending_at_readers(graph: OpGraph, regions: Regions) -> Regions:
    """The regions without what may be differentiation; what reads a forward value remains."""
    between = regions.core | regions.tail
    readers = frozenset(
        name
        for name in between
        if any(t.op in regions.forward and t.op in regions.differing for t in graph[name].inputs)
        or not any(t.op in between for t in graph[name].inputs)
    )
    # All other ops may be cut: behind a forward value, a proven sum may be aggregated anywhere.
    return replace(regions, core=readers, tail=between - readers)
