"""Runs parts of the distributed graph on the cluster, each compiled once."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from typing import Any, TypeVar

import numpy as np
import tensorflow as tf

from caramel.cluster.cluster import Cluster
from caramel.cluster.servers import embedded_servers, own_server
from caramel.cluster.tasks import Task
from caramel.core.devices import task_of
from caramel.core.errors import ClusterError, StepTimeoutError, WorkerStartError
from caramel.core.names import TensorRef, in_variant, tensor_in_variant, variant_prefix
from caramel.core.util.progress import working
from caramel.native.check import check_labels
from caramel.native.session import GraphCall, GraphSession, UnreadError, is_forked
from caramel.runtime.execution.calls import DEFAULT, CallOptions, Channel
from caramel.runtime.execution.clocks import clock_graph, compared_clocks
from caramel.runtime.execution.containers import Containers, drop
from caramel.runtime.execution.distributed_graph import DistributedGraph
from caramel.runtime.execution.leases import Leases
from caramel.runtime.execution.leaving import Server, forget
from caramel.runtime.execution.liveness import LOST_AFTER_S
from caramel.runtime.execution.transfer_recorder import Recording

tf1 = tf.compat.v1

_PLACE_S, _PLACE_BYTES_PER_S = 120.0, 1e5  # a large graph may take far longer than a step
_CANCELLING_S = 10.0  # for all workers to give up a call
_CLOSE_TIMEOUT_S = 30.0  # a large session takes some seconds

Call = Callable[[], list[Any]]
Result = TypeVar("Result")


class Runner:
    """A TensorFlow session over a cluster.

    Args:
        graph: the distributed graph; what it has is sent by `extend`.
        devices: devices of the replicas.
        cluster: the workers.
        start_timeout_s: how long to wait for the workers, in seconds.
        call_timeout_s: how long one call may take, in seconds; not for placing the graph.
        lost_after_s: how long a worker may not answer before it counts as lost, in seconds.
        config: options of the session and of servers in this process, such as thread counts.
        containers: where the session has its state; by default new ones.
        looks: whether what clients that are gone have left is looked at before it is removed
            (`clear_left`).

    Attributes:
        cluster: the workers.
        config: options of the session and of servers in this process.
        containers: where the session has its state.
        calls: how many calls were made so far, also such as failed.

    Raises:
        ClusterError: this process cannot drive the cluster.
        WorkerStartError: a worker cannot be reached, or is none of this cluster.
    """

    def __init__(
        self,
        graph: DistributedGraph,
        devices: Sequence[str],
        cluster: Cluster,
        *,
        start_timeout_s: float,
        call_timeout_s: float,
        lost_after_s: float = LOST_AFTER_S,
        config: Any = None,
        containers: Containers | None = None,
        looks: bool = False,
    ) -> None:
        if is_forked():
            raise ClusterError(
                "this process was forked from one that had opened a session, and TensorFlow's "
                "connections do not work in it; start it by multiprocessing's method 'spawn', or "
                "before the first session is opened"
            )
        self._graph, self.cluster, self.config = graph, cluster, config
        self._timeout_s = call_timeout_s
        self._devices = tuple(devices)
        self._tasks = [task_of(device) for device in devices]
        self._different_tasks = list(dict.fromkeys([*self._tasks, *cluster.server_devices]))
        self._sent = 0  # how many parts of the graph
        self._added: list[tuple[bytes, int]] = []  # of this session alone, and not sent yet
        self._calls: dict[Any, GraphCall] = {}
        self._sessions: list[GraphSession] = []  # all that are open
        self._recording: Recording | None = None  # from the first traced calls on
        self._leases: Leases | None = None  # on workers that do not end with this process
        self._greeted: tuple[str, ...] = ()  # devices, as they have told when they were greeted
        self.calls, self.placing_s = 0, 0.0
        self.containers = containers or Containers()
        self._targets = cluster.targets
        self._target = self._connect(start_timeout_s, config)
        self._channel = Channel(cluster, lost_after_s=lost_after_s)
        try:
            self._greet(start_timeout_s)
            self._enter(start_timeout_s, clears=not looks)
            self._session = self._opened(self._config(config))
        except BaseException:
            self._give_up()
            raise

    def available_devices(self, timeout_s: float) -> tuple[str, ...]:
        """Full names of all devices of all workers.

        Args:
            timeout_s: how long the workers may take to tell, in seconds.

        Raises:
            WorkerLostError, StepTimeoutError, SessionError, tf.errors.OpError: as `run`.
        """
        if self._greeted:
            return self._greeted
        return self._channel.call(
            self._session.devices, what="listing the workers' devices", timeout_s=timeout_s
        )

    def extend(self) -> None:
        """Send what the graph has got since the last time; it can be run then.

        It may take much longer than a call, so it has at least two minutes, and ten seconds for
        each megabyte.

        Raises:
            WorkerLostError, StepTimeoutError, SessionError, tf.errors.OpError: as `run`.
        """
        parts, added = self._graph.parts[self._sent :], tuple(self._added)
        if not parts and not added:
            return

        def send() -> None:  # keeps account itself: whoever called may have been interrupted
            for part in parts:
                filled = self.containers.fill(part.graph_def)
                self._session.extend(filled, variant_prefix(part.variant))
                self._sent += 1
            for graph_def, variant in added:
                filled = self.containers.fill(graph_def)
                self._session.extend(filled, variant_prefix(variant))
                del self._added[0]
            self._session.place()

        size = sum(len(part.graph_def) for part in parts) + sum(len(each) for each, _ in added)
        deadline_s = max(self._timeout_s, _PLACE_S + size / _PLACE_BYTES_PER_S)
        with working("placing the graph on the workers"):
            begin_s = time.perf_counter()
            self._channel.call(send, what="placing the graph", timeout_s=deadline_s)
            self.placing_s = (time.perf_counter() - begin_s) / max(1, len(parts))

    def aside(
        self, graph: tf.Graph, function: Callable[[GraphSession], Result], what: str
    ) -> Result:
        """What a function makes of a session of its own with the same workers.

        Args:
            graph: a small one, which that session runs.
            function: gets the session, with which it has to be done when it returns.
            what: what is being done, for messages.

        Raises:
            WorkerLostError, StepTimeoutError, SessionError, tf.errors.OpError: as `run`.
        """
        return self._aside(graph, function, what, self._timeout_s)

    def _aside(
        self,
        graph: tf.Graph,
        function: Callable[[GraphSession], Result],
        what: str,
        timeout_s: float,
    ) -> Result:
        def asked() -> Result:
            session = self._opened(self._config(None))
            session.extend(graph.as_graph_def().SerializeToString())
            result = function(session)
            # After a failure `close` does it: TensorFlow may wait for ever for what is lost.
            session.close()
            self._sessions.remove(session)
            return result

        return self._channel.call(asked, what=what, timeout_s=timeout_s)

    def _opened(self, config: Any) -> GraphSession:
        """Another session of TensorFlow with these workers."""
        session = GraphSession(self._target, config, self._tasks[0])
        self._sessions.append(session)
        return session

    def add(self, graph_def: bytes, variant: int) -> None:
        """Add nodes to a variant in this session alone, which the next `extend` sends.

        Args:
            graph_def: a serialised GraphDef.
            variant: the variant's number.
        """
        self._added.append((graph_def, variant))

    @property
    def server_addresses(self) -> tuple[str, ...]:
        """``host:port`` of each parameter server."""
        servers = self.cluster.servers
        if self.cluster.kind == "embedded":
            return self._targets[len(self._targets) - len(servers) :]
        return tuple(task.address or "" for task in servers)

    @property
    def has_failed(self) -> bool:
        """Whether nothing can be run any more."""
        return self._channel.has_failed

    @property
    def lost(self) -> tuple[Task, ...]:
        """The tasks that were lost."""
        return self._channel.lost

    def tell_losses(self, told: Callable[[Sequence[Task]], str]) -> None:
        """Let errors tell what is gone with tasks that are lost, and what to do, in words."""
        self._channel.told_of_loss = told

    @property
    def limit_of_calls_s(self) -> float:
        """How long one call may take, in seconds."""
        return self._timeout_s

    def seconds_to_prepare(self, variant: int) -> float:
        """How long a variant's first call may take longer than later ones, by its size."""
        sizes = (len(part.graph_def) for part in self._graph.parts if part.variant == variant)
        return sum(sizes) / _PLACE_BYTES_PER_S

    def run(
        self,
        tensors: Sequence[TensorRef],
        targets: Sequence[str],
        fed: Mapping[TensorRef, Any],
        what: str,
        options: CallOptions = DEFAULT,
    ) -> list[Any]:
        """The values of tensors, after running them and the target ops.

        Args:
            what: what is being done, for messages.
            options: how it is done.

        Raises:
            WorkerLostError: a worker was lost.
            StepTimeoutError: it took too long although every worker can be reached.
            SessionError: an earlier call failed that way.
            tf.errors.OpError: an op has failed.
        """
        before = self.compiled
        call = self.compile(tensors, targets, fed, options)
        if self.compiled == before:
            return self.call(call, what, options)
        with working(f"{what}, for the first time"):
            return self.call(call, what, options)

    def compile(
        self,
        tensors: Sequence[TensorRef],
        targets: Sequence[str],
        fed: Mapping[TensorRef, Any],
        options: CallOptions = DEFAULT,
        *,
        variant: int = 0,
    ) -> Call:
        """A function that fetches tensors and runs target ops.

        What is fed may be fetched, too, which TensorFlow itself refuses.

        Args:
            options: how it is called: whether it is traced, and within which limit.
            variant: the number of the variant to which all of them belong.
        """
        if any(tensor in fed for tensor in tensors):
            others = [tensor for tensor in tensors if tensor not in fed]
            if not others and not targets:
                return lambda: _with_fed(tensors, fed, [])
            call = self.compile(others, targets, fed, options, variant=variant)
            return lambda: _with_fed(tensors, fed, call())
        traces, limit_s = options.traces, options.limit_s
        key = (variant, tuple(tensors), tuple(targets), tuple(fed), traces is None)
        if key not in self._calls:
            self._calls[key] = GraphCall(
                self._session,
                [tensor_in_variant(variant, tensor) for tensor in tensors],
                [in_variant(variant, name) for name in targets],
                [tensor_in_variant(variant, tensor) for tensor in fed],
            )
        compiled, values = self._calls[key], list(fed.values())
        if traces is None:
            return lambda: compiled(values, limit_s=limit_s)
        metadata = tf1.RunMetadata()
        traces.append(metadata)
        return lambda: compiled(values, metadata, limit_s=limit_s)

    @property
    def compiled(self) -> int:
        """How many functions were compiled so far; the first call of one takes longer."""
        return len(self._calls)

    def check_labels(self) -> None:
        """Look before the first trace whether TensorFlow names what it traces as we read it.

        Raises:
            InstallationError: it does not.
            WorkerLostError, StepTimeoutError, SessionError, tf.errors.OpError: as `run`.
        """

        def prepare(graph_def: Any, op: str) -> Callable[[], list[Any]]:
            return self._recorder().prepare(graph_def, op)

        self._channel.call(
            lambda: check_labels(prepare, self._devices),
            what="looking at what is traced",
            timeout_s=self._timeout_s,
        )

    def call(self, function: Call, what: str, options: CallOptions = DEFAULT) -> list[Any]:
        """Call what makes calls into TensorFlow, and watch the workers meanwhile.

        Args:
            function: was compiled with the same options.
            what: what is being done, for messages.
            options: how it is done.

        Raises:
            WorkerLostError, StepTimeoutError, SessionError, tf.errors.OpError: as `run`.
            Exception: the results cannot be brought to Python, although everything was done.
        """
        self.calls += 1
        if options.traces is not None and len(self._different_tasks) > 1:
            function = partial(self._recorded, function, options.traces)
        timeout_s = self._timeout_s
        if options.limit_s is not None:
            timeout_s = max(timeout_s, options.limit_s + _CANCELLING_S)
        try:
            return self._channel.call(function, what=what, timeout_s=timeout_s, look=options.look)
        except UnreadError as error:
            raise error.__cause__ or error from None

    def _recorded(self, function: Call, traces: list[Any]) -> list[Any]:
        """Make calls that are traced, while all workers record what they receive."""
        return self._recorder().during(function, traces)

    def _recorder(self) -> Recording:
        if self._recording is None:
            session = self._opened(self._config(None))
            self._recording = Recording(session, self._different_tasks)
        return self._recording

    def clock_offsets_s(self) -> tuple[float, ...]:
        """By how much the clock of each replica's worker is ahead of the first one's, in seconds;
        behind these of each parameter server.

        Workers that were started on this machine have its clock.

        Raises:
            WorkerLostError, StepTimeoutError, SessionError, tf.errors.OpError: as `run`.
        """
        tasks, of_places = self._different_tasks, [*self._tasks, *self.cluster.server_devices]
        if self.cluster.kind != "remote" or len(tasks) == 1:
            return (0.0,) * len(of_places)
        graph, stamps = clock_graph(tasks)
        compare = partial(compared_clocks, stamps=stamps)
        offsets_s = self.aside(graph, compare, "comparing the workers' clocks")
        of_task = dict(zip(tasks, offsets_s, strict=True))
        return tuple(of_task[task] for task in of_places)

    @working("closing the session")
    def close(self) -> None:
        """End the session; what it held on the workers is gone."""
        if self._leases is not None:
            self._leases.stop()
        dropped = partial(drop, self.containers.owned, self._targets)
        last = partial(_end, self._recording, self._sessions, dropped, self._leases)
        self._channel.close(last, timeout_s=_CLOSE_TIMEOUT_S, leave=self._leave)

    def _leave(self) -> None:
        """End what is here of a session that has lost workers, and what others have of it."""
        # First, since a lost worker may keep sessions from being closed for long.
        forget(self._graph.parts[: self._sent], self.containers, self._servers_left())
        tells = self.cluster.tasks[0] not in self.lost
        for session in tuple(self._sessions):
            with suppress(tf.errors.OpError):
                session.close(tells=tells)
        if self._recording is not None:
            self._recording.end()

    def _servers_left(self) -> list[Server]:
        """All servers but those that were lost."""
        tasks, targets = self.cluster.tasks, self._targets
        if self.cluster.kind == "embedded":  # of which there may be more workers
            servers = len(self.cluster.servers)
            targets = targets[: self.cluster.size] + targets[len(targets) - servers :]
        found = zip(tasks, targets, strict=True)
        return [Server(task.device, target) for task, target in found if task not in self.lost]

    def _config(self, config: Any) -> Any:
        return _config(config, self.cluster)

    def _connect(self, timeout_s: float, config: Any) -> str:
        """Start or reach the servers; returns the session's target."""
        cluster = self.cluster
        if cluster.kind == "embedded":
            whole = cluster.whole
            embedded = embedded_servers(
                whole.size, parameter_servers=len(whole.servers), config=config
            )
            self._targets = embedded.addresses
            return embedded.target
        if cluster.task:
            raise ClusterError(
                f"this process is {cluster.describe(cluster.task)}, but worker 0 drives the job; "
                "run 'caramel worker' here instead"
            )
        own = own_server(cluster.whole, config=config).target if cluster.task == 0 else None
        cluster.wait_until_reachable(timeout_s)
        return own or f"grpc://{self._targets[0]}"

    @working("connecting to the workers")
    def _greet(self, timeout_s: float) -> None:
        """Let every worker run one op: whatever listens there must be a server of this cluster."""
        if self.cluster.kind == "embedded":  # this process has started them itself
            return
        graph = tf.Graph()
        with graph.as_default():
            greetings = []
            for task in self._different_tasks:
                with tf.device(task):
                    greetings.append(tf.no_op())
        names = [greeting.name for greeting in greetings]

        def greet(session: GraphSession) -> tuple[str, ...]:
            GraphCall(session, [], names, [])()
            # Asked by a session that has run nothing yet, TensorFlow writes a warning.
            return session.devices()

        try:
            self._greeted = self._aside(graph, greet, "connecting", timeout_s)
        except StepTimeoutError:
            raise WorkerStartError(
                f"what listens at {', '.join(str(t.address) for t in self.cluster.tasks)} did not "
                f"answer within {timeout_s:g} s; is each a 'caramel worker' that was started with "
                "this list of addresses?"
            ) from None

    def _give_up(self) -> None:
        """End what was begun although nothing can be run."""
        if self._leases is not None:
            self._leases.stop()
        end = self._leases.close if self._leases is not None else _nothing
        self._channel.close(end, timeout_s=_CLOSE_TIMEOUT_S, leave=self._leave)

    @property
    def left(self) -> tuple[str, ...]:
        """The containers of clients that are gone, where they are looked at."""
        return () if self._leases is None else self._leases.left

    def clear_left(self, but: Collection[str] = ()) -> None:
        """Remove what clients that are gone have left, but for some containers.

        Raises:
            WorkerLostError, StepTimeoutError, SessionError, tf.errors.OpError: as `run`.
        """
        if self._leases is not None and self._leases.left:
            clear = partial(self._leases.clear, but)
            what = "removing what clients have left"
            self._channel.call(clear, what=what, timeout_s=self._timeout_s)

    def _enter(self, timeout_s: float, *, clears: bool) -> None:
        """Enter the session on its workers, and remove what others have left there."""
        entered = (*self.containers.owned, *self.containers.kept)
        if self.cluster.kind == "remote" and entered:
            devices = (task.device for task in self.cluster.tasks)
            addresses = dict(zip(devices, self._targets, strict=True))
            # Of a launcher's job all processes began together: there is nothing to tell.
            tells = self.cluster.task is None

            def make() -> Leases:
                session = self._opened(self._config(None))
                return Leases(session, addresses, entered, tells=tells)

            self._leases = self._channel.call(make, what="connecting", timeout_s=timeout_s)
            enter = partial(self._leases.enter, clears=clears)
            self._channel.call(enter, what="connecting", timeout_s=timeout_s)


