"""Parameters that are split by rows, so that several servers have a part of each.

A part is a parameter by itself. What belongs to a parameter element by element (its slots) is split
in the same way.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Any

from caramel.core.facts import Cut, RawGradient, Variable
from caramel.core.names import TensorRef, part_of, tensor_part, whole_tensor


@dataclass(frozen=True)
class RowSplit:
    """How one parameter is split.

    Attributes:
        variables: the parameter, and then what else is split with it; of one shape.
        rows: how many rows each part has, in their order.
        copied: ops of which there is one for each part: updates, and what they are computed from.
        cuts: the raw gradients of the parameter in all steps, and what reads them aggregated.
        by_row: those of the copied ops that work on the rows of a sparse gradient.
    """

    variables: tuple[Variable, ...]
    rows: tuple[int, ...]
    copied: tuple[str, ...] = ()
    cuts: tuple[Cut, ...] = ()
    by_row: frozenset[str] = frozenset()

    @property
    def parameter(self) -> Variable:
        """What is split."""
        return self.variables[0]

    @cached_property
    def starts(self) -> tuple[int, ...]:
        """The first row of each part."""
        return tuple(begin for begin, _ in pairwise(accumulate(self.rows, initial=0)))

    def parts(self, variable: Variable) -> tuple[Variable, ...]:
        """The parts of one of the variables, which are variables themselves."""
        _, *others = variable.spec.shape or (None,)
        return tuple(
            dataclasses.replace(
                variable,
                name=part_of(variable.name, number),
                handle=part_of(variable.handle, number),
                initializer=part_of(variable.initializer, number),
                read=part_of(variable.read, number),
                spec=dataclasses.replace(variable.spec, shape=(rows, *others)),
                full_name=part_of(variable.name, number),
            )
            for number, rows in enumerate(self.rows)
        )

    def gradients(self, whole: RawGradient) -> tuple[RawGradient, ...]:
        """The gradient of each part."""
        return tuple(
            RawGradient(
                part_of(self.parameter.name, number),
                tensor_part(self.parameter.name, whole.values, number),
                whole.indices and tensor_part(self.parameter.name, whole.indices, number),
            )
            for number in range(len(self.rows))
        )

    @cached_property
    def aggregated(self) -> Mapping[TensorRef, TensorRef]:
        """Where the aggregated value of each dense raw gradient is, whole.

        What read rows of a sparse one could tell whether rows of equal number were added up.
        """
        name, gradients = self.parameter.name, [cut.gradient for cut in self.cuts]
        return {g.values: whole_tensor(name, g.values) for g in gradients if g.indices is None}


@dataclass(frozen=True)
class RowSplits:
    """Which parameters are split, and why others are not that should be.

    Attributes:
        splits: in the order of the variables.
        reasons: by the name of each that stays whole.
    """

    splits: tuple[RowSplit, ...] = ()
    reasons: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def of(self) -> Mapping[str, RowSplit]:
        """By the name of each variable that is split, how."""
        return {v.name: split for split in self.splits for v in split.variables}

    @cached_property
    def aggregated(self) -> Mapping[TensorRef, TensorRef]:
        """Where the aggregated value of each dense raw gradient is that is split, whole."""
        return {t: w for split in self.splits for t, w in split.aggregated.items()}

    def parts(self, variable: Variable) -> tuple[Variable, ...]:
        """The parts of a variable: itself if it is whole."""
        split = self.of.get(variable.name)
        return (variable,) if split is None else split.parts(variable)

    def slices(self, variable: Variable, value: Any) -> Iterator[tuple[Variable, Any]]:
        """The parts of a variable, each with its rows of a value."""
        split = self.of.get(variable.name)
        if split is None:
            yield variable, value
            return
        for part, start, rows in zip(split.parts(variable), split.starts, split.rows, strict=True):
            yield part, value[start : start + rows]
