"""Everything that happens in a step, and what waits for what."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from caramel.core.decision import Gate, Group
from caramel.core.workload import Update
from caramel.simulation.conditions import Conditions
from caramel.simulation.engine import Kind, TaskGraph
from caramel.simulation.loads import Load
from caramel.simulation.transfers import URGENT, Transfers


@dataclass(slots=True)
class StepTasks:
    """The tasks of a step.

    Attributes:
        graph: all of them.
        begins: when a group begins to be transferred: for each group one task on each host.
        arrivals: when it is there, aggregated.
        folded: whether one host stands for all workers.
    """

    graph: TaskGraph = field(default_factory=TaskGraph)
    begins: dict[str, list[int]] = field(default_factory=dict)
    arrivals: dict[str, list[int]] = field(default_factory=dict)
    folded: bool = False


def tasks_of(
    groups: Sequence[Group],
    gates: Sequence[Gate],
    conditions: Conditions,
    *,
    pending: bool = True,
    detailed: bool = True,
) -> StepTasks:
    """The tasks of one step.

    For each group, its members are laid side by side and transferred (`transfers`), and gates,
    updates, and parts of the forward pass wait for its arrival.

    Args:
        groups: what is aggregated together, and how.
        gates: which of them waits for which.
        conditions: what is aggregated, computed, and with what.
        pending: whether deferred groups of the step before are still to be aggregated.
        detailed: whether every piece of the computation is a task. Else there are as few as the
            step takes the same time with: pieces are one task where no group begins between them
            and none is waited for.
    """
    loads = [conditions.load(group) for group in groups]
    # Without groups, updates wait for the pieces that bring raw gradients: each has to be a task.
    writer = _Writer(loads, conditions, pending, detailed or not groups)
    writer.compute()
    for load in loads:
        if load.group.deferred:
            writer.keep(load)
    for load in writer.order(gates):
        writer.transfer(load)
    writer.update()
    return writer.found


class _Writer:
    def __init__(
        self,
        loads: Sequence[Load],
        conditions: Conditions,
        pending: bool,
        detailed: bool,
    ) -> None:
        self._workload, self._hardware = conditions.workload, conditions.hardware
        self._pending, self._detailed = pending, detailed
        self._all_loads = loads
        self._loads = [load for load in loads if pending or not load.group.deferred]
        self._deferred = {n for each in loads if each.group.deferred for n in each.parameters}
        self._moves = [not self._deferred.isdisjoint(u.moves_with) for u in self._workload.updates]
        self._part_bytes: dict[str, int] = {}  # of gradients in parts
        for part in [conditions.sizes[name] for load in loads for name in load.group.members]:
            if part.parameter is not None:
                before = self._part_bytes.get(part.parameter, 0)
                self._part_bytes[part.parameter] = before + part.bytes
        self.found = StepTasks(folded=self._hardware.is_uniform)
        self._tasks = self.found.graph
        # Where all workers are alike, one host stands for all, and sends to itself.
        self._hosts = range(1 if self.found.folded else self._hardware.workers)
        self._transfers = Transfers(self._tasks, conditions, detailed=detailed)
        self._after: dict[str, list[str]] = {}
        self._asked: list[list[int]] = []
        # Tasks of the chain by the first piece of each, and by the last one.
        self._chain_begins: list[dict[int, int]] = []
        self._chain_ends: list[dict[int, int]] = []

    # Computation

    def compute(self) -> None:
        """The forward and the backward pass of every host, as a chain.

        It begins when everything that will be received has been asked for.
        """
        request_s = self._hardware.request_s
        asking_s = request_s * sum(map(self._transfers.messages, self._loads)) if request_s else 0.0
        seconds = self._workload.piece_seconds(self._hardware.op_s)
        chain = self._workload.chain
        cuts = list(self._cuts())
        firsts, ends = cuts[:-1], cuts[1:]
        amounts = [sum(seconds[first:end]) for first, end in zip(firsts, ends, strict=True)]
        names = [chain[end - 1].name for end in ends]
        for host in self._hosts:
            asked = [self._tasks.add(Kind.DELAY, host, asking_s, ())] if asking_s else []
            self._asked.append(asked)
            tasks = self._tasks.add_chain(host, amounts, names, firsts, asked)
            self._chain_begins.append(dict(zip(firsts, tasks, strict=True)))
            self._chain_ends.append({end - 1: task for end, task in zip(ends, tasks, strict=True)})

    def _cuts(self) -> Iterable[int]:
        """The first piece of each task of the chain, and the number of pieces.

        A task ends where a group is complete, and begins where what is updated in this step is
        first needed.
        """
        pieces = len(self._workload.chain)
        if self._detailed:
            return range(pieces + 1)
        cuts = {0, pieces}
        cuts.update([e.complete_at + 1 for e in self._all_loads if e.complete_at is not None])
        needed_at = self._workload.needed_at
        for update in self._moved_updates():
            cuts.update([needed_at[name] for name in update.writes if name in needed_at])
        return sorted(cuts)

    def _moved_updates(self) -> Iterator[Update]:
        """What is left to do of the step before."""
        for update, moves in zip(self._workload.updates, self._moves, strict=True):
            if moves and self._pending:
                yield update

    def update(self) -> None:
        """What is computed from aggregated gradients, and what waits for it."""
        for host in self._hosts:
            for variable, tasks in self._updated(host).items():
                if variable in self._workload.needed_at:
                    piece = self._workload.needed_at[variable]
                    self._tasks.wait(self._chain_begins[host][piece], tasks)

    def _updated(self, host: int) -> dict[str, list[int]]:
        """The tasks that write each variable with what is left of the step before."""
        written: dict[str, list[int]] = {}
        arrived = self._arrived(host)
        at_the_end: dict[tuple[int, ...], float] = {}  # nothing of this step waits for these
        detailed, op_s = self._detailed, self._hardware.op_s
        gradients_of = self._workload.gradients_of_updates
        for each, gradients, moved in zip(
            self._workload.updates, gradients_of, self._moves, strict=True
        ):
            if moved and not self._pending:
                continue
            seconds = each.seconds + op_s if each.seconds else 0.0
            # Nobody waits for it, and it takes no time.
            if not (seconds or moved or detailed):
                continue
            after = self._needed_by(gradients, moved, host, arrived)
            if not detailed and not moved:
                at_the_end[tuple(after)] = at_the_end.get(tuple(after), 0.0) + seconds
                continue
            done = after
            if seconds or detailed:
                done = [self._update_task(host, seconds, after, each.name)]
            if moved:
                for variable in each.writes:
                    written.setdefault(variable, []).extend(done)
        for waits, total_s in at_the_end.items():
            self._update_task(host, total_s, waits, "")
        return written

    def _update_task(self, host: int, seconds: float, after: Sequence[int], name: str) -> int:
        return self._tasks.add(Kind.COMPUTE, host, seconds, after, name=name, urgency=URGENT)

    def _needed_by(
        self,
        gradients: Sequence[str],
        moved: bool,
        host: int,
        arrived: Mapping[str, Sequence[int]],
    ) -> Sequence[int]:
        """The arrivals that an update waits for, or the raw gradients if nothing is sent."""
        if self._all_loads or moved:
            own = [name for name in gradients if (name in self._deferred) == moved]
            if len(own) == 1:
                return arrived.get(own[0], ())
            return list(dict.fromkeys([task for name in own for task in arrived.get(name, ())]))
        yielded_at, ends = self._workload.yielded_at, self._chain_ends[host]
        return sorted({ends[yielded_at[name]] for name in gradients if name in yielded_at})

    def _arrived(self, host: int) -> dict[str, list[int]]:
        """The task with which each parameter's aggregated gradient is there.

        If it is in parts, they are joined. If any of them is deferred, the others are there from
        the step before.
        """
        arrived: dict[str, list[int]] = {}
        in_parts: dict[str, dict[int, None]] = {}
        for load in self._loads:
            group, own = load.group, [self.found.arrivals[load.group.name][host]]
            for name in load.parameters:
                if name not in self._part_bytes:
                    arrived[name] = own
                elif group.deferred == (name in self._deferred):
                    in_parts.setdefault(name, {})[own[0]] = None
        for name, tasks in in_parts.items():
            copy_s = self._hardware.copy_s_per_byte * self._part_bytes[name]
            arrived[name] = [self._transfers.work(host, copy_s, list(tasks))]
        return arrived

    # Transfers

    def order(self, gates: Sequence[Gate]) -> list[Load]:
        """The groups, each after those it waits for."""
        known = {load.group.name: load for load in self._loads}
        for gate in gates:
            if gate.group in known and gate.after in known:
                self._after.setdefault(gate.group, []).append(gate.after)
        ordered: dict[str, Load] = {}
        for first in known:
            stack = [first]
            while stack:
                name = stack[-1]
                missing = [n for n in self._after.get(name, ()) if n not in ordered]
                if missing:
                    stack += missing
                    continue
                ordered[stack.pop()] = known[name]
        return list(ordered.values())

    def keep(self, load: Load) -> None:
        """A group is laid side by side for the next step."""
        for host in self._hosts:
            self._transfers.work(host, load.copy_s(self._hardware), self._complete(load, host))

    def transfer(self, load: Load) -> None:
        """A group: from its raw gradients to its arrival on every host."""
        group, starts = load.group, list[int]()
        complete = [self._complete(load, host) for host in self._hosts]
        for host in self._hosts:
            after = [self.found.arrivals[name][host] for name in self._after.get(group.name, ())]
            if not group.deferred:
                after += complete[host]
            copy_s = 0.0 if group.deferred else load.copy_s(self._hardware)
            # A deferred group is complete from the begin: it goes when messages have been asked
            # for.
            after = after or self._asked[host]
            # Saves a task in searches, which simulate thousands of plans.
            at_once = not self._detailed and not copy_s and len(after) == 1
            starts.append(after[0] if at_once else self._transfers.work(host, copy_s, after))
        self.found.begins[group.name] = starts
        self.found.arrivals[group.name] = self._transfers.add(load, starts, complete)

    def _complete(self, load: Load, host: int) -> list[int]:
        """The task that brings the last raw gradient of a group."""
        return [] if load.complete_at is None else [self._chain_ends[host][load.complete_at]]
