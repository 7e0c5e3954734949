"""Clients enter their containers in a table on each worker, so that nothing stays for ever.

TensorFlow cannot say which containers there are, and what a client leaves that was killed takes
memory until the worker ends. So each worker has a table, in a container that all clients know. A
session is entered in it before it has any state: its containers, the process that drives it, and
until when its *lease* lasts, which a thread renews. Who opens a session removes what belongs to a
process of the same machine that is gone, at once; of other processes, what has an expired lease.
A process that can be seen keeps what it has, whatever its lease.

Leases are written, and looked at, by the clock of the worker on which they are.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass

import tensorflow as tf

from caramel.cluster.processes import OF_SESSIONS
from caramel.core.errors import SessionError
from caramel.core.names import (
    LEASES,
    LEASES_ENTERED,
    LEASES_REMOVED,
    LEASES_SAID,
    TensorRef,
)
from caramel.native.session import GraphCall, GraphSession
from caramel.runtime.execution.clients import Client
from caramel.runtime.execution.containers import drop

tf1 = tf.compat.v1

LEASE_S = 900
RENEW_S = 60.0

_LIMIT_S = 10.0  # for one call: it does nothing but look into small tables

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Lease:
    """Some containers on a worker.

    Attributes:
        containers: their names.
        client: the process whose they are.
        left_s: how long the lease lasts, in seconds; less than 0 if it has expired.
    """

    containers: tuple[str, ...]
    client: Client
    left_s: float

    def is_over(self, own: Client) -> bool:
        """Whether they can go, as this process, which is `own`, sees it."""
        seen = self.client.seen_by(own)
        return seen == "gone" or (seen == "unknown" and self.left_s < 0)


class Leases:
    """The leases of a session on all its workers, by a session of its own.

    Args:
        session: a new one.
        addresses: ``host:port`` of each task.
        containers: what is entered.
        tells: whether each worker writes into its log when the session begins and ends.

    Attributes:
        left: the containers of clients that were gone when the session was entered, and that were
            not removed.

    Raises:
        tf.errors.OpError: a worker cannot be reached.
    """

    def __init__(
        self,
        session: GraphSession,
        addresses: Mapping[str, str],
        containers: Sequence[str],
        *,
        tells: bool = False,
    ) -> None:
        self._addresses, self._own = dict(addresses), Client.here()
        self._containers, self._tells = tuple(containers), tells
        self._entry = _written(containers, self._own)
        self._session = session
        tables, self._sayings = _graph(self._session, addresses)
        fed = [TensorRef(name) for name in (LEASES_ENTERED, LEASES_REMOVED)]
        self._call = GraphCall(self._session, tables, [], fed)
        self._is_over = threading.Event()
        self._thread: threading.Thread | None = None
        self.left: tuple[str, ...] = ()

    def enter(self, *, clears: bool = True) -> None:
        """Enter the session, and remove what others have left.

        Args:
            clears: whether it is removed now; else by `clear`.

        Raises:
            tf.errors.OpError: a worker cannot be reached.
        """
        tables = self._exchange(entered=[self._entry])
        over = [lease for own in tables.values() for lease in own.values()]
        names = [name for each in over if each.is_over(self._own) for name in each.containers]
        self.left = tuple(dict.fromkeys(names))
        if clears:
            self._clear(tables, ())
            self.left = ()
        self._tell("opened", self._own, "", self._addresses.values())
        self._thread = threading.Thread(target=self._renew, name="caramel-leases", daemon=True)
        self._thread.start()

    def clear(self, but: Collection[str] = ()) -> None:
        """Remove what others have left, but for some containers.

        Raises:
            tf.errors.OpError: a worker cannot be reached.
        """
        self._clear(self._exchange(), but)
        self.left = tuple(name for name in self.left if name in but)

    def _clear(self, tables: Mapping[str, Mapping[str, Lease]], but: Collection[str]) -> None:
        removed: set[str] = set()
        for address, entries in tables.items():
            leases = {e: lease for e, lease in entries.items() if e != self._entry}
            over = {e: lease for e, lease in leases.items() if lease.is_over(self._own)}
            # A session that goes on after a loss has containers of the one before, which may be in
            # the table still.
            used = {
                name for e, lease in leases.items() if e not in over for name in lease.containers
            }
            used.update(self._containers, but)
            for entry, lease in over.items():
                drop([name for name in lease.containers if name not in used], [address])
                if set(but).intersection(lease.containers):  # then the entry is needed, too
                    continue
                _log.info(
                    "removing what process %d of %s has left on %s",
                    lease.client.pid,
                    lease.client.host,
                    address,
                )
                self._tell("left open", lease.client, ", which is gone", [address])
                removed.add(entry)
        if removed:
            self._exchange(removed=removed)

    def _renew(self) -> None:
        while not self._is_over.wait(RENEW_S):
            try:
                self._exchange(entered=[self._entry])
            except (tf.errors.OpError, SessionError) as error:  # perhaps a worker is lost
                _log.info("leases are not renewed this time: %s", error)

    def uses(self, session: GraphSession) -> bool:
        """Whether it is this one's, which `close` needs."""
        return session is self._session

    def stop(self) -> None:
        """Renew them no more."""
        self._is_over.set()
        if self._thread is not None:
            self._thread.join(2 * _LIMIT_S)

    def close(self) -> None:
        """Remove the session's entries, whose containers are gone.

        Raises:
            tf.errors.OpError: a worker cannot be reached.
        """
        try:
            if self._thread is not None:  # it was opened
                self._tell("closed", self._own, "", self._addresses.values())
            self._exchange(removed=[self._entry])
        finally:
            self._session.close()

    def _tell(self, what: str, client: Client, more: str, addresses: Iterable[str]) -> None:
        """Let workers write into their logs what a process has done with a session.

        TensorFlow's server does not tell who connects to it.
        """
        if not self._tells:
            return
        now = time.strftime("%Y-%m-%d %H:%M:%S %z")
        text = f"{OF_SESSIONS}{what} by process {client.pid} of {client.host}{more} ({now})."
        sayings = [self._sayings[address] for address in addresses]
        GraphCall(self._session, [], sayings, [TensorRef(LEASES_SAID)])([text], limit_s=_LIMIT_S)

    def _exchange(
        self, *, entered: Sequence[str] = (), removed: Iterable[str] = ()
    ) -> dict[str, dict[str, Lease]]:
        """Enter or renew some entries, and remove others; what is in the table of each address
        then, of which sense can be made."""
        values = [list(entered), sorted(removed)]
        results = iter(self._call(values, limit_s=_LIMIT_S))
        found: dict[str, dict[str, Lease]] = {}
        for address in self._addresses.values():
            entries, ends_s, now_s = next(results), next(results), next(results)
            leases = {
                entry.decode(): lease
                for entry, end_s in zip(entries, ends_s, strict=True)
                if (lease := _read(entry, float(end_s - now_s))) is not None
            }
            found[address] = leases
        return found


