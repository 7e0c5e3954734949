"""The algorithms of TicTac in the papers' own form: sets, over all ops at every step.

The comparator is that of equation 6, not the one printed in Algorithm 3. Times are whole numbers of
picoseconds, as in the package.
"""

from __future__ import annotations

import math

PICOSECONDS = 10**12


def dependencies(graph):
    """`dep` of each op and transfer, by depth-first post-fix traversal (section 4.1)."""
    ops = {op.name: op for op in graph.ops}
    dep = {recv.name: frozenset([recv.name]) for recv in graph.recvs}
    for root in ops:
        stack = [root]
        while stack:
            name = stack[-1]
            below = [d for d in ops[name].dependencies if d not in dep] if name not in dep else []
            if below:
                stack.extend(below)
            else:
                if name not in dep:
                    dep[name] = frozenset().union(*(dep[d] for d in ops[name].dependencies))
                stack.pop()
    return dep


def whole_times(graph, time):
    """Time(op) of ops and transfers."""
    return {
        **{op.name: round(time.ops_s.get(op.name, 0) * PICOSECONDS) for op in graph.ops},
        **{r.name: round(time.transfers_s[r.name] * PICOSECONDS) for r in graph.recvs},
    }


def update_properties(dep, times, outstanding):
    """Algorithm 1: M of ops and transfers, P and M+ of outstanding transfers."""
    m = {name: sum(times[r] for r in dep[name] & outstanding) for name in dep}
    p = dict.fromkeys(outstanding, 0)
    m_plus = dict.fromkeys(outstanding, math.inf)
    for name in dep.keys() - outstanding:
        d = dep[name] & outstanding
        if len(d) == 1:
            for r in d:
                p[r] += times[name]
        if len(d) > 1:
            for r in d:
                m_plus[r] = min(m_plus[r], m[name])
    return m, p, m_plus


def overlap_sides(a, b, m, p):
    """Both sides of equation 6 for A before B."""
    return min(p[b], m[a]), min(p[a], m[b])


def comparator(a, b, m, p, m_plus):
    """Whether A goes before B, by equation 6 and M+."""
    left, right = overlap_sides(a, b, m, p)
    return left < right if left != right else m_plus[a] < m_plus[b]


def minimum(outstanding, m, p, m_plus):
    """The next transfer by the rule of the package, which compares all with all."""

    def by_overlap(a, b):
        left, right = overlap_sides(a, b, m, p)
        return left < right

    for a in outstanding:
        if not any(comparator(b, a, m, p, m_plus) for b in outstanding):
            return a
    unpreceded = [a for a in outstanding if not any(by_overlap(b, a) for b in outstanding)]
    return min(unpreceded, key=lambda a: m_plus[a])


def tac(graph, time):
    """Algorithm 3."""
    dep, times = dependencies(graph), whole_times(graph, time)
    outstanding = [recv.name for recv in graph.recvs]
    order = []
    while outstanding:
        properties = update_properties(dep, times, frozenset(outstanding))
        order.append(minimum(outstanding, *properties))
        outstanding.remove(order[-1])
    return tuple(order)


def tic(graph):
    """Algorithm 2: priorities."""
    dep = dependencies(graph)
    outstanding = frozenset(recv.name for recv in graph.recvs)
    times = {name: int(name in outstanding) for name in dep}
    return update_properties(dep, times, outstanding)[2]
