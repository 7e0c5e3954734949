"""Graphs of transfers and ops with their times: literal, random, and of the size of ResNet-152."""

from __future__ import annotations

import math
from collections import Counter
from itertools import permutations

from caramel.planning.ordering.dependencies import communication_dependencies
from caramel.planning.ordering.executor import execute
from caramel.planning.ordering.time_oracle import TimeOracle
from caramel.planning.ordering.transfer_graph import Op, Recv, TransferGraph


def job(recvs, ops, *, channels=None):
    """A graph and its times.

    Args:
        recvs: name to seconds.
        ops: name to seconds and names of what it waits for, separated by spaces.
        channels: name of a transfer to its channel.
    """
    graph = TransferGraph(
        tuple(Recv(name, (channels or {}).get(name, "server")) for name in recvs),
        tuple(Op(name, tuple(needs.split())) for name, (_, needs) in ops.items()),
    )
    return graph, TimeOracle({name: time_s for name, (time_s, _) in ops.items()}, recvs)


def figure_1():
    """Figure 1 of TicTac: op1 waits for recv1, op2 for op1 and recv2."""
    return job({"recv1": 2, "recv2": 3}, {"op1": (4, "recv1"), "op2": (5, "op1 recv2")})


def figure_4a(*, m_a=1, m_b=1, p_a=1, p_b=1):
    """Figure 4a of 2018, 5a of 2019: op1 waits for A, op2 for B, op3 for both."""
    ops = {"op1": (p_a, "A"), "op2": (p_b, "B"), "op3": (1, "op1 op2")}
    return job({"A": m_a, "B": m_b}, ops)


def figure_4b(*, defined="ABCD"):
    """Figure 4b of 2018, 5b of 2019: op1 waits for A and B, op2 also for C, op3 also for D."""
    times_s = {"A": 1, "B": 2, "C": 3, "D": 4}
    ops = {"op1": (5, "A B"), "op2": (6, "op1 C"), "op3": (7, "op2 D")}
    return job({name: times_s[name] for name in defined}, ops)


def six_transfers():
    """Six transfers, whose orders the tests compute by hand."""
    return job(
        {"a": 2, "b": 3, "c": 1, "d": 4, "e": 2, "f": 1},
        {
            "x1": (3, "a"),
            "x2": (1, "b"),
            "x3": (5, "c d"),
            "x4": (2, "x1 x2"),
            "x5": (4, "x4 e"),
            "x6": (1, "x3 x5 f"),
        },
    )


def random_job(rng, recvs, ops, *, longest=9, channels=1, local=0.0):
    """Ops that wait for one to three of what is before them.

    Args:
        rng: a `random.Random`.
        recvs: how many transfers.
        ops: how many ops.
        longest: seconds; times are whole numbers from 0.
        channels: over which the transfers are spread.
        local: the share of the ops that wait for one of the last few only, as in a deep network.
    """
    names = [f"r{number}" for number in range(recvs)]
    transfers = {name: rng.randint(0, longest) for name in names}
    computed = {}
    for number in range(ops):
        near = names[-3:] if rng.random() < local else names
        needs = rng.sample(near, min(rng.randint(1, 3), len(near)))
        computed[f"op{number}"] = (rng.randint(0, longest), " ".join(needs))
        names.append(f"op{number}")
    return job(transfers, computed, channels={r: f"s{rng.randrange(channels)}" for r in transfers})


def shortest_by_brute_force_s(graph, time):
    """The least makespan of all orders, executed one by one."""
    names = [recv.name for recv in graph.recvs]
    return min(execute(graph, time, order).step_s for order in permutations(names))


def best_makespan_s(graph, time):
    """The least makespan of all orders on one channel, for up to a dozen transfers.

    When a set of transfers has arrived does not depend on their order, and a worker that is done
    earlier with what they released is never done later with the rest. So of all orders of a set
    only the best is gone on with.
    """
    recvs_s = [time.transfers_s[recv.name] for recv in graph.recvs]
    depends = communication_dependencies(graph)
    work_s = Counter()
    for op in graph.ops:
        work_s[depends[op.name]] += time.ops_s[op.name]
    numbers, every = range(len(recvs_s)), (1 << len(recvs_s)) - 1
    released_s = [sum(w for b, w in work_s.items() if not b & ~a) for a in range(every + 1)]
    done_s = [released_s[0]] + [math.inf] * every
    for arrived in range(1, every + 1):
        moment_s = sum(recvs_s[i] for i in numbers if arrived >> i & 1)
        for last in (i for i in numbers if arrived >> i & 1):
            before = arrived & ~(1 << last)
            more_s = released_s[arrived] - released_s[before]
            took_s = max(done_s[before], moment_s) + more_s if more_s else done_s[before]
            done_s[arrived] = min(done_s[arrived], took_s)
    return max(done_s[-1], sum(recvs_s))


def residual_network(*, blocks=40, compute_s=1.0, transfer_s=1.0):
    """Forward and backward pass of residual blocks of three layers, with 9 parameters each.

    With 40 blocks these are 363 transfers, as many as ResNet-152 v2 has, and 4,604 ops, of which it
    has 4,655 (2018, section 2.2).
    Times vary from layer to layer; all together take `compute_s` and `transfer_s`.
    """
    sizes, ops = {"stem/weight": 9}, {"input": (1, ""), "stem": (9, "input stem/weight")}
    layers, last = [], "stem"
    for block in range(blocks):
        skipped = last
        for number in range(3):
            layer = f"block{block}/layer{number}"
            last = _layer(layer, last, width=block + number + 1, sizes=sizes, ops=ops)
            layers.append(layer)
        last = f"block{block}/add"
        ops[last] = (1, f"{layer}/relu {skipped}")
    sizes |= {"dense/weight": 99, "dense/bias": 1}
    ops |= {"dense": (3, f"{last} dense/weight"), "loss": (1, "dense dense/bias")}
    gradient = "loss"
    for layer in reversed(layers):
        gradient = _backward(layer, gradient, ops=ops)
    graph, time = job(sizes, ops)
    return graph, TimeOracle(_scaled(time.ops_s, compute_s), _scaled(time.transfers_s, transfer_s))


def _layer(name, last, *, width, sizes, ops):
    """A convolution with batch normalisation; the name of its output."""
    sizes |= {f"{name}/weight": width * width, f"{name}/scale": 1, f"{name}/offset": 1}
    ops |= {
        f"{name}/convolution": (20 + width, f"{last} {name}/weight"),
        f"{name}/mean": (2, f"{name}/convolution"),
        f"{name}/variance": (2, f"{name}/convolution {name}/mean"),
        f"{name}/root": (0, f"{name}/variance"),
        f"{name}/factor": (0, f"{name}/root {name}/scale"),
        f"{name}/scaled": (3, f"{name}/convolution {name}/factor"),
        f"{name}/mean_scaled": (0, f"{name}/mean {name}/factor"),
        f"{name}/shift": (0, f"{name}/mean_scaled {name}/offset"),
        f"{name}/shifted": (3, f"{name}/scaled {name}/shift"),
        f"{name}/relu": (2, f"{name}/shifted"),
        f"{name}/decay": (1, f"{name}/weight"),
    }
    return f"{name}/relu"


def _backward(name, gradient, *, ops):
    """The gradients of a layer by 27 ops in a row; the name of the last one."""
    for number in range(27):
        ops[f"{name}/backward{number}"] = (2, f"{gradient} {name}/relu")
        gradient = f"{name}/backward{number}"
    return gradient


def _scaled(times_s, total_s):
    factor = total_s / sum(times_s.values())
    return {name: time_s * factor for name, time_s in times_s.items()}