def _written(containers: Sequence[str], client: Client) -> str:
    return json.dumps({"containers": list(containers), "client": asdict(client)})


def _read(entry: bytes, left_s: float) -> Lease | None:
    """What an entry says; None if it is of another form (another version's)."""
    try:
        said = json.loads(entry)
        return Lease(tuple(map(str, said["containers"])), Client(**said["client"]), left_s)
    except (ValueError, KeyError, TypeError):
        return None


def _graph(
    session: GraphSession, tasks: Mapping[str, str]
) -> tuple[list[TensorRef], dict[str, str]]:
    """Tensors with the entries of each task's table, when they end, and the time there; and by
    address the ops that write what is fed into the worker's log."""
    tables, sayings = [], {}
    with tf.Graph().as_default() as graph:
        entered = tf1.placeholder(tf.string, [None], name=LEASES_ENTERED)
        removed = tf1.placeholder(tf.string, [None], name=LEASES_REMOVED)
        said = tf1.placeholder(tf.string, [], name=LEASES_SAID)
        for task, address in tasks.items():
            with tf.device(f"{task}/device:CPU:0"):
                table = tf.raw_ops.MutableHashTableV2(
                    key_dtype=tf.string,
                    value_dtype=tf.double,
                    container=LEASES,
                    shared_name=LEASES,
                )
                now_s = tf.timestamp()
                ends_s = tf.fill(tf.shape(entered), now_s + LEASE_S)
                enter = tf.raw_ops.LookupTableInsertV2(
                    table_handle=table, keys=entered, values=ends_s
                )
                with tf.control_dependencies([enter]):
                    remove = tf.raw_ops.LookupTableRemoveV2(table_handle=table, keys=removed)
                with tf.control_dependencies([remove]):
                    entries, ends_s = tf.raw_ops.LookupTableExportV2(
                        table_handle=table, Tkeys=tf.string, Tvalues=tf.double
                    )
                tables += [entries, ends_s, now_s]
                saying = tf.raw_ops.PrintV2(input=said, output_stream="stderr")
                sayings[address] = saying.name
    session.extend(graph.as_graph_def().SerializeToString())
    session.place()
    return [TensorRef(tensor.op.name, tensor.value_index) for tensor in tables], sayings