def _nothing() -> None:
    """What is called where there is nothing to end."""


def _end(
    recording: Recording | None,
    sessions: Sequence[GraphSession],
    forget: Callable[[], None],
    leases: Leases | None,
) -> None:
    """End everything, each thing also if another one cannot be ended."""
    with ExitStack() as parts:  # the last one first
        if leases is not None:
            parts.callback(leases.close)
        parts.callback(forget)
        for session in sessions:
            if leases is None or not leases.uses(session):
                parts.callback(session.close)
        if recording is not None:
            parts.callback(recording.close)


def _with_fed(
    tensors: Sequence[TensorRef], fed: Mapping[TensorRef, Any], results: Sequence[Any]
) -> list[Any]:
    """The values of tensors, of which those that are fed are not among the results."""
    remaining = iter(results)
    return [np.asarray(fed[t])[()] if t in fed else next(remaining) for t in tensors]


def _config(config: Any, cluster: Cluster) -> Any:
    """The user's session options with ours: state in containers, and no graph optimizers.

    The optimizers triple the time of the first step, make later ones no faster, and may undo
    planned edges; constant folding would turn initial zeros into megabytes of graph. Soft placement
    lets ops without a kernel for a replica's device run on the CPU of the same task.
    """
    own = tf1.ConfigProto()
    if config is not None:
        own.CopyFrom(config)
    own.allow_soft_placement = True
    own.isolate_session_state = False  # but kept apart by containers (`modifiers.containers`)
    if cluster is not cluster.whole:  # else TensorFlow waits for those that are left out
        own.device_filters.extend(task.device for task in cluster.tasks)
    own.graph_options.rewrite_options.disable_meta_optimizer = True
    own.graph_options.optimizer_options.opt_level = tf1.OptimizerOptions.L0
    return own
