"""What does a worker compute in a step, piece by piece, and what does each piece wait for?"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence

from caramel.analyzers.deferral import Deferrals
from caramel.analyzers.moves import Moves
from caramel.analyzers.units import Units, units_of_step
from caramel.analyzers.windows import users_of
from caramel.core.decision import Edge
from caramel.core.facts import LoopFrames, StateAccess, TrainingJob
from caramel.core.graph import OpGraph
from caramel.core.planned_job import AggregatedGradient
from caramel.core.time_facts import TimingTable
from caramel.core.workload import Piece, Product, Update, Workload


def workload_of(
    graph: OpGraph,
    job: TrainingJob,
    frames: LoopFrames,
    access: StateAccess,
    timing: TimingTable,
    gradients: Sequence[AggregatedGradient],
    deferrals: Deferrals,
    edges: Iterable[Edge] = (),
) -> Workload:
    """The workload of one worker.

    What waits for no aggregated gradient (the forward and the backward pass) is a chain, cut into
    pieces wherever it first needs a parameter and wherever a raw gradient is complete. What is
    downstream of aggregated gradients (clipping, updates, averages) is gathered in pieces that wait
    for the same gradients.

    Args:
        gradients: what is aggregated.
        deferrals: know what moves with which gradient.
        edges: control edges that a plan adds.
    """
    units = units_of_step(graph, job, frames)
    seconds = [sum(timing.seconds.get(name, 0.0) for name in names) for names in units.ops]
    behind = _behind(units, graph, gradients)
    chain = [unit for unit in units.order if not behind[unit]]
    order = _in_ready_order(units, frozenset(chain), seconds, edges)
    parameters = [gradient.parameter for gradient in gradients]
    updates = tuple(_updates(units, graph, access, behind, seconds, parameters, deferrals.moves))
    written = frozenset(name for update in updates for name in update.writes)
    needs: dict[int, set[str]] = {}
    for variable, users in users_of(graph, units, access, sorted(written), seconds).items():
        for unit in users:
            needs.setdefault(unit, set()).add(variable)
    products = dict(_products(graph, timing, gradients))
    return Workload(_cut(units, order, seconds, needs, _ends(units, gradients)), updates, products)


def _products(
    graph: OpGraph, timing: TimingTable, gradients: Sequence[AggregatedGradient]
) -> Iterator[tuple[str, Product]]:
    """The gradients that have factors whose size is known from the graph, or was traced."""
    for gradient in gradients:
        factors = gradient.factors
        if factors is None:
            continue
        tensors = zip(factors.tensors, factors.specs, strict=True)
        sizes = [spec.bytes or timing.traced_bytes.get(str(tensor)) for tensor, spec in tensors]
        if all(sizes):
            seconds = sum(timing.seconds.get(op, 0.0) for op in factors.ops)
            yield gradient.parameter, Product(sum(size or 0 for size in sizes), seconds)


def _behind(units: Units, graph: OpGraph, gradients: Sequence[AggregatedGradient]) -> list[int]:
    """For each unit a number whose bit `n` says whether it waits for aggregated gradient `n`."""
    behind = [0] * len(units.ops)
    for number, gradient in enumerate(gradients):
        for name in gradient.consumers:
            if name in units.of_op:
                behind[units.of_op[name]] |= 1 << number
    for unit in units.order:
        for source in units.sources[unit]:
            behind[unit] |= behind[source]
    return behind


def _in_ready_order(
    units: Units, chain: frozenset[int], seconds: Sequence[float], edges: Iterable[Edge]
) -> list[int]:
    """Units in the order in which one device computes them that takes up what got ready first.

    Units that take no time do not queue.
    """
    sources = {unit: set(units.sources[unit]) & chain for unit in chain}
    for edge in edges:
        before, after = units.of_op.get(edge.before), units.of_op.get(edge.after)
        if before in chain and after in chain and before != after:
            sources[after].add(before)
    consumers: dict[int, list[int]] = {unit: [] for unit in chain}
    for unit in sorted(chain):
        for source in sources[unit]:
            consumers[source].append(unit)
    waits = {unit: len(sources[unit]) for unit in chain}
    queue: deque[int] = deque()
    order: list[int] = []

    def ready(unit: int) -> None:
        at_once = [unit]
        while at_once:
            each = at_once.pop()
            if seconds[each] > 0:
                queue.append(each)
                continue
            order.append(each)
            # A stack in place of recursion: chains of such units are long.
            at_once += reversed(released(each))

    def released(unit: int) -> list[int]:
        found = []
        for consumer in consumers[unit]:
            waits[consumer] -= 1
            if not waits[consumer]:
                found.append(consumer)
        return found

    for unit in units.order:
        if unit in chain and not sources[unit]:
            ready(unit)
    while queue:
        unit = queue.popleft()
        order.append(unit)
        for consumer in released(unit):
            ready(consumer)
    assert len(order) == len(chain), "control edges of the plan make a cycle"
    return order


def _ends(units: Units, gradients: Sequence[AggregatedGradient]) -> dict[str, set[int]]:
    """The units that put out each raw gradient."""
    found = {}
    for gradient in gradients:
        tensors = [gradient.values, *([] if gradient.indices is None else [gradient.indices])]
        found[gradient.parameter] = {units.of_op[tensor.op] for tensor in tensors}
    return found


def _cut(
    units: Units,
    order: Sequence[int],
    seconds: Sequence[float],
    needs: Mapping[int, set[str]],
    ends: Mapping[str, set[int]],
) -> tuple[Piece, ...]:
    """The chain in pieces.

    A raw gradient that itself waits for an aggregated one is in no piece of it; it counts as
    complete at the end, which is too early by what it waits for.
    """
    position = {unit: number for number, unit in enumerate(order)}
    yields: dict[int, list[str]] = {}
    for parameter, own in ends.items():
        last = max((position[unit] for unit in own if unit in position), default=len(order) - 1)
        yields.setdefault(last, []).append(parameter)
    pieces: list[Piece] = []
    known: set[str] = set()
    name, total_s, ops, needed = "", 0.0, 0, frozenset[str]()
    for number, unit in enumerate(order):
        new = frozenset(needs.get(unit, ())) - known
        if new:
            known |= new
            if total_s > 0 or needed:
                pieces.append(Piece(name, total_s, ops, needed))
                total_s, ops, needed = 0.0, 0, frozenset()
            needed = new
        if seconds[unit] > 0 or not name:
            # A piece is called by its last op that takes time.
            name = units.ops[unit][-1]
        total_s += seconds[unit]
        ops += seconds[unit] > 0
        if number in yields:
            pieces.append(Piece(name, total_s, ops, needed, tuple(yields[number])))
            total_s, ops, needed = 0.0, 0, frozenset()
    if total_s > 0 or needed:
        pieces.append(Piece(name, total_s, ops, needed))
    return tuple(pieces)


def _updates(
    units: Units,
    graph: OpGraph,
    access: StateAccess,
    behind: Sequence[int],
    seconds: Sequence[float],
    parameters: Sequence[str],
    moves: Moves,
) -> Iterable[Update]:
    """The units that wait for aggregated gradients: together those that do everything alike."""
    alike: dict[tuple[int, frozenset[str]], list[int]] = {}
    for unit in units.order:
        if behind[unit]:
            moving = frozenset[str]().union(*map(moves.parameters, units.ops[unit]))
            alike.setdefault((behind[unit], moving), []).append(unit)
    for (bits, moving), own in alike.items():
        names = [name for unit in own for name in units.ops[unit]]
        timed = [units.ops[unit][-1] for unit in own if seconds[unit] > 0]
        total_s = sum(seconds[unit] for unit in own)
        writes = frozenset(v for name in names for v in access.writes.get(name, ()))
        # What takes no time and writes nothing is nothing to wait for.
        if total_s > 0 or writes:
            gradients = frozenset(p for n, p in enumerate(parameters) if bits >> n & 1)
            yield Update(timed[-1] if timed else names[-1], total_s, gradients, moving, writes)
