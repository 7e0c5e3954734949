"""Where does differentiation end and post-processing begin?

The raw gradients are found from structure alone. In the tail of a step (`regions`), aggregation has
to separate everything that depends on the worker from the updates, at tensors that have the shape
of the parameter they update, with as few bytes as possible, and as early as possible so that
nothing is post-processed before it: the minimum vertex cut nearest to differentiation. It is
accepted only if all of the tail before it is linear, since only then is the gradient of the whole
batch the mean of the workers'.
"""

from __future__ import annotations

import networkx as nx

from caramel import kinds
from caramel.analyzers.branches import predicates_around
from caramel.analyzers.calls import ADVICE, refuse_gradients_of_functions
from caramel.analyzers.regions import Regions, regions_of
from caramel.errors import AmbiguousGradientError
from caramel.facts import (
    Cut,
    GradientFrontier,
    LoopFrames,
    RawGradient,
    StateAccess,
    TrainingJob,
    Variable,
    WorkerInputs,
)
from caramel.graph import OpGraph, TensorSpec
from caramel.names import TensorRef


def gradient_frontier(
    graph: OpGraph,
    job: TrainingJob,
    access: StateAccess,
    inputs: WorkerInputs,
    frames: LoopFrames,
) -> GradientFrontier:
    """The raw gradient of every parameter, and who must see its aggregated value.

    Raises:
        AmbiguousGradientError: the structure does not tell, and `gradients=` was not given.
    """
    regions = regions_of(graph, job, access, inputs)
    if job.given_gradients:
        gradients = list(job.given_gradients)
        _refuse_gradients_in_loops(graph, frames, gradients)
    else:
        refuse_gradients_of_functions(graph, job, access, regions.forward, regions.sinks)
        gradients = _Search(graph, job, access, frames, regions).gradients()
    cuts = _cuts(graph, gradients)
    found = {gradient.parameter for gradient in gradients}
    updated = {name for sink in regions.sinks for name in access.writes[sink]}
    untouched = [v.name for v in job.variables if v.trainable and v.name in updated - found]
    return GradientFrontier(tuple(cuts), tuple(untouched))


def _refuse_gradients_in_loops(
    graph: OpGraph, frames: LoopFrames, gradients: list[RawGradient]
) -> None:
    predicates = predicates_around(graph)
    for gradient in gradients:
        for tensor in gradient.tensors:
            if frames.frame[tensor.op] or predicates[tensor.op]:
                raise AmbiguousGradientError(
                    f"gradients: '{tensor}', given as the gradient of '{gradient.parameter}', is "
                    "inside a loop or a conditional; name the tensor that comes out of it"
                )


def _cuts(graph: OpGraph, gradients: list[RawGradient]) -> list[Cut]:
    """Each gradient with the ops that read it outside differentiation."""
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
        cuts.append(Cut(gradient, consumers, merge))
    return cuts


_SUMMING = frozenset({"UnsortedSegmentSum", *kinds.SPARSE_UPDATES})
_SCALING = frozenset({"Cast", "Identity", "Mul", "Neg", "RealDiv"})


def _only_summed(graph: OpGraph, values: TensorRef, inside: set[str]) -> bool:
    """Whether rows of equal index are added up before anything but scaling happens to them."""
    for name in graph.consumers[values.op]:
        op = graph[name]
        if values not in op.inputs or name in inside or op.kind in kinds.SHAPE_ONLY:
            continue
        if op.kind in _SUMMING:
            continue
        scales = op.kind in _SCALING and all(
            _only_summed(graph, TensorRef(name, index), inside) for index in range(len(op.outputs))
        )
        if not scales:
            return False
    return True


# Search -----------------------------------------------------------------------------------------


