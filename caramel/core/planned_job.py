"""What a plan is for: a training step, its raw gradients, and the workers that do it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from caramel.core.dtypes import dtype_bytes
from caramel.core.errors import PlanError
from caramel.core.facts import MEAN, SUM, Factors, Pipeline, Reduction, Variable, Weight
from caramel.core.graph import TensorSpec
from caramel.core.names import TensorRef, server_place

SparseMethod = Literal["gather", "dense"]


@dataclass(frozen=True, slots=True)
class SharedInput:
    """An op reads a tensor that is the same on every worker, and adds it to what is not."""

    op: str
    tensor: TensorRef


@dataclass(frozen=True, slots=True)
class AggregatedGradient:
    """One raw gradient that is aggregated.

    Attributes:
        parameter: the parameter it belongs to; no two gradients have the same.
        values: the tensor of the single-device graph.
        indices: its row numbers if it is sparse, else None.
        index_dtype: their dtype.
        spec: dtype and shape of what is aggregated, whole: those of the parameter, or of one row
            that is repeated for all of its rows.
        consumers: ops of the single-device graph that read the aggregated value instead.
        merge_duplicates: add up rows of equal index before sending (sparse only).
        factors: what it can be computed from on other workers, too; None if it cannot.
        weight: how much each worker's counts: "mean", "sum", or the name of one of the job's
            weights; as the job's reduction says if it is empty.
        shared: what has been added to it although it is the same on every worker, and is to count
            once.
    """

    parameter: str
    values: TensorRef
    spec: TensorSpec
    consumers: tuple[str, ...]
    indices: TensorRef | None = None
    index_dtype: str = "int32"
    merge_duplicates: bool = False
    factors: Factors | None = None
    weight: str = ""
    shared: tuple[SharedInput, ...] = ()

    @property
    def elements(self) -> int:
        """Number of elements of what is aggregated, whole."""
        return math.prod(d for d in self.spec.shape or () if d is not None)

    @property
    def bytes(self) -> int:
        """Its size in bytes; 0 if its elements have no fixed size."""
        return self.elements * (dtype_bytes(self.spec.dtype) or 0)


@dataclass(frozen=True)
class PlannedJob:
    """What is planned: a training step, the workers that do it, and what a plan must know of it.

    Attributes:
        devices: where the replica of each worker is.
        servers: the devices of the parameter servers; none where each worker has all variables.
        reduction: whether gradients are averaged or added up, but for those with a weight.
        variables: all variables of the graph.
        gradients: what is aggregated.
        weights: how much what a worker computed may count, besides "mean" and "sum".
        local: names of variables that may differ between workers.
        summed: those of them whose values are added up where one is asked for; others are averaged.
        generators: names of variables that hold a random generator's state.
        seeds: names of variables that hold the seed of stateless random ops.
        constant: names of variables whose initial value each worker makes itself, from constants;
            the others' are made once and broadcast.
        pipelines: where input pipelines are sharded.
        examples: the tensor whose first dimension is a worker's number of examples, or None if the
            client decides how many examples each worker gets.
        train_op: the op that a step runs.
        loss: the op that puts out the loss.
        marks: whether a step leaves marks on each worker when a group is ready and when it has
            arrived, so that the client can tell what a step waits for. The user says so.
    """

    devices: tuple[str, ...]
    reduction: Reduction
    variables: tuple[Variable, ...]
    gradients: tuple[AggregatedGradient, ...]
    weights: tuple[Weight, ...] = ()
    local: frozenset[str] = frozenset()
    summed: frozenset[str] = frozenset()
    generators: frozenset[str] = frozenset()
    seeds: frozenset[str] = frozenset()
    constant: frozenset[str] = frozenset()
    pipelines: tuple[Pipeline, ...] = ()
    examples: TensorRef | None = None
    train_op: str = ""
    loss: str = ""
    marks: bool = False
    servers: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.devices:
            raise PlanError("a plan needs at least one worker")

    @cached_property
    def drawing(self) -> frozenset[str]:
        """Names of variables from which each worker draws otherwise."""
        return self.generators | self.seeds

    @cached_property
    def variable_of_handle(self) -> Mapping[str, Variable]:
        """Each variable by the op of its handle."""
        return {variable.handle: variable for variable in self.variables}

    @cached_property
    def variable_of(self) -> Mapping[str, Variable]:
        """Each variable by its name."""
        return {variable.name: variable for variable in self.variables}

    @cached_property
    def served(self) -> frozenset[str]:
        """Names of the variables that live on parameter servers, where there are any.

        All do that are the same for all workers.
        """
        if not self.servers:
            return frozenset()
        own = {*self.local, *self.summed, *self.drawing}
        return frozenset(v.name for v in self.variables if v.name not in own)

    @cached_property
    def places(self) -> Mapping[int, str]:
        """The device of each place (`names.server_place`)."""
        servers = {server_place(number): device for number, device in enumerate(self.servers)}
        return {**dict(enumerate(self.devices)), **servers}

    @cached_property
    def gradient_of(self) -> Mapping[str, AggregatedGradient]:
        """The gradient of each parameter that has one."""
        return {gradient.parameter: gradient for gradient in self.gradients}

    @cached_property
    def weight_of(self) -> Mapping[str, Weight]:
        """All weights by name."""
        return {weight.name: weight for weight in (*self.weights, MEAN, SUM)}
