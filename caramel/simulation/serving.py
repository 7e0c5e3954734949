"""What a step with parameter servers would take: pulls, gradients, sums and updates as tasks.

Workers and servers are hosts of the same `engine` as in a step without servers, and everything that
is sent costs what the same hardware says: latency, messages, what processors lose meanwhile.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from caramel.core.decision import Pull
from caramel.core.patterns import SERVER
from caramel.core.workload import Update, Workload
from caramel.simulation.engine import Kind, TaskGraph, run, speed_beside
from caramel.simulation.hardware import Hardware, Host
from caramel.simulation.lead import LastSender
from caramel.simulation.transfers import URGENT

_MANY_TO_ONE = "shuffle"
"""The pattern in whose rounds many workers send to one, as all of them do to a server."""


@dataclass(frozen=True, slots=True)
class ServedJob:
    """What workers and servers do in a step.

    Attributes:
        workload: what each worker computes, and what is done once on the servers: the updates.
        sizes: bytes of each parameter; 0 of those of which only some rows travel, since nobody
            knows how many.
        server_of: the server of each parameter.
        hardware: the workers and their links.
        servers: what each server can do; an update takes `slowdown` times as long there.
    """

    workload: Workload
    sizes: Mapping[str, int]
    server_of: Mapping[str, int]
    hardware: Hardware
    servers: tuple[Host, ...]


def served_step_s(job: ServedJob, pulls: Sequence[Pull]) -> float:
    """How long a steady step takes, with the client's call.

    It ends when everything is computed, sent, updated, and sent ahead for the next step.

    Args:
        pulls: what workers receive, in the order in which it goes if it may go at the same time.
    """
    writer = _Writer(job)
    writer.compute(pulls)
    for pull in pulls:
        if not pull.ahead:
            writer.pull(pull)
    writer.push()
    writer.update()
    for pull in pulls:
        if pull.ahead:
            writer.pull(pull)
    _, ends_s = run(writer.tasks, writer.hardware)
    return max(ends_s, default=0.0) + job.hardware.step_s


class _Writer:
    """The tasks of a step.

    Where all workers are alike they do the same at the same time, so one stands for all of them,
    and of each server it gets its part.
    """

    def __init__(self, job: ServedJob) -> None:
        self._job, self._workload = job, job.workload
        self._each = job.hardware.workers if job.hardware.is_uniform else 1
        workers = job.hardware.hosts[: 1 if job.hardware.is_uniform else job.hardware.workers]
        self._workers = range(len(workers))
        servers = tuple(self._server(host) for host in job.servers)
        self.hardware = dataclasses.replace(job.hardware, hosts=(*workers, *servers))
        self.tasks = TaskGraph()
        self._asked: dict[int, list[int]] = {}
        self._chain: dict[int, range] = {}
        self._arrived: dict[tuple[int, str], int] = {}  # pulls, by worker
        self._summed: dict[str, int] = {}  # gradients, on their server
        self._updated: dict[str, list[int]] = {}  # by variable
        self._pulls = 0

    def _server(self, host: Host) -> Host:
        """A server as one worker sees it that stands for all."""
        hardware = self._job.hardware
        # The engine knows of one worker's part of what the server's processor transfers meanwhile.
        rate = max(host.send_bytes_per_s, host.receive_bytes_per_s)
        slower = speed_beside(rate / self._each, host, hardware) / speed_beside(
            rate, host, hardware
        )
        return Host(
            host.send_bytes_per_s / self._each,
            host.receive_bytes_per_s / self._each,
            host.slowdown * slower,
        )

    def compute(self, pulls: Sequence[Pull]) -> None:
        """The forward and the backward pass of every worker, which begin when it has asked for all
        that waits for nothing; servers ask for all gradients."""
        request_s, chain = self._job.hardware.request_s, self._workload.chain
        seconds = self._workload.piece_seconds(self._job.hardware.op_s)
        names, urgencies = [piece.name for piece in chain], list(range(len(chain)))
        own = sum(pull.ahead or not pull.after for pull in pulls)
        for worker in self._workers:
            self._asked[worker] = self._asking(worker, request_s * own)
            self._chain[worker] = self.tasks.add_chain(
                worker, seconds, names, urgencies, self._asked[worker]
            )
        for number in range(len(self._job.servers)):
            gradients = [n for n in self._workload.yielded_at if self._job.server_of[n] == number]
            messages = len(gradients) * self._job.hardware.workers
            host = self._host(number)
            self._asked[host] = self._asking(host, request_s * messages)

    def _asking(self, host: int, seconds: float) -> list[int]:
        return [self.tasks.add(Kind.DELAY, host, seconds)] if seconds else []

    def pull(self, pull: Pull) -> None:
        """A parameter goes to every worker, and what needs it there waits for it."""
        name, server = pull.variable, self._host(self._job.server_of[pull.variable])
        self._pulls += 1
        piece = self._workload.needed_at.get(name)
        for worker in self._workers:
            if pull.ahead:
                after = self._updated.get(name) or [self._summed[name]]
            else:
                after = [self._arrived[worker, other] for other in pull.after]
                after = after or self._asked[server]
            # Of what begins at the same time, the engine sends the least urgent first.
            sent = self._send(name, server, worker, after, urgency=-self._pulls)
            self._arrived[worker, name] = sent
            if not pull.ahead and piece is not None:
                self.tasks.wait(self._chain[worker][piece], [sent])

    def push(self) -> None:
        """Each raw gradient goes to its server, which adds up those of all workers."""
        hardware, workers = self._job.hardware, self._job.hardware.workers
        message_s = hardware.processor_s_per_message
        last = [
            LastSender(self._bytes_on(number), self._sharing(host))
            for number, host in enumerate(self._job.servers)
        ]
        for name, piece in self._workload.yielded_at.items():
            server, arrived = self._host(self._job.server_of[name]), []
            times = last[self._job.server_of[name]].times(self._job.sizes[name])
            for worker in self._workers:
                ready = [self._chain[worker][piece]]
                if message_s:
                    self.tasks.add(Kind.COMPUTE, worker, message_s, ready, urgency=URGENT)
                arrived.append(self._send(name, worker, server, ready, times=times))
            added = (workers - 1) * self._job.sizes[name]
            seconds = hardware.reduce_s_per_byte * added + message_s * workers
            self._summed[name] = self.tasks.add(Kind.COMPUTE, server, seconds, arrived)

    def _sharing(self, server: Host) -> int:
        """How many workers have to share the link of a server."""
        hosts, workers = self._job.hardware.hosts, self._job.hardware.workers
        fastest = max(host.send_bytes_per_s for host in hosts)
        return workers if workers * fastest > server.receive_bytes_per_s else 1

    def _bytes_on(self, server: int) -> int:
        """Of all gradients that a server gets from a worker."""
        own = (name for name in self._workload.yielded_at if self._job.server_of[name] == server)
        return sum(self._job.sizes[name] for name in own)

    def update(self) -> None:
        """What is computed from sums, once for all workers."""
        op_s = self._job.hardware.op_s
        for update in self._workload.updates:
            own = [self._summed[n] for n in sorted(update.gradients) if n in self._summed]
            seconds = update.seconds + op_s if update.seconds else 0.0
            done = self.tasks.add(Kind.COMPUTE, self._home(update), seconds, own)
            for variable in update.writes:
                self._updated.setdefault(variable, []).append(done)

    def _home(self, update: Update) -> int:
        """The server that does an update: that of what it writes, or of its gradients."""
        names = (*sorted(update.writes), *sorted(update.gradients))
        servers = (self._job.server_of[n] for n in names if n in self._job.server_of)
        return self._host(next(servers, 0))

    def _host(self, server: int) -> int:
        return len(self._workers) + server

    def _send(
        self,
        name: str,
        source: int,
        target: int,
        after: Sequence[int],
        *,
        urgency: int = 0,
        times: float = 1.0,
    ) -> int:
        hardware, size = self._job.hardware, self._job.sizes[name]
        worth = times
        if source in self._workers and self._job.hardware.workers > 2:
            worth *= hardware.excess.get(_MANY_TO_ONE, 1.0)
        if size:
            # What a message costs does not depend on its size: it is told as bytes.
            ends = self.hardware.hosts[source], self.hardware.hosts[target]
            rate = self._each * min(ends[0].send_bytes_per_s, ends[1].receive_bytes_per_s)
            worth += hardware.message_s * rate / size
        latency_s = hardware.latency_of(SERVER) + hardware.handling_of(SERVER) * size
        return self.tasks.add(
            Kind.SEND,
            source,
            size,
            after,
            name=name,
            target=target,
            worth=worth,
            latency_s=latency_s,
            urgency=urgency,
        )