class _Search:
    """Finds the cut in the tail; see the module's docstring."""

    def __init__(
        self,
        graph: OpGraph,
        job: TrainingJob,
        access: StateAccess,
        frames: LoopFrames,
        regions: Regions,
    ) -> None:
        self._graph, self._job, self._regions = graph, job, regions
        self._access, self._frames = access, frames
        self._predicates = predicates_around(graph)
        self._owners: dict[TensorRef, set[str]] = {}  # candidates: whose gradient they may be
        self._index_owners: dict[TensorRef, set[str]] = {}  # candidates as row numbers
        self._cost: dict[TensorRef, int] = {}

    def gradients(self) -> list[RawGradient]:
        """The raw gradients, in the order of the variables.

        Raises:
            AmbiguousGradientError: no acceptable cut.
        """
        for sink in self._regions.sinks:
            for parameter in self._parameters_behind(sink):
                self._collect_candidates(sink, self._job.variable(parameter))
        cut = self._minimum_cut()
        for tensor in cut:
            self._check_linear(tensor)
        return self._pair(cut)

    # Candidates

    def _parameters_behind(self, sink: str) -> list[str]:
        """The parameters that an update serves: what it writes itself, or else by way of slots."""
        written = sorted(self._access.writes[sink])
        own = [name for name in written if name in self._regions.serves.get(name, ())]
        return own or sorted({p for name in written for p in self._regions.serves.get(name, ())})

    def _collect_candidates(self, sink: str, variable: Variable) -> None:
        """Tensors on paths to an update along which the variable's shape is kept."""
        sparse = self._is_sparse(sink)
        waiting = [(tensor, False) for tensor in self._graph[sink].inputs]
        waiting += [(tensor, True) for tensor in self._graph[sink].inputs] if sparse else []
        seen = set()
        while waiting:
            tensor, as_index = waiting.pop()
            if (tensor, as_index) in seen or not self._is_between(tensor):
                continue
            seen.add((tensor, as_index))
            spec = self._graph.spec(tensor)
            cost = _index_cost(spec, variable) if as_index else _cost(spec, variable, sparse)
            if cost is None:
                continue
            if self._exists_everywhere(tensor):
                owners = self._index_owners if as_index else self._owners
                owners.setdefault(tensor, set()).add(variable.name)
                cost += _UNCERTAIN if self._predicates[tensor.op] else 0
                self._cost[tensor] = min(cost, self._cost.get(tensor, cost))
            if tensor.op in self._regions.tail:
                waiting += [(t, as_index) for t in self._graph[tensor.op].inputs]

    def _exists_everywhere(self, tensor: TensorRef) -> bool:
        """Whether all workers have a value of the tensor whenever one of them has."""
        if self._frames.frame[tensor.op] or self._graph[tensor.op].kind == "Switch":
            return False
        return not self._predicates[tensor.op] & self._regions.differing

    def _is_sparse(self, sink: str) -> bool:
        kind = self._graph[sink].kind
        return kind in kinds.SPARSE_UPDATES or kind.startswith(kinds.SPARSE_UPDATE_PREFIX)

    def _is_between(self, tensor: TensorRef) -> bool:
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
                if self._is_between(tensor) and not self._bypasses_candidates(tensor):
                    network.add_edge("start", (tensor, "read"))
                    self._connect(network, tensor)
        if network.number_of_edges() == 0:
            return []
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

    # Acceptance

    def _check_linear(self, cut: TensorRef) -> None:
        """Raise unless everything between differentiation and the cut is linear."""
        self._check_no_scaled_gradient(cut)
        waiting, seen = [cut.op], set()
        while waiting:
            name = waiting.pop()
            if name in seen or name not in self._regions.tail:
                continue
            seen.add(name)
            op = self._graph[name]
            if op.kind not in kinds.CONSTANTS:
                self._check_op_is_linear(name, cut)
                waiting += [t.op for t in op.inputs if not _is_integer(self._graph.spec(t))]

    def _check_op_is_linear(self, name: str, cut: TensorRef) -> None:
        op, graph = self._graph[name], self._graph
        if all(_is_integer(spec) for spec in op.outputs):
            return
        values = [t for t in op.inputs if not _is_integer(graph.spec(t))]
        differing = [t for t in values if t.op in self._regions.by_value]
        linear = op.kind in kinds.LINEAR or (
            op.kind in kinds.BILINEAR
            and len(differing) <= 1
            and not any(
                op.inputs[position].op in self._regions.by_value
                for position in kinds.NOT_LINEAR_IN.get(op.kind, ())
            )
        )
        if not linear:
            raise AmbiguousGradientError(
                f"cannot tell where the gradient ends that reaches '{cut}': '{name}' ({op.kind}) "
                f"lies between differentiation and it and is not linear; {ADVICE}"
            )
        adds = op.kind in ("Add", "AddN", "AddV2", "AccumulateNV2", "Sub")
        if self._job.reduction == "sum" and adds and len(differing) < len(values):
            raise AmbiguousGradientError(
                f"'{name}' adds something to a gradient that does not depend on the examples (a "
                "weight decay in the loss?); with loss_reduction='sum' it would count once for "
                "every worker. Use the mean over the examples as loss, or apply the decay to the "
                "gradients after differentiation"
            )

    def _check_no_scaled_gradient(self, cut: TensorRef) -> None:
        """Raise if the cut is a product of a gradient of its own shape and a local value.

        ``gradient * loss`` looks like differentiation, and may be post-processing as well.
        """
        op = self._graph[cut.op]
        if op.kind not in kinds.ELEMENTWISE_PRODUCTS:
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
            raise AmbiguousGradientError(
                f"cannot tell whether '{gradient[0]}' or '{cut}' is the raw gradient: the second "
                f"is the first times '{local[0]}', which differs between workers; {ADVICE}"
            )

    def _is_product_rule(self, cut: TensorRef, gradient: TensorRef, local: TensorRef) -> bool:
        """Whether the forward pass multiplies the parameter by `local`, as batch norm does.

        Then differentiation multiplies by it once; a gradient that has been is another matter.
        """
        graph = self._graph
        if local in graph[gradient.op].inputs:
            return False
        return any(
            graph[name].kind in kinds.ELEMENTWISE_PRODUCTS
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
            raise AmbiguousGradientError(
                f"several tensors may be the gradient of the same variable, '{unmatched[0]}' among "
                f"them (candidates: {sorted(owners[unmatched[0]])}); if the step updates it twice, "
                f"minimise the sum of the losses; else {ADVICE}"
            )
        return {matching["tensor", tensor][1]: tensor for tensor in cut}


def _is_integer(spec: TensorSpec) -> bool:
    return spec.dtype.startswith(("int", "uint", "bool"))


_UNCERTAIN = 1 << 60  # more than any sum of sizes


def _cost(spec: TensorSpec, variable: Variable, sparse: bool) -> int | None:
    """Bytes that aggregating a tensor as the variable's gradient takes; None: it cannot be that.

    The variable's size stands for the tensor's, of whose shape not everything may be known. Such a
    tensor is taken only where there is no other way: a dimension that is open may be the batch's.
    """
    wanted = variable.spec
    if spec.dtype != wanted.dtype or wanted.shape is None:
        return None
    cost = 2 + (wanted.bytes or 0)
    if spec.shape is None:
        return cost + _UNCERTAIN
    if len(spec.shape) != len(wanted.shape):
        return None
    begin = 1 if sparse else 0
    pairs = list(zip(spec.shape[begin:], wanted.shape[begin:], strict=True))
    if any(given not in (None, expected) for given, expected in pairs):
        return None
    return cost + _UNCERTAIN if any(given is None for given, _ in pairs) else cost


def _index_cost(spec: TensorSpec, variable: Variable) -> int | None:
    """The same for the row numbers of a sparse gradient, one for each row of the variable."""
    if spec.dtype not in ("int32", "int64") or not variable.spec.shape:
        return None
    if spec.shape is not None and len(spec.shape) != 1:
        return None
    return 8 * (variable.spec.shape[0] or 1) + 1
