"""The shortest step of a small problem, by trying all placements and orders."""

from __future__ import annotations

from caramel.planning.placement.ranks import up_ranks


def optimum(problem):
    """Makespan of the best placement and order, with free links and any memory; by trying all.

    Vertices get their slots one after the other, in the order of their begins; what cannot be
    better than the best that was found is not followed. A schedule in which every vertex begins as
    early as its device and its inputs let it is among the best, and is found in this way.
    """
    fastest = max(device.speed for device in problem.devices)
    behind = [rank / fastest for rank in up_ranks(problem)]
    count = len(problem.vertices)
    device_of, ends = [-1] * count, [0.0] * count
    free = [0.0] * len(problem.devices)
    best = float("inf")

    def arrival(vertex, device):
        moment = 0.0
        for source, size in problem.predecessors[vertex].items():
            own = ends[source]
            if device_of[source] != device:
                own += problem.latency_s + size / problem.rates[device_of[source]][device]
            moment = max(moment, own)
        return moment

    def devices_of(vertex):
        group = problem.group_of[vertex]
        placed = {device_of[other] for other in problem.groups[group]} - {-1}
        return placed or problem.allowed[group]

    def follow(left, last):
        nonlocal best
        if not left:
            best = min(best, max(ends))
        for vertex in sorted(left):
            if any(source in left for source in problem.predecessors[vertex]):
                continue
            for device in devices_of(vertex):
                begin = max(free[device], arrival(vertex, device))
                if begin < last or begin + behind[vertex] >= best:
                    continue
                before = free[device], ends[vertex], device_of[vertex]
                ends[vertex] = begin + problem.vertices[vertex].operations / (
                    problem.devices[device].speed
                )
                free[device], device_of[vertex] = ends[vertex], device
                follow(left - {vertex}, begin)
                free[device], ends[vertex], device_of[vertex] = before

    follow(frozenset(range(count)), 0.0)
    return best
