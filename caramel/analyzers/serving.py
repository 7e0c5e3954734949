"""With parameter servers: what of a step is done once, where, and what does each worker do?

What depends on the examples is done by each worker (`ReplicaState.worker_dependent`); what reads
aggregated gradients, or writes a variable that lives on a server, is done once. Everything else
(constants, a learning rate's schedule) is done wherever it is needed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property

from caramel.analyzers.frames import outermost
from caramel.core import op_types
from caramel.core.consequences import Place, Reading, Remote, Serving, Written
from caramel.core.errors import UnsupportedOpError
from caramel.core.facts import LoopFrames, ReplicaState, StateAccess, TrainingJob
from caramel.core.graph import OpGraph
from caramel.core.names import TensorRef
from caramel.core.plan import Plan
from caramel.core.variable_access import handle_of

_ROWS = frozenset({"ResourceGather", "ResourceGatherNd"})
"""Ops that read some rows of a variable."""
_WITHOUT_VALUE = op_types.NO_VALUE_OF_VARIABLES - {"VariableShape"}
_NOTHING: frozenset[str] = frozenset()


def serving(
    plan: Plan,
    graph: OpGraph,
    job: TrainingJob,
    access: StateAccess,
    frames: LoopFrames,
    state: ReplicaState,
) -> Serving:
    """What is done once, and what by each worker; nothing is done once without servers.

    Args:
        plan: says which variables are on which server.
        graph: the single-device graph, ordered.

    Raises:
        UnsupportedOpError: a worker would need in the step what is computed once in it.
    """
    if not plan.job.servers:
        return Serving()
    return ServedStep(plan, graph, job, access, frames, state).serving()


class ServedStep:
    """A step with parameter servers: what of it is done once, and what by each worker.

    Args: as for `serving`.
    """

    def __init__(
        self,
        plan: Plan,
        graph: OpGraph,
        job: TrainingJob,
        access: StateAccess,
        frames: LoopFrames,
        state: ReplicaState,
    ) -> None:
        self._plan, self._graph, self._access, self._frames = plan, graph, access, frames
        self._served, self._depends = plan.job.served, state.worker_dependent
        # Of agents that only infer, a step is what its results wait for.
        self._trained = graph.ancestors([plan.job.train_op])
        self._step = self._trained | graph.ancestors([plan.job.loss])
        # But they have the variables that training writes, which can be read and restored.
        variables = {variable.handle for variable in plan.job.variables}
        self._left_out = graph.ancestors([job.train_op]) - self._step - variables
        self._handles = {v.handle: v.name for v in plan.job.variables if v.name in plan.job.served}
        self._initial = {v.initializer for v in plan.job.variables}
        self._reads = frozenset(v.read for v in plan.job.variables)
        self._cut = {
            (tensor, consumer)
            for gradient in plan.job.gradients
            for tensor in (gradient.values, gradient.indices)
            if tensor is not None
            for consumer in gradient.consumers
        }

    def serving(self) -> Serving:
        """What the rewrite has to know.

        Raises:
            UnsupportedOpError: a worker would need in the step what is computed once in it.
        """
        once, absent = self._done_once, self._absent
        remote = tuple(self._remote())
        return Serving(
            once=tuple(name for name in self._graph.ops if name in once),
            places=tuple(Place(name, server) for name, server in self._servers.items()),
            touching=tuple(Place(name, server) for name, server in self._touching.items()),
            results=tuple(self._results),
            worker_results=tuple(self._worker_results()),
            absent=tuple(name for name in self._graph.ops if name in absent),
            readings=tuple(self._readings({each.op for each in remote})),
            remote=remote,
            written=tuple(Written(variable, tuple(ops)) for variable, ops in self._writers.items()),
        )

    # Who does what

    @cached_property
    def _of_workers(self) -> frozenset[str]:
        """Ops that depend on the examples, or write a variable that each worker has."""
        own = {
            name
            for name, written in self._access.writes.items()
            if name in self._step and not written <= self._served
        }
        return self._depends | own

    @cached_property
    def _writers(self) -> Mapping[str, list[str]]:
        """The ops of the step that write each variable on a server."""
        found: dict[str, list[str]] = {}
        for name in self._graph.ops:
            if name not in self._step or name in self._of_workers:
                continue
            for variable in sorted(self._access.writes.get(name, _NOTHING) & self._served):
                found.setdefault(variable, []).append(name)
        return found

    @cached_property
    def _updating(self) -> frozenset[str]:
        """What reads aggregated gradients or writes variables on servers, and all behind it."""
        roots = {consumer for _, consumer in self._cut}
        roots |= {name for ops in self._writers.values() for name in ops}
        return frozenset(self._behind(roots - self._of_workers, control=True))

    @cached_property
    def _updated(self) -> frozenset[str]:
        """Ops whose values there are only where the updates are."""
        roots = {consumer for _, consumer in self._cut} - self._of_workers
        roots |= {name for ops in self._writers.values() for name in ops}
        for variable, writers in self._writers.items():
            behind = self._descendants(writers)
            for name, read in self._access.reads.items():
                if variable in read and name in behind and name in self._step:
                    if name in self._of_workers:
                        raise self._needed(name, f"variable '{variable}' as '{writers[0]}' left it")
                    roots.add(name)
        found = self._behind(roots, control=False)
        for name in sorted(self._step & self._of_workers):
            for tensor in self._graph[name].inputs:
                if tensor.op in found and (tensor, name) not in self._cut:
                    raise self._needed(name, f"'{tensor}', which is computed once, from updates")
        return frozenset(found)

    def _needed(self, name: str, what: str) -> UnsupportedOpError:
        return UnsupportedOpError(
            f"'{name}' ({self._graph[name].kind}) depends on a worker's examples and reads {what} "
            "in the same step; with parameter servers workers read variables before a step's "
            "updates only. Do it in a call of its own, or in the next step, or train with ARModel"
        )

    def _behind(self, roots: Iterable[str], *, control: bool, of_workers: bool = False) -> set[str]:
        """Ops, and what is computed from them, but for what each worker does.

        Args:
            control: whether what waits for them by control edges counts, too.
            of_workers: whether what each worker does counts, too.
        """
        found = set(roots)
        waiting = list(found)
        while waiting:
            name = waiting.pop()
            for consumer in self._graph.consumers[name]:
                if consumer in found or (consumer in self._of_workers and not of_workers):
                    continue
                if control or any(t.op == name for t in self._graph[consumer].inputs):
                    found.add(consumer)
                    waiting.append(consumer)
        return found

    def _descendants(self, roots: Iterable[str]) -> set[str]:
        """Everything that waits for ops, without them."""
        found: set[str] = set()
        waiting = list(roots)
        while waiting:
            for consumer in self._graph.consumers[waiting.pop()]:
                if consumer not in found:
                    found.add(consumer)
                    waiting.append(consumer)
        return found

    # What is done once

    @cached_property
    def _results(self) -> list[str]:
        """What a step runs once."""
        own = self._updating & self._trained
        return [
            name
            for name in self._graph.ops
            if name in own and not any(c in own for c in self._graph.consumers[name])
        ]

    @cached_property
    def _done_once(self) -> set[str]:
        """All that is done once in a step, or can be fetched of that, and what it is made of.

        So that pulls find them, the handles of all variables on servers belong to it.
        """
        found = set(self._handles)
        waiting = [name for name in self._graph.ops if name in self._updating]
        while waiting:
            name = waiting.pop()
            if name in found or name in self._of_workers:
                continue
            found.add(name)
            op = self._graph[name]
            waiting.extend(t.op for t in op.inputs if (t, name) not in self._cut)
            waiting.extend(op.control_inputs)
        return found

    @cached_property
    def _touching(self) -> Mapping[str, int]:
        """The server of each op that touches a variable there, of the whole graph."""
        owner = self._plan.decision.server_of
        touched = ((name, self._touched(name)) for name in self._graph.ops)
        return {name: min(owner[v] for v in variables) for name, variables in touched if variables}

    @cached_property
    def _servers(self) -> Mapping[str, int]:
        """The server of each op that is done once: of its variable, else of what it reads."""
        owner, once = self._plan.decision.server_of, self._done_once
        found = {name: server for name, server in self._touching.items() if name in once}
        for gradient in self._plan.job.gradients:
            for consumer in gradient.consumers:
                found.setdefault(consumer, owner[gradient.parameter])
        order = [name for name in self._graph.topological_order() if name in once]
        for name in order:
            if name not in found:
                homes = {found[source] for source in self._graph[name].sources if source in found}
                if homes:
                    found[name] = min(homes) if len(homes) == 1 else 0
        # What reads nothing that is on a server, such as constants, goes where it is read first.
        for name in reversed(order):
            if name not in found:
                readers = [c for c in self._graph.consumers[name] if c in found]
                found[name] = found[readers[0]] if readers else 0
        return {name: found[name] for name in self._graph.ops if name in once}

    def _touched(self, name: str) -> list[str]:
        """The variables on servers whose handles an op takes or puts out."""
        if name in self._handles:
            return [self._handles[name]]
        handles = (handle_of(self._graph, tensor) for tensor in self._graph[name].inputs)
        return [self._handles[handle] for handle in handles if handle in self._handles]

    # What workers do

    @cached_property
    def _absent(self) -> set[str]:
        """What replicas lack: updates, what is computed from them, what only those need."""
        found = set(self._updated) | self._behind(self._left_out, control=False, of_workers=True)
        waiting = [s for name in found for s in self._graph[name].sources]
        while waiting:
            name = waiting.pop()
            if name in found or name in self._of_workers or name in self._handles:
                continue
            readers = self._graph.consumers[name]
            if self._graph[name].kind in op_types.PLACEHOLDERS:  # what is fed is fed to all
                continue
            if name in self._done_once and all(reader in found for reader in readers):
                found.add(name)
                waiting.extend(self._graph[name].sources)
        return found - {self._plan.job.loss}

    @cached_property
    def of_worker(self) -> set[str]:
        """All that a step does on each worker."""
        found: set[str] = set()
        waiting = [*self._worker_results(), self._plan.job.loss]
        while waiting:
            name = waiting.pop()
            if name not in found and name not in self._absent:
                found.add(name)
                waiting.extend(self._graph[name].sources)
        return found

    def _worker_results(self) -> Iterator[str]:
        """What a step runs on each worker: what of it nothing else there waits for."""
        own = self._trained & self._of_workers
        for name in self._graph.ops:
            if name in own and not any(
                c in own and not self._is_cut(name, c) for c in self._graph.consumers[name]
            ):
                yield name

    def _is_cut(self, name: str, consumer: str) -> bool:
        """Whether an op reads nothing of another one but raw gradients, in place of which it reads
        aggregated ones."""
        op = self._graph[consumer]
        read = [tensor for tensor in op.inputs if tensor.op == name]
        is_read = any((tensor, consumer) not in self._cut for tensor in read)
        return not is_read and name not in op.control_inputs

    def _remote(self) -> Iterator[Remote]:
        """Ops that read rows of variables of which workers read nothing but rows."""
        rows: dict[str, list[str]] = {}
        whole: set[str] = set()
        for name, read in self._access.reads.items():
            if name in self._absent or name in self._reads or name in self._initial:
                continue
            op = self._graph[name]
            is_direct = op.kind in _ROWS and op.inputs[0].op in self._handles
            for variable in read & self._served:
                if is_direct and not self._frames.frame.get(name, ""):
                    rows.setdefault(variable, []).append(name)
                elif name in self._step:
                    whole.add(variable)
        for variable, ops in rows.items():
            if variable not in whole:
                yield from (Remote(name, variable, name in self.of_worker) for name in ops)

    def _readings(self, remote: Collection[str]) -> Iterator[Reading]:
        """The variables whose values workers have to have, and what waits for them."""
        waiting: dict[str, dict[str, None]] = {}
        readers: dict[str, list[str]] = {}  # of a step
        for name in self._graph.ops:
            if name in self._absent or name in self._initial or name in remote:
                continue
            op = self._graph[name]
            if op.kind in op_types.PASS_THROUGH | _WITHOUT_VALUE or name in self._handles:
                continue
            for variable in self._touched(name):
                outer = outermost(self._graph, self._frames, name, self._taken(name, variable))
                waiting.setdefault(variable, {})[outer] = None
                if name in self.of_worker:
                    readers.setdefault(variable, []).append(name)
        for variable, ops in waiting.items():
            own = readers.get(variable, [])
            yield Reading(variable, tuple(ops), bool(own), self._ended(own))

    def _ended(self, readers: Sequence[str]) -> tuple[str, ...] | None:
        """The ops, if what waits for them by control edges waits until they have read."""
        # What waits for a function's call may go on before the function's ops have run.
        plain = all(
            self._graph[name].kind == "ReadVariableOp" and not self._frames.frame.get(name, "")
            for name in readers
        )
        return tuple(readers) if plain else None

    def _taken(self, name: str, variable: str) -> TensorRef:
        """As which tensor an op takes the handle of a variable."""
        return next(
            tensor
            for tensor in self._graph[name].inputs
            if self._handles.get(handle_of(self._graph, tensor)) == variable
        )
