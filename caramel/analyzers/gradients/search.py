"""The cheapest tensors that separate differentiation from the updates of the parameters.

Candidates are tensors that may be the gradient of a parameter: by dtype and shape on the way to
its update, and for further reasons that a subclass has. What is looked for is the minimum vertex
cut that is nearest to differentiation.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import networkx as nx

from caramel.analyzers.branches import predicates_around
from caramel.analyzers.gradients.calls import ADVICE
from caramel.analyzers.gradients.regions import Regions
from caramel.analyzers.gradients.roles import ROWS, UNCERTAIN, before, read_by
from caramel.core import op_types
from caramel.core.dtypes import is_integer
from caramel.core.errors import AmbiguousGradientError
from caramel.core.facts import LoopFrames, RawGradient, StateAccess, TrainingJob, Variable
from caramel.core.graph import OpGraph
from caramel.core.names import TensorRef


@dataclass(frozen=True, slots=True)
class Step:
    """A training step, taken apart, with what searches for gradients have to know of it."""

    graph: OpGraph
    job: TrainingJob
    access: StateAccess
    frames: LoopFrames
    regions: Regions


class Search:
    """Finds the cut in the tail, and takes it only if all of the tail before it is linear."""

    def __init__(self, step: Step) -> None:
        self._graph, self._job, self._regions = step.graph, step.job, step.regions
        self._given = {
            tensor for gradient in step.job.given_gradients for tensor in gradient.tensors
        }
        self._access, self._frames = step.access, step.frames
        self._predicates = predicates_around(step.graph)
        self._owners: dict[TensorRef, set[str]] = {}  # candidates: whose gradient they may be
        self._index_owners: dict[TensorRef, set[str]] = {}  # candidates as row numbers
        self._cost: dict[TensorRef, int] = {}

    def gradients(self) -> list[RawGradient]:
        """The raw gradients, in the order of the variables.

        Raises:
            AmbiguousGradientError: no acceptable cut.
        """
        self._collect_all()
        cut = self._minimum_cut()
        for tensor in cut:
            self._check(tensor)
        return self._pair(cut)

    # Candidates

    def _collect_all(self) -> None:
        wanted = {variable.name: variable for variable in self._variables()}
        for sink in self._regions.sinks:
            starts: dict[str, list[tuple[TensorRef, str]]] = {}
            read = read_by(self._graph, self._job, self._access, self._regions.serves, sink)
            for parameter, tensor, role in read:
                if parameter in wanted:
                    starts.setdefault(parameter, []).append((tensor, role))
            for parameter, own in starts.items():
                self._collect_candidates(own, wanted[parameter])

    def _variables(self) -> list[Variable]:
        """The parameters whose gradients are to be found."""
        given = {gradient.parameter for gradient in self._job.given_gradients}
        return [v for v in self._job.variables if v.trainable and v.name not in given]

    def _collect_candidates(
        self, starts: Iterable[tuple[TensorRef, str]], variable: Variable
    ) -> None:
        """Tensors on ways to an update along which the variable's shape is kept."""

        def goes_on(tensor: TensorRef) -> bool:
            # Not into the core: the cut must be behind all forward values.
            return self._is_between(tensor) and tensor.op in self._regions.tail

        for tensor, role, cost in before(self._graph, starts, variable, goes_on):
            if not self._is_between(tensor) or not self._exists_everywhere(tensor):
                continue
            if self._accepts(tensor, role):
                owners = self._index_owners if role == ROWS else self._owners
                owners.setdefault(tensor, set()).add(variable.name)
                # In a conditional: better cut behind it, where the value is there in every step.
                cost += UNCERTAIN if self._predicates[tensor.op] else 0
                self._cost[tensor] = min(cost, self._cost.get(tensor, cost))

    def _accepts(self, tensor: TensorRef, role: str) -> bool:
        """Whether a tensor of the right shape is a candidate."""
        return True

    def _exists_everywhere(self, tensor: TensorRef) -> bool:
        """Whether all workers have a value of the tensor whenever one of them has."""
        # A loop may go round another number of times on each worker.
        if self._frames.frame[tensor.op] or self._graph[tensor.op].kind == "Switch":
            return False
        return not self._predicates[tensor.op] & self._regions.differing

    def _is_between(self, tensor: TensorRef) -> bool:
        if tensor in self._given:
            return False
        return tensor.op in self._regions.core or tensor.op in self._regions.tail

    # The cut

    def _minimum_cut(self) -> list[TensorRef]:
        """The cheapest tensors that separate differentiation from the updates, the earliest such.

        The network runs from the updates back to differentiation, because the library's function
        returns the cut that is nearest to the target.
        """
        network = nx.DiGraph()
        network.add_nodes_from(("start", "end"))
        for sink in self._regions.sinks:
            for tensor in self._graph[sink].inputs:
                if not self._is_between(tensor):
                    continue
                if not self._bypasses_candidates(tensor):
                    network.add_edge("start", (tensor, "read"))
                    self._connect(network, tensor)
                else:
                    self._bypassed(sink, tensor)
        if network.number_of_edges() == 0:
            return []
        # What cannot be cut has edges without capacity, which count as infinite.
        _, (before, _) = nx.minimum_cut(network, "start", "end")
        cut = [t for t in self._cost if (t, "read") in before and (t, "made") not in before]
        position = {name: index for index, name in enumerate(self._graph.ops)}
        return sorted(cut, key=lambda tensor: (position[tensor.op], tensor.index))

    def _connect(self, network: nx.DiGraph, tensor: TensorRef) -> None:
        """Add a tensor and everything before it, back to the core."""
        waiting = [tensor]
        while waiting:
            tensor = waiting.pop()
            if network.has_node((tensor, "made")):
                continue
            if tensor in self._cost:
                network.add_edge((tensor, "read"), (tensor, "made"), capacity=self._cost[tensor])
            else:
                network.add_edge((tensor, "read"), (tensor, "made"))
            if tensor.op in self._regions.core:
                network.add_edge((tensor, "made"), "end")
                continue
            for source in self._graph[tensor.op].inputs:
                if self._is_between(source):
                    network.add_edge((tensor, "made"), (source, "read"))
                    waiting.append(source)

    def _bypasses_candidates(self, tensor: TensorRef) -> bool:
        """Whether a tensor depends on the worker along a path without any candidate.

        Such an input of an update (a learning rate computed from the local loss, say) cannot be
        cut; the check that replicas cannot drift reports it with its path.
        """
        waiting, seen = [tensor], set()
        while waiting:
            tensor = waiting.pop()
            if tensor in seen or tensor in self._cost or not self._is_between(tensor):
                continue
            seen.add(tensor)
            if tensor.op in self._regions.core:
                return True
            waiting.extend(self._graph[tensor.op].inputs)
        return False

    def _bypassed(self, sink: str, tensor: TensorRef) -> None:
        """What to do about such an input."""

    def _owner(self, tensor: TensorRef) -> str:
        """A parameter whose gradient a candidate may be."""
        owners = self._owners.get(tensor) or self._index_owners[tensor]
        return min(owners)

    # Acceptance

    def _check(self, cut: TensorRef) -> None:
        """Raise unless everything between differentiation and the cut is linear.

        Only then is the gradient of the whole batch the mean, or the sum, of the workers'.
        """
        self._check_no_scaled_gradient(cut)
        waiting, seen = [cut.op], set()
        while waiting:
            name = waiting.pop()
            if name in seen or name not in self._regions.tail:
                continue
            seen.add(name)
            op = self._graph[name]
            if op.kind not in op_types.CONSTANTS:
                self._check_op_is_linear(name, cut)
                waiting += [t.op for t in op.inputs if not is_integer(self._graph.spec(t).dtype)]

    def _check_op_is_linear(self, name: str, cut: TensorRef) -> None:
        op, graph = self._graph[name], self._graph
        if all(is_integer(spec.dtype) for spec in op.outputs):
            return
        values = [t for t in op.inputs if not is_integer(graph.spec(t).dtype)]
        # Divisors such as the number of entries differ between workers, but depend on shapes only.
        differing = [t for t in values if t.op in self._regions.by_value]
        linear = op.kind in op_types.LINEAR or (
            op.kind in op_types.BILINEAR
            and len(differing) <= 1
            and not any(
                op.inputs[position].op in self._regions.by_value
                for position in op_types.NOT_LINEAR_IN.get(op.kind, ())
            )
        )
        if not linear:
            raise AmbiguousGradientError(
                f"cannot tell what the raw gradient of '{self._owner(cut)}' is: '{name}' "
                f"({op.kind}) lies between differentiation and '{cut}' and is not linear; {ADVICE}"
            )

    def _check_no_scaled_gradient(self, cut: TensorRef) -> None:
        """Raise if the cut is a product of a gradient of its own shape and a local value.

        ``gradient * loss`` looks like differentiation, and may be post-processing as well.
        """
        op = self._graph[cut.op]
        if op.kind not in op_types.ELEMENTWISE_PRODUCTS:
            return
        regions, shape = self._regions, self._graph.spec(cut).shape
        gradient = [
            t for t in op.inputs if self._is_between(t) and self._graph.spec(t).shape == shape
        ]
        local = [
            t
            for t in op.inputs
            if t.op in regions.differing
            and (t.op in regions.forward or t.op not in regions.by_value)
        ]
        if gradient and local and not self._is_product_rule(cut, gradient[0], local[0]):
            owner = self._owner(cut)
            raise AmbiguousGradientError(
                f"cannot tell whether '{gradient[0]}' or '{cut}' is the raw gradient of '{owner}': "
                f"the second is the first times '{local[0]}', which differs between workers. Make "
                "it of values that are equal on all workers, or, if each worker is to use its own, "
                f"write Context(..., gradients=[('{cut}', '{owner}')])"
            )

    def _is_product_rule(self, cut: TensorRef, gradient: TensorRef, local: TensorRef) -> bool:
        """Whether the forward pass multiplies the parameter by `local`, as batch norm does.

        Then differentiation multiplies by it once; a gradient that has been is another matter.
        """
        graph = self._graph
        if local in graph[gradient.op].inputs:
            return False
        return any(
            graph[name].kind in op_types.ELEMENTWISE_PRODUCTS
            and local in graph[name].inputs
            and any(
                self._access.reads.get(tensor.op, frozenset()) & self._owners[cut]
                for tensor in graph[name].inputs
            )
            for name in graph.consumers[local.op]
            if name in self._regions.forward
        )

    # Pairing

    def _pair(self, cut: list[TensorRef]) -> list[RawGradient]:
        """Which tensor is whose gradient; sparse ones are two, values and row numbers."""
        values = self._match([t for t in cut if t in self._owners], self._owners)
        indices = self._match([t for t in cut if t not in self._owners], self._index_owners)
        homeless = set(indices) - set(values)
        if homeless:
            raise AmbiguousGradientError(
                f"found row numbers but no values of the gradient of {sorted(homeless)}; {ADVICE}"
            )
        return [
            RawGradient(v.name, values[v.name], indices.get(v.name))
            for v in self._job.variables
            if v.name in values
        ]

    def _match(
        self, cut: list[TensorRef], owners: dict[TensorRef, set[str]]
    ) -> dict[str, TensorRef]:
        """A variable of its own for each tensor; clear cases first, in the order of the graph."""
        graph = nx.Graph()
        tensors = [("tensor", tensor) for tensor in cut]
        graph.add_nodes_from(tensors)
        for tensor in cut:
            graph.add_edges_from(
                (("tensor", tensor), ("variable", name)) for name in sorted(owners[tensor])
            )
        matching = nx.bipartite.hopcroft_karp_matching(graph, top_nodes=tensors)
        unmatched = [tensor for tensor in cut if ("tensor", tensor) not in matching]
        if unmatched:
            names = owners[unmatched[0]]
            alike = [tensor for tensor in cut if not names.isdisjoint(owners[tensor])]
            raise AmbiguousGradientError(
                f"several tensors may be the gradient of {quoted(sorted(names))}: "
                f"{quoted(alike)}; if the step updates it twice, minimise the sum of the losses; "
                f"else {advice(min(names), alike[:1])}"
            )
        return {matching["tensor", tensor][1]: tensor for tensor in cut}


_MOST_LISTED = 6


def listed(tensors: list[TensorRef]) -> str:
    """The last few tensors."""
    names = quoted(tensors[-_MOST_LISTED:]) or "not known"
    return f"..., {names}" if len(tensors) > _MOST_LISTED else names


def quoted(names: Iterable[object]) -> str:
    """Names in a sentence."""
    return ", ".join(f"'{name}'" for name in names)


def advice(parameter: str, tensors: list[TensorRef]) -> str:
    """The line to write."""
    if not tensors:
        return ADVICE
    return (
        "name the one that tf.gradients or Optimizer.compute_gradients returned, such as "
        f"Context(..., gradients=[('{tensors[0]}', '{parameter}')])"
    )
