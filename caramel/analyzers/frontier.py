"""Where does differentiation end and post-processing begin?

The raw gradients are found from structure alone. In the tail of a step (`regions`), aggregation has
to separate everything that depends on the worker from the updates, at tensors that have the shape
of the parameter they update, with as few bytes as possible, and as early as possible so that
nothing is post-processed before it: the minimum vertex cut nearest to differentiation. It is
accepted only if all of the tail before it is linear, since only then is the gradient of the whole
batch the mean of the workers'. Where it is not, because differentiation itself computes something
that is not linear behind the last forward value that it reads, the seed tells more (`seeds`): the
cut is looked for again among the tensors that are linear in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import networkx as nx

from caramel import kinds
from caramel.analyzers.branches import predicates_around
from caramel.analyzers.calls import ADVICE, refuse_gradients_of_functions
from caramel.analyzers.regions import Regions, regions_of
from caramel.analyzers.seeds import not_linear, regions_by_seeds
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
    if not {gradient.parameter for gradient in gradients}.issuperset(trained):
        refuse_gradients_of_functions(graph, job, access, regions.forward, regions.sinks)
        gradients += _found(graph, job, access, frames, regions)
    cuts = _cuts(graph, _in_order(job, gradients))
    found = {gradient.parameter for gradient in gradients}
    untouched = [name for name in trained if name not in found]
    return GradientFrontier(tuple(cuts), tuple(untouched))


def _found(
    graph: OpGraph,
    job: TrainingJob,
    access: StateAccess,
    frames: LoopFrames,
    regions: Regions,
) -> list[RawGradient]:
    """The raw gradients that were not given, by the first way that finds them."""
    try:
        return _Search(graph, job, access, frames, regions).gradients()
    except AmbiguousGradientError:
        pass
    regions = regions_by_seeds(graph, regions)
    return _Search(graph, job, access, frames, regions, seeded=True).gradients()


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
        *,
        seeded: bool = False,
    ) -> None:
        self._graph, self._job, self._regions = graph, job, regions
        self._seeded = seeded
        self._given = {tensor for gradient in job.given_gradients for tensor in gradient.tensors}
        self._culprits = not_linear(graph, regions) if seeded else {}
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
        given = {gradient.parameter for gradient in self._job.given_gradients}
        for sink in self._regions.sinks:
            for parameter in self._parameters_behind(sink):
                if parameter not in given:
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
        roles = (_VALUES, _ROWS) if sparse else (_DENSE,)
        waiting = [(tensor, role) for tensor in self._graph[sink].inputs for role in roles]
        seen = set()
        while waiting:
            tensor, role = waiting.pop()
            if (tensor, role) in seen or not self._is_between(tensor):
                continue
            seen.add((tensor, role))
            spec = self._graph.spec(tensor)
            if role == _ROWS:
                cost = _index_cost(spec, variable)
            else:
                cost = _cost(spec, variable, role == _VALUES)
            if cost is None:
                continue
            if self._exists_everywhere(tensor) and tensor.op not in self._culprits:
                owners = self._index_owners if role == _ROWS else self._owners
                owners.setdefault(tensor, set()).add(variable.name)
                cost += _UNCERTAIN if self._predicates[tensor.op] else 0
                self._cost[tensor] = min(cost, self._cost.get(tensor, cost))
            if tensor.op in self._regions.tail:
                waiting += self._behind(tensor.op, role)

    def _behind(self, name: str, role: str) -> list[tuple[TensorRef, str]]:
        """What an op of the tail reads, and what it may be of a gradient that has a given role."""
        op = self._graph[name]
        if self._seeded and role == _DENSE and op.kind in _SUMMING:
            return [(op.inputs[0], _VALUES), (op.inputs[1], _ROWS)]
        return [(tensor, role) for tensor in op.inputs]

    def _exists_everywhere(self, tensor: TensorRef) -> bool:
        """Whether all workers have a value of the tensor whenever one of them has."""
        if self._frames.frame[tensor.op] or self._graph[tensor.op].kind == "Switch":
            return False
        return not self._predicates[tensor.op] & self._regions.differing

    def _is_sparse(self, sink: str) -> bool:
        kind = self._graph[sink].kind
        return kind in kinds.SPARSE_UPDATES or kind.startswith(kinds.SPARSE_UPDATE_PREFIX)

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
                elif self._seeded:
                    self._refuse(sink, tensor)
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

    def _refuse(self, sink: str, tensor: TensorRef) -> None:
        """Raise because a value that an update reads is neither a gradient nor computed from some.

        Raises:
            AmbiguousGradientError: names the parameter, its candidates, and what to write.
        """
        parameter = self._job.variable(self._parameters_behind(sink)[0])
        alike = self._alike(tensor, parameter)
        linear = [each for each in alike if each.op not in self._culprits]
        why = f"'{tensor}', which '{sink}' reads, differs between workers in another way, too"
        if culprit := self._culprits.get(tensor.op):
            why = f"'{culprit}' ({self._graph[culprit].kind}), before '{sink}', is not linear"
        raise AmbiguousGradientError(
            f"cannot tell what the raw gradient of '{parameter.name}' is: {why}; candidates are "
            f"{_listed(alike)}; {_advice(parameter.name, (linear or alike)[-1:])}"
        )

    def _owner(self, tensor: TensorRef) -> str:
        """A parameter whose gradient a candidate may be."""
        owners = self._owners.get(tensor) or self._index_owners[tensor]
        return min(owners)

    def _alike(self, tensor: TensorRef, parameter: Variable) -> list[TensorRef]:
        """Tensors of a parameter's dtype and shape that a tensor is computed from, in order."""
        behind = self._graph.data_ancestors([tensor.op], stop=self._regions.forward)
        return [
            TensorRef(name, index)
            for name in self._graph.ops
            if name in behind and (name in self._regions.core or name in self._regions.tail)
            for index, spec in enumerate(self._graph[name].outputs)
            if spec == parameter.spec
        ]

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
                f"cannot tell what the raw gradient of '{self._owner(cut)}' is: '{name}' "
                f"({op.kind}) lies between differentiation and '{cut}' and is not linear; {ADVICE}"
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
            owner = self._owner(cut)
            raise AmbiguousGradientError(
                f"cannot tell whether '{gradient[0]}' or '{cut}' is the raw gradient of '{owner}': "
                f"the second is the first times '{local[0]}', which differs between workers; "
                f"{_advice(owner, gradient)}"
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
            names = owners[unmatched[0]]
            alike = [tensor for tensor in cut if not names.isdisjoint(owners[tensor])]
            raise AmbiguousGradientError(
                f"several tensors may be the gradient of {_quoted(sorted(names))}: "
                f"{_quoted(alike)}; if the step updates it twice, minimise the sum of the losses; "
                f"else {_advice(min(names), alike[:1])}"
            )
        return {matching["tensor", tensor][1]: tensor for tensor in cut}


_MOST_LISTED = 6


def _listed(tensors: list[TensorRef]) -> str:
    """The last few tensors."""
    names = _quoted(tensors[-_MOST_LISTED:]) or "not known"
    return f"..., {names}" if len(tensors) > _MOST_LISTED else names


def _quoted(names: Iterable[object]) -> str:
    return ", ".join(f"'{name}'" for name in names)


def _advice(parameter: str, tensors: list[TensorRef]) -> str:
    """The line to write."""
    if not tensors:
        return ADVICE
    return (
        "name the one that tf.gradients or Optimizer.compute_gradients returned, such as "
        f"Context(..., gradients=[('{tensors[0]}', '{parameter}')])"
    )


def _is_integer(spec: TensorSpec) -> bool:
    return spec.dtype.startswith(("int", "uint", "bool"))


_DENSE, _VALUES, _ROWS = "dense", "values", "rows"
"""What a tensor may be of a gradient: all of it, or values and row numbers of a sparse one."""

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
