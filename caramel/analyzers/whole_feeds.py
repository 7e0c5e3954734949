"""Which fed tensors go to every worker whole, because they do not go with the examples?

Class weights, priors, masks of features: fed like a batch, perhaps as long as one, but their first
dimension means something else. What meets a batch anywhere, or of which nothing can be told, is
split.
"""

from __future__ import annotations

import dataclasses
import heapq
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from caramel.analyzers.examples.at import At
from caramel.analyzers.examples.courses import OF_ARRAY, SHARED, Course, Kind
from caramel.analyzers.examples.examples import Examples
from caramel.analyzers.examples.row_rules import of_kind
from caramel.analyzers.examples.rules import RULES
from caramel.analyzers.inputs import worker_inputs
from caramel.core import op_types
from caramel.core.facts import TrainingJob
from caramel.core.graph import Op, OpGraph
from caramel.core.names import TensorRef
from caramel.core.variable_access import state_access

_MOST_OPS = 2000  # that are looked at for a placeholder
_RULES = {RULES[each] for each in ("Add", "Mul", "RealDiv", "Maximum", "SelectV2", "FloorDiv")}
_ELEMENTWISE = frozenset(kind for kind, rule in RULES.items() if rule in _RULES)
_ROW_BY_ROW = frozenset(
    {
        "Concat",
        "ConcatV2",
        "InTopK",
        "InTopKV2",
        "Pack",
        "SoftmaxCrossEntropyWithLogits",
        "SparseSoftmaxCrossEntropyWithLogits",
    }
)
"""Ops whose inputs have rows that go with each other."""
_GATHERS = frozenset({"Gather", "GatherV2", "GatherNd"})
_ALONG_ROWS = frozenset({"Softmax", "LogSoftmax", "Cumsum", "Cumprod", "ReverseV2"})
_BIASES = frozenset({"BiasAdd", "BiasAddV1"})
_FILTERED = frozenset({"Conv2D", "Conv3D", "DepthwiseConv2dNative"})
_KNOWN = _GATHERS | _BIASES | _FILTERED | _ROW_BY_ROW
_OF_SPARSE = frozenset({"SparseTensorDenseMatMul"})  # whose row numbers and shape are no rows
_MATRIX_PRODUCTS = frozenset({"MatMul", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3"})


def whole_feeds(graph: OpGraph, jobs: Sequence[TrainingJob]) -> Mapping[str, str]:
    """The placeholders that every worker gets whole, with the reason.

    Args:
        graph: the single-device graph.
        jobs: the training steps in it.
    """
    given = jobs[0].replicated_feeds
    step = graph.ancestors(op for job in jobs for op in (job.train_op, job.loss.op))
    forward = graph.data_ancestors(job.loss.op for job in jobs)
    inputs = {
        op.name: op
        for op in graph
        if op.name in step and op.name not in given and _is_batch_like(op)
    }
    found: dict[str, str] = {}
    candidates = [op for op in inputs.values() if _may_be_whole(op)]
    # Those of fixed size first: once they are known not to be batches, there are fewer that may be.
    candidates.sort(key=lambda op: _first(op) is None)
    for op in candidates:
        others = [each for name, each in inputs.items() if name not in found and name != op.name]
        if others:
            # Gradients tell nothing that the forward pass does not.
            scope = forward if op.name in forward else step
            reason = _Course(graph, jobs, op, others, frozenset(found), scope).reason()
            if reason:
                found[op.name] = reason
    return found


def _is_batch_like(op: Op) -> bool:
    if op.kind not in op_types.PLACEHOLDERS and op.kind not in op_types.ITERATOR_READS:
        return False
    return any(spec.shape for spec in op.outputs)


def _may_be_whole(op: Op) -> bool:
    """Whether it is worth a look: images and the like of any number are batches."""
    if op.kind not in op_types.PLACEHOLDERS:
        return False
    shape = op.outputs[0].shape or ()
    return shape[0] is not None or len(shape) < 3


def _first(op: Op) -> int | None:
    """The first dimension of what an input puts out; None if one of it is open."""
    sizes = [spec.shape[0] for spec in op.outputs if spec.shape]
    return None if None in sizes else sizes[0]


@dataclass
class _Course:
    """Where the first dimension of one placeholder goes.

    It is followed by the rules for rows (`examples.row_rules`), while everything else counts as the
    same everywhere.

    Attributes:
        others: the inputs that may be batches.
        whole: placeholders that are known to be none.
        scope: the ops that are looked at.
    """

    graph: OpGraph
    jobs: Sequence[TrainingJob]
    source: Op
    others: Sequence[Op]
    whole: frozenset[str]
    scope: set[str]
    against: list[str] = field(default_factory=list)  # what shows that it is no batch
    is_sure: bool = False  # whether the last of these leaves no doubt
    is_open: bool = False  # whether it is lost sight of, or meets a batch

    def reason(self) -> str:
        """Why it goes to every worker whole; empty if it does not."""
        size = _first(self.source)
        # A batch of one example would not be fixed where others are open.
        if size == 1 and self._are_others_open:
            return "its first dimension is fixed at 1"
        self._follow()
        # It meets a dimension that is no batch's: of classes, of a parameter, or it is picked from
        # by numbers that are fed.
        if self.against and (self.is_sure or not self.is_open):
            return self.against[-1 if self.is_sure else 0]
        if self.is_open:
            return ""
        # Fixed, while those of batches are not, and it meets none of these.
        if size is not None and self._are_others_open:
            return f"its first dimension is fixed at {size} and meets no batch"
        return ""

    @cached_property
    def _are_others_open(self) -> bool:
        """Whether no batch has a fixed number of examples."""
        return all(_first(op) is None for op in self.others)

    @cached_property
    def _examples(self) -> Examples:
        """How all tensors go with the examples if this placeholder does not."""
        job = self.jobs[0]
        fed = job.replicated_feeds | self.whole | {self.source.name}
        job = dataclasses.replace(job, replicated_feeds=fed)
        inputs = worker_inputs(self.graph, job, state_access(self.graph, job))
        return Examples(self.graph, job, inputs)

    @cached_property
    def _behind_others(self) -> frozenset[str]:
        """All that is computed from inputs that may be batches."""
        found, waiting = set[str](), [op.name for op in self.others]
        while waiting:
            name = waiting.pop()
            if name not in found:
                found.add(name)
                waiting += self.graph.consumers[name]
        return frozenset(found)

    # The way

    def _follow(self) -> None:
        graph, name = self.graph, self.source.name
        # In the order of the graph, so that most ops are looked at once all their inputs are known.
        number = {each: count for count, each in enumerate(graph.ops)}
        courses: dict[str, Sequence[Course]] = {name: [Course(Kind.ROWS, axis=0)]}
        seen = self.scope.intersection(graph.consumers[name])
        ready = [(number[each], each) for each in seen]
        heapq.heapify(ready)
        while ready and not self.is_open and not self.is_sure:
            op = graph[heapq.heappop(ready)[1]]
            found = self._of(op, courses)
            if not any(c.kind is not Kind.SHARED or c.elements or c.powers for c in found):
                continue
            courses[op.name] = found
            for consumer in graph.consumers[op.name]:
                if consumer not in seen and consumer in self.scope:
                    seen.add(consumer)
                    heapq.heappush(ready, (number[consumer], consumer))
            if len(seen) > _MOST_OPS:
                self.is_open = True

    def _of(self, op: Op, courses: Mapping[str, Sequence[Course]]) -> Sequence[Course]:
        """The courses of what an op puts out, after a look at what meets there."""
        inputs = tuple(_course(courses, tensor) for tensor in op.inputs)
        at = At(self.graph, op, inputs, None, lambda tensor: self.graph.spec(tensor).shape)
        rows = [n for n, course in enumerate(inputs) if course.kind is Kind.ROWS]
        # It cannot be followed any further.
        if any(inputs[n].axis in (None, OF_ARRAY) for n in rows) or (rows and op.functions):
            self.is_open = True
            return [SHARED]
        for position in rows:
            self._look(at, position, inputs[position].axis or 0)
        known = (RULES.keys() | _KNOWN) - _OF_SPARSE
        if op.kind not in known and any(_is_first(at, n) for n in rows):
            self.is_open = self.is_open or any(
                tensor.op in self._behind_others and n not in rows
                for n, tensor in enumerate(op.inputs)
            )
        # After these ops its dimension is gone.
        if op.kind in _GATHERS and 0 in rows and 1 not in rows:
            return [SHARED]
        if rows and _is_contracted(at, rows[0]):
            return [SHARED]
        if op.kind in _ALONG_ROWS and rows == [0]:
            return [inputs[0]]
        found = of_kind(at)
        if any(c.kind in (Kind.UNKNOWN, Kind.LOCAL) for c in found):
            # What is fixed and no first axis is no batch of which the number is open.
            if not self._are_others_open or any(_is_first(at, n) for n in rows):
                self.is_open = True
            return [SHARED]
        return [SHARED if c.kind is Kind.SUM else c for c in found]

    # What it meets

    def _look(self, at: At, position: int, axis: int) -> None:
        shape = at.shape(position)
        if shape is not None and not 0 <= axis < len(shape):  # an array's elements, in a loop
            self.is_open = True
            return
        # Broadcast: it meets nothing.
        if shape is not None and shape[axis] == 1:
            return
        if at.op.kind in _GATHERS and position == 0:
            self._picked(at, axis)
            return
        if at.op.kind in _FILTERED and position == 1:
            self.against.append(f"it is a filter of {at.where}")
            return
        for other, other_axis in _met(at, position, axis):
            if at.inputs[other].kind is not Kind.ROWS:
                self._meet(at, at.op.inputs[other], other_axis)

    def _picked(self, at: At, axis: int) -> None:
        """Rows of it are picked by number: if that is fed, they are no examples."""
        along = (at.integers(2) or (0,))[0] if at.op.kind == "GatherV2" else 0
        if along != axis or at.attribute("batch_dims"):
            self.is_open = True
            return
        numbers = self._examples.of(at.op.inputs[1])
        if numbers.kind is Kind.ROWS and not numbers.index:
            self.against.append(f"{at.where} picks from it by numbers that go with the examples")
        else:
            self.is_open = True

    def _meet(self, at: At, other: TensorRef, axis: int) -> None:
        shape = self.graph.spec(other).shape
        if shape is None or not -len(shape) <= axis < len(shape):
            self.is_open = True
            return
        size = shape[axis]
        if size == 1:
            return
        against = f"its first dimension meets dimension {axis} of '{other}' in {at.where}"
        if other.op not in self._behind_others:
            if size is not None and not self._is_size_of_batch(size):
                self.against.append(against)
            return
        # Batches have an unknown first dimension, and known ones behind it. So what is met is a
        # batch, or surely none.
        if self._are_others_open and (size is None) == (axis == 0):
            if size is None:
                self.is_open = True
            else:
                self.against.append(against)
                self.is_sure = True
            return
        course = self._examples.of(other)
        if course.kind is Kind.ROWS and course.axis not in (None, axis):
            self.against.append(against)
            self.is_sure = size is not None
        elif course.kind not in (Kind.SHARED, Kind.SUM):
            self.is_open = True
        elif size is not None and not self._is_size_of_batch(size):
            self.against.append(against)

    def _is_size_of_batch(self, size: int) -> bool:
        """Whether a fixed dimension may be that of a batch of fixed size."""
        return any(_first(op) == size for op in self.others)


def _course(courses: Mapping[str, Sequence[Course]], tensor: TensorRef) -> Course:
    found = courses.get(tensor.op, ())
    return found[tensor.index] if tensor.index < len(found) else SHARED


def _is_first(at: At, position: int) -> bool:
    """Whether an input's rows are along its first axis, or one of an open number."""
    axis, shape = at.inputs[position].axis or 0, at.shape(position)
    return axis == 0 or shape is None or shape[axis] is None


def _met(at: At, position: int, axis: int) -> Iterator[tuple[int, int]]:
    """Which other inputs of an op have an axis that goes with that of one input, and which."""
    ranks = [at.rank(number) for number in range(len(at.inputs))]
    own = ranks[position]
    others = [number for number in range(len(at.inputs)) if number != position]
    if at.op.kind in _ELEMENTWISE:
        for other in others:
            rank = ranks[other]
            if own is None or rank is None:
                yield other, 0
            elif axis + rank - own >= 0:
                yield other, axis + rank - own
    elif at.op.kind in _BIASES:
        if position == 1 or axis == (own or 0) - 1:
            yield 1 - position, (ranks[0] or 0) - 1 if position == 1 else 0
    elif at.op.kind == "Einsum":
        label = _label(at, position)
        for other in others:
            if label and label in _labels(at)[other]:
                yield other, _labels(at)[other].index(label)
    elif at.op.kind in _MATRIX_PRODUCTS:
        yield from _met_in_product(at, position, axis, own, ranks[1 - position])
    elif at.op.kind in _ROW_BY_ROW and axis == 0:
        for other in others:
            if ranks[other]:
                yield other, 0


def _met_in_product(
    at: At, position: int, axis: int, own: int | None, rank: int | None
) -> Iterator[tuple[int, int]]:
    if own is None or rank is None:
        yield 1 - position, 0
    elif _is_contracted(at, position):
        inner = rank - 1 if (1 - position == 0) != _is_transposed(at, 1 - position) else rank - 2
        yield 1 - position, inner
    elif axis < own - 2 and axis + rank - own >= 0:
        yield 1 - position, axis + rank - own


def _is_contracted(at: At, position: int) -> bool:
    """Whether a product sums over the axis of an input's rows."""
    rank, axis = at.rank(position), at.inputs[position].axis
    if at.op.kind == "Einsum":
        label = _label(at, position)
        return bool(label) and label not in _labels(at)[-1]
    if at.op.kind not in _MATRIX_PRODUCTS or rank is None or axis is None:
        return False
    return axis == (rank - 1 if (position == 0) != _is_transposed(at, position) else rank - 2)


def _is_transposed(at: At, position: int) -> bool:
    flags = ("transpose_a", "transpose_b") if at.op.kind == "MatMul" else ("adj_x", "adj_y")
    return bool(at.attribute(flags[position]))


def _labels(at: At) -> list[str]:
    """The labels of the axes of an ``Einsum``'s inputs and of its output; none if some are open."""
    text = str(at.op.attributes.get("equation", "")).replace(" ", "")
    left, arrow, right = text.partition("->")
    return [*left.split(","), right] if arrow and "." not in text else [""] * (len(at.inputs) + 1)


def _label(at: At, position: int) -> str:
    """The label of the axis of an input's rows; empty if it is not known."""
    labels, axis = _labels(at)[position], at.inputs[position].axis
    return labels[axis] if axis is not None and axis < len(labels) else ""
