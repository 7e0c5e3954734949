"""Which parameters may be split by rows, because their updates are elementwise?

Then each part can be updated by itself: nothing in the update of an element depends on others. What
is computed from a raw gradient before (weight decay, clipping by value) is part of the update. What
reads all of a gradient, such as a norm, lets the parameter stay whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from caramel.core import op_types
from caramel.core.facts import Cut, RawGradient, StateAccess, TrainingJob, Variable
from caramel.core.graph import Op, OpGraph
from caramel.core.names import TensorRef, part_of
from caramel.core.row_split import RowSplit, RowSplits

_ELEMENTWISE = op_types.BROADCASTING | {
    "CheckNumerics",
    "ClipByValue",
    "Equal",
    "Expm1",
    "Greater",
    "GreaterEqual",
    "IsFinite",
    "Less",
    "LessEqual",
    "LogicalAnd",
    "LogicalNot",
    "LogicalOr",
    "NotEqual",
    "OnesLike",
    "Reciprocal",
    "Rsqrt",
    "SelectV2",
    "Sign",
    "ZerosLike",
}
"""Each element of what they put out is computed from the same element of what they read."""

_ADDING = frozenset({"AssignAddVariableOp", "AssignSubVariableOp", "AssignVariableOp"})
_UPDATES = frozenset(
    f"ResourceApply{kind}"
    for kind in (
        "AdaMax",
        "Adadelta",
        "Adagrad",
        "AdagradDA",
        "AdagradV2",
        "Adam",
        "AdamWithAmsgrad",
        "AddSign",
        "CenteredRMSProp",
        "Ftrl",
        "FtrlV2",
        "GradientDescent",
        "KerasMomentum",
        "Momentum",
        "PowerSign",
        "ProximalAdagrad",
        "ProximalGradientDescent",
        "RMSProp",
    )
)
_ROW_UPDATES = frozenset({*op_types.SPARSE_UPDATES, "ResourceScatterUpdate"})
_ROWS = frozenset({"ResourceGather"})
_READS = frozenset({"ReadVariableOp", "VarIsInitializedOp", "VariableShape"})
"""Ops that take the handle of a variable, and can be given those of its parts."""

# What is made of a sparse gradient: rows, their numbers in the parameter, their numbers among
# unique ones, and how many there are.
_VALUES, _NUMBERS, _SEGMENTS, _COUNT = "values", "numbers", "segments", "count"


class _WholeError(Exception):
    """A parameter cannot be split; says why."""


def row_splits(
    graph: OpGraph,
    steps: Sequence[tuple[TrainingJob, Sequence[Cut]]],
    access: StateAccess,
    rows: Mapping[str, tuple[int, ...]],
) -> RowSplits:
    """How parameters are split, and why others are not.

    Args:
        graph: the single-device graph.
        steps: all steps of the job, each with its raw gradients.
        access: which variables each op touches.
        rows: by the name of each parameter that is to be split, the rows of its parts.
    """
    job = steps[0][0]
    splits: list[RowSplit] = []
    reasons: dict[str, str] = {}
    for variable in job.variables:
        if variable.name not in rows:
            continue
        search = _Search(graph, steps, access, variable)
        try:
            found = search.split(rows[variable.name])
            _refuse_shared(found, splits)
        except _WholeError as error:
            reasons[variable.name] = str(error)
        else:
            splits.append(found)
    return RowSplits(tuple(splits), reasons)


def _refuse_shared(split: RowSplit, others: Sequence[RowSplit]) -> None:
    """Raise if something is to be split with two parameters."""
    for other in others:
        names = {v.name for v in split.variables} & {v.name for v in other.variables}
        ops = set(split.copied) & set(other.copied)
        if names or ops:
            raise _WholeError(
                f"'{min(names or ops)}' belongs to its update and to that of "
                f"'{other.parameter.name}'"
            )


@dataclass
class _Search:
    """Finds all that is split with a parameter; `_WholeError` where something cannot be.

    Attributes:
        variable: the parameter.
        variables: what is split, by the op of its handle.
        copied: ops of which each part gets its own.
        by_row: those of them that work on the rows of a sparse gradient.
    """

    graph: OpGraph
    steps: Sequence[tuple[TrainingJob, Sequence[Cut]]]
    access: StateAccess
    variable: Variable
    variables: dict[str, Variable] = field(default_factory=dict)
    copied: set[str] = field(default_factory=set)
    by_row: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        job = self.steps[0][0]
        self._known = {v.handle: v for v in job.variables}
        self._step = self.graph.ancestors(own.train_op for own, _ in self.steps)
        self._all_cuts = [cut for _, cuts in self.steps for cut in cuts]
        self._cuts = _joined(
            c for c in self._all_cuts if c.gradient.parameter == self.variable.name
        )
        self._of_others = {
            tensor
            for cut in self._all_cuts
            if cut.gradient.parameter != self.variable.name
            for tensor in cut.gradient.tensors
        }
        self._gradients = {t for cut in self._cuts for t in cut.gradient.tensors}
        self._shared: set[str] = set()

    def split(self, rows: tuple[int, ...]) -> RowSplit:
        """How the parameter is split.

        Args:
            rows: of its parts.
        """
        if self.variable.slice_spec:
            raise _WholeError("it is a part of a partitioned variable already")
        if self._gradients & self._of_others:
            raise _WholeError("its gradient is that of another parameter, too")
        if not self._cuts:
            raise _WholeError("it has no gradient")
        for cut in self._cuts:
            # One row for all, such as the gradient of a sum over the rows, has no parts.
            values, is_dense = cut.gradient.values, cut.gradient.indices is None
            if is_dense and self.graph.spec(values).shape != self.variable.spec.shape:
                raise _WholeError(f"its gradient '{values}' is not of its shape")
        self._add(self.variable)
        for cut in self._cuts:
            if cut.gradient.indices is None:
                self._follow(cut.consumers, cut.gradient.values)
            else:
                self._follow_rows(cut)
        self._refuse_readers_of_all()
        split = RowSplit(
            tuple(self.variables.values()),
            rows,
            tuple(name for name in self.graph.topological_order() if name in self.copied),
            tuple(self._cuts),
            frozenset(self.by_row),
        )
        self._refuse_taken_names(split)
        return split

    # Variables

    def _add(self, variable: Variable) -> None:
        """Split a variable, too."""
        if variable.handle in self.variables:
            return
        spec = self.variable.spec
        if variable.spec.shape != spec.shape or not variable.spec.bytes:
            raise _WholeError(f"'{variable.name}', which is updated with it, is of another shape")
        if variable.trainable and variable.name != self.variable.name:
            raise _WholeError(f"its update belongs to that of '{variable.name}', too")
        self.variables[variable.handle] = variable
        for name in self.graph.consumers[variable.handle]:
            op = self.graph[name]
            if any(tensor.op == variable.handle for tensor in op.inputs):
                self._touch(op, variable)

    def _touch(self, op: Op, variable: Variable) -> None:
        """An op takes the handle of a variable that is split."""
        is_first = op.inputs[0].op == variable.handle
        if op.name in self.copied or (is_first and op.kind in _READS):
            return
        if is_first and op.kind in _ROWS and not op.attributes.get("batch_dims", 0):
            return
        if is_first and op.kind in _ADDING:
            # What only assigns a value, such as a restored one, gets the rows of that.
            if op.name in self._step:
                self._update(op)
            return
        if op.kind in _UPDATES and op.name in self._step:
            self._update(op)
        elif not (self._is_row_update(op) and op.name in self._step):
            raise _WholeError(f"'{op.name}' ({op.kind}) takes its handle")
        # Updates of rows are found from the rows: see `_follow_rows`, `_refuse_readers_of_all`.

    def _update(self, op: Op) -> None:
        """An op that writes what is split, element by element."""
        self.copied.add(op.name)
        for tensor in op.inputs:
            if self.graph[tensor.op].kind == op_types.VARIABLE:
                self._add_handle(tensor.op, op)
            else:
                self._need(tensor, op)

    def _add_handle(self, handle: str, op: Op) -> None:
        if handle not in self._known:
            raise _WholeError(f"'{op.name}' ({op.kind}) updates more than variables")
        self._add(self._known[handle])

    @staticmethod
    def _is_row_update(op: Op) -> bool:
        return op.kind in _ROW_UPDATES or op.kind.startswith(op_types.SPARSE_UPDATE_PREFIX)

    # What updates are computed from

    def _need(self, tensor: TensorRef, reader: Op) -> None:
        """Each part needs its rows of a tensor, or all of it if it has no rows."""
        if tensor in self._gradients or tensor.op in self.copied:
            return
        if tensor in self._of_others:
            raise _WholeError(f"'{reader.name}' reads the gradient of another parameter")
        if not self._has_rows(tensor, reader):
            self._shared.add(tensor.op)
            return
        op = self.graph[tensor.op]
        if op.kind == "ReadVariableOp":
            read = self._known.get(op.inputs[0].op)
            if read is not None and not read.trainable:
                self._add(read)
        elif op.kind in _ELEMENTWISE:
            self._copy(op)
        else:  # computed whole; each part gets its rows
            self._shared.add(op.name)

    def _copy(self, op: Op) -> None:
        """Each part computes an op for itself."""
        if op.name not in self.copied:
            self.copied.add(op.name)
            for tensor in op.inputs:
                self._need(tensor, op)

    def _has_rows(self, tensor: TensorRef, reader: Op) -> bool:
        """Whether a tensor has the rows of the parameter, not one for all of them."""
        shape, whole = self.graph.spec(tensor).shape, self.variable.spec.shape or ()
        if shape is None or None in shape:
            raise _WholeError(f"the shape of '{tensor}', which '{reader.name}' reads, is unknown")
        if len(shape) < len(whole) or (len(shape) == len(whole) and shape[0] == 1):
            return False
        if len(shape) != len(whole) or shape[0] != whole[0]:
            raise _WholeError(f"'{reader.name}' ({reader.kind}) mixes it with '{tensor}'")
        return True

    # What reads a gradient

    def _follow(self, consumers: Sequence[str], tensor: TensorRef) -> None:
        """Ops that read what each part has for itself."""
        for name in consumers:
            op = self.graph[name]
            if name not in self._step or tensor not in op.inputs:
                continue
            written = self.access.writes.get(name)
            if written:
                self._write(op)
            elif op.kind in _ELEMENTWISE and self._keeps_rows(op):
                self._copy(op)
                self._follow(self.graph.consumers[name], TensorRef(name))
            elif op.kind not in op_types.SHAPE_ONLY:
                raise _WholeError(f"'{name}' ({op.kind}) reads all of its gradient")

    def _keeps_rows(self, op: Op) -> bool:
        return self.graph.spec(TensorRef(op.name)).shape == self.variable.spec.shape

    def _write(self, op: Op) -> None:
        """An op writes what is computed from a gradient."""
        if op.kind in _ADDING | _UPDATES and op.inputs[0].op in self._known:
            self._add(self._known[op.inputs[0].op])
        if op.name not in self.copied:
            raise _WholeError(f"'{op.name}' ({op.kind}) reads all of its gradient")

    # Sparse gradients

    def _follow_rows(self, cut: Cut) -> None:
        """What is made of the rows of a sparse gradient, up to where they are applied."""
        found: dict[TensorRef, str] = {cut.gradient.values: _VALUES}
        if cut.gradient.indices is not None:
            found[cut.gradient.indices] = _NUMBERS
        raw = frozenset(found)
        for name in self.graph.topological_order():
            op = self.graph[name]
            own = [
                found[t] if t in found and (t not in raw or name in cut.consumers) else ""
                for t in op.inputs
            ]
            if name not in self._step or not any(own):
                continue
            self.copied.add(name)
            self.by_row.add(name)
            if self._is_row_update(op):
                self._update_rows(op, own)
                continue
            for index, role in enumerate(self._roles(op, own)):
                found[TensorRef(name, index)] = role

    def _update_rows(self, op: Op, roles: Sequence[str]) -> None:
        """An op that writes rows of what is split."""
        for tensor, role in zip(op.inputs, roles, strict=True):
            if self.graph[tensor.op].kind == op_types.VARIABLE:
                self._add_handle(tensor.op, op)
            elif not role and self.graph.spec(tensor).shape != ():
                raise _WholeError(f"'{op.name}' ({op.kind}) reads more than its gradient")
        if _VALUES not in roles or _NUMBERS not in roles:
            raise _WholeError(f"'{op.name}' ({op.kind}) updates other rows than its gradient's")

    def _roles(self, op: Op, roles: Sequence[str]) -> Sequence[str]:
        """What an op puts out that reads rows of a gradient."""
        known = {role for role in roles if role}
        match op.kind:
            case "Identity" | "Cast" | "CheckNumerics" | "StopGradient":
                return (roles[0],)
            case "Shape":
                return (_COUNT,)
            case "StridedSlice" if known == {_COUNT} and not any(roles[1:]):
                return (_COUNT,)
            case "Unique" if known == {_NUMBERS}:
                return (_NUMBERS, _SEGMENTS)
            case "UnsortedSegmentSum" if tuple(roles) == (_VALUES, _SEGMENTS, _COUNT):
                return (_VALUES,)
            case "ResourceGather" if tuple(roles) == ("", _NUMBERS):
                if not op.attributes.get("batch_dims", 0):
                    self._add_handle(op.inputs[0].op, op)
                    return (_VALUES,)
            case kind if kind in _ELEMENTWISE and known == {_VALUES}:
                others = [t for t, role in zip(op.inputs, roles, strict=True) if not role]
                if not any(self._may_have_rows(tensor) for tensor in others):
                    return (_VALUES,)
        raise _WholeError(f"'{op.name}' ({op.kind}) reads all of its gradient")

    def _may_have_rows(self, tensor: TensorRef) -> bool:
        """Whether a tensor may have a row for each one of a sparse gradient."""
        shape, whole = self.graph.spec(tensor).shape, self.variable.spec.shape or ()
        return shape is None or (len(shape) >= len(whole) and shape[0] != 1)

    # At last

    def _refuse_readers_of_all(self) -> None:
        """Raise if an update reads something that is computed from all of the variables."""
        for variable in self.variables.values():
            for name in self.graph.consumers[variable.handle]:
                op = self.graph[name]
                if self._is_row_update(op) and name not in self.copied:
                    raise _WholeError(f"'{name}' ({op.kind}) updates rows of it otherwise")
        touched = {
            name
            for variable in self.variables.values()
            for name in self.graph.consumers[variable.handle]
            if self.graph[name].kind in (*_ROWS, "ReadVariableOp")
        }
        for name in sorted(self._shared):
            behind = self.graph.data_ancestors([name])
            if found := sorted(behind & touched):
                raise _WholeError(f"its update reads '{name}', which is computed from '{found[0]}'")

    def _refuse_taken_names(self, split: RowSplit) -> None:
        own = [*split.copied, *(op for v in split.variables for op in (v.name, v.handle))]
        for name in own:
            if part_of(name, 0) in self.graph:
                raise _WholeError(f"the graph has an op called '{part_of(name, 0)}'")


def _joined(cuts: Iterator[Cut] | Sequence[Cut]) -> list[Cut]:
    """Each gradient once, with all that reads it in any step."""
    found: dict[RawGradient, Cut] = {}
    for cut in cuts:
        known = found.get(cut.gradient)
        readers = (*(known.consumers if known else ()), *cut.consumers)
        found[cut.gradient] = Cut(cut.gradient, tuple(dict.fromkeys(readers)))
    return list(found.values())
