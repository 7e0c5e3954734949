"""Gradients get ready in one order: which edges that takes, and that they change nothing else."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import caramel
from caramel.analyzers import ANALYZERS
from caramel.analyzers.analysis import Analysis
from caramel.analyzers.units import targets_of
from caramel.core.decision import Edge
from caramel.core.errors import PlanError
from caramel.core.facts import GradientFrontier, LoopFrames
from caramel.core.names import in_replica
from caramel.core.time_facts import ActivationOrder, TimingTable
from caramel.planning.control_edges import serialize, units_never_held
from tests.support import networks
from tests.support.graphs import traced_step
from tests.support.networks import CLASSES, FEATURES, WIDTH, parameter, tf
from tests.support.orders import FIGURE_1, Step, step

# Examples ---------------------------------------------------------------------------------------


def test_the_orders_of_figure_1_take_one_edge_each():
    assert FIGURE_1.edges("B", "A") == (Edge("grad_b", "back_1"),)
    assert FIGURE_1.edges("A", "B") == (Edge("grad_a", "grad_b"),)


def test_an_edge_that_the_graph_has_is_not_added():
    job = step(
        {"A": "grad_a", "B": "grad_b"},
        loss="Mean",
        grad_a="Mul",
        grad_b="Mul ^grad_a",
        train="NoOp ^grad_b",
    )
    assert job.edges("A", "B") == ()


def test_gradients_that_are_one_tensor_get_ready_together():
    job = step(
        {"A": "both", "B": "both", "C": "grad_c"},
        loss="Mean",
        both="Mul",
        grad_c="Mul",
        train="NoOp ^both ^grad_c",
    )
    assert job.edges("A", "B", "C") == job.edges("B", "A", "C") == (Edge("both", "grad_c"),)
    assert job.edges("A", "C", "B") == (Edge("both", "grad_c"),)


def test_what_follows_a_sparse_gradient_waits_for_values_and_indices():
    job = step(
        {"E": ("values", "indices"), "A": "grad_a"},
        loss="Mean",
        values="Mul",
        indices="Unique",
        grad_a="Mul",
        train="NoOp ^values ^indices ^grad_a",
    )
    assert job.edges("E", "A") == (Edge("values", "grad_a"), Edge("indices", "grad_a"))
    assert job.edges("A", "E") == (Edge("grad_a", "values"), Edge("grad_a", "indices"))


def test_values_that_wait_for_the_indices_stand_for_both():
    job = step(
        {"E": ("values", "indices"), "A": "grad_a"},
        loss="Mean",
        indices="Unique",
        values="Mul indices",
        grad_a="Mul",
        train="NoOp ^values ^indices ^grad_a",
    )
    assert job.edges("E", "A") == (Edge("values", "grad_a"),)


def test_neither_the_forward_pass_nor_inputs_nor_other_programs_wait():
    job = step(
        {"A": "grad_a", "B": "grad_b"},
        first="MatMul",
        late="MatMul",
        loss="AddV2 first late",
        grad_a="Mul first",
        labels="Placeholder",
        batch="IteratorGetNext",
        shape="Const",
        factor="Mul B/value",
        grad_b="Select late labels batch shape factor",
        train="NoOp ^grad_a ^grad_b",
    )
    assert job.edges("A", "B") == (Edge("grad_a", "factor"),)


def test_a_constant_that_waits_for_something_is_as_any_other_op():
    job = step(
        {"A": "grad_a", "B": "grad_b"},
        loss="Mean",
        grad_a="Mul",
        one="Const ^grad_a",
        zero="Const ^grad_b",
        grad_b="Mul",
        train="NoOp one zero",
    )
    assert job.edges("A", "B") == (Edge("grad_a", "grad_b"),)


def test_what_no_gradient_needs_is_not_ordered():
    job = step(
        {"A": "grad_a", "B": "grad_b"},
        loss="Mean",
        grad_a="Mul",
        average="AssignSubVariableOp",
        grad_b="Mul",
        update_a="Neg grad_a average",
        train="NoOp ^update_a ^grad_b",
    )
    assert job.edges("A", "B") == (Edge("grad_a", "grad_b"),)


def test_an_order_that_cannot_be_is_refused():
    job = step(
        {"A": "grad_a", "B": "grad_b", "C": "grad_c"},
        loss="Mean",
        grad_a="Mul",
        grad_b="Mul grad_a",
        grad_c="Mul",
        train="NoOp ^grad_b ^grad_c",
    )
    with pytest.raises(PlanError, match="'A' cannot get ready after that of 'B', which is comp"):
        job.edges("B", "C", "A")
    with pytest.raises(PlanError, match="lacks 'C'"):
        job.edges("A", "B")


def test_a_part_of_a_sparse_gradient_is_not_ready_after_the_whole():
    job = step(
        {"A": "grad_a", "E": ("grad_a", "indices")},
        loss="Mean",
        grad_a="Mul",
        indices="Unique grad_a",
        train="NoOp ^indices",
    )
    assert job.edges("A", "E") == ()
    with pytest.raises(PlanError, match="'A' cannot get ready after that of 'E'"):
        job.edges("E", "A")


# Loops ------------------------------------------------------------------------------------------

LOOP = {
    "enter": "Enter start",
    "merge": "Merge enter next",
    "condition": "LoopCond merge",
    "switch": "Switch merge condition",
    "body": "MatMul switch",
    "next": "NextIteration body",
    "exit": "Exit switch",
}
# A second variable of the same loop.
SUMMED = {
    "zeros": "Mul",
    "sum_enter": "Enter zeros",
    "sum_merge": "Merge sum_enter sum_next",
    "sum_switch": "Switch sum_merge condition",
    "sum_body": "AddV2 sum_switch body",
    "sum_next": "NextIteration sum_body",
    "sum_exit": "Exit sum_switch",
}


def test_a_loop_is_held_back_where_it_is_entered():
    job = step(
        {"A": "grad_a", "B": "grad_b"},
        grad_a="Mul",
        start="Const",
        **LOOP,
        grad_b="Mul exit",
        loss="Mean",
        train="NoOp ^grad_a ^grad_b",
    )
    assert job.edges("A", "B") == (Edge("grad_a", "enter"),)
    assert job.edges("B", "A") == (Edge("grad_b", "grad_a"),)


def test_of_gradients_out_of_one_loop_only_what_lies_behind_is_ordered():
    job = step(
        {"A": "grad_a", "B": "grad_b", "C": "grad_c"},
        start="Mul",
        **LOOP,
        **SUMMED,
        grad_a="Mul exit",
        grad_b="Mul sum_exit",
        grad_c="Mul",
        loss="Mean",
        train="NoOp ^grad_a ^grad_b ^grad_c",
    )
    assert job.edges("A", "B", "C") == (Edge("grad_a", "grad_b"), Edge("grad_b", "grad_c"))
    assert job.edges("C", "B", "A") == (
        *(Edge("grad_c", "start"), Edge("grad_c", "zeros")),
        Edge("grad_b", "grad_a"),
    )


def test_what_comes_out_of_a_loop_is_not_held_and_later_gradients_wait_for_both():
    job = step(
        {"A": "grad_a", "B": "sum_exit", "C": "grad_c"},
        start="Mul",
        **LOOP,
        **SUMMED,
        grad_a="Mul exit",
        grad_c="Mul",
        loss="Mean",
        train="NoOp ^grad_a ^sum_exit ^grad_c",
    )
    assert job.edges("A", "B", "C") == (Edge("grad_a", "grad_c"), Edge("sum_exit", "grad_c"))


def test_a_loop_of_the_forward_pass_is_not_held():
    job = step(
        {"A": "grad_a", "B": "grad_b"},
        grad_a="Mul",
        start="Mul",
        **LOOP,
        **SUMMED,
        loss="Mean exit",
        grad_b="Mul sum_exit",
        train="NoOp ^grad_a ^grad_b",
    )
    assert job.edges("A", "B") == (Edge("grad_a", "grad_b"),)


# All executions of random graphs ----------------------------------------------------------------


@st.composite
def random_steps(draw) -> Step:
    count = draw(st.integers(2, 8))
    ops = {}
    for number in range(count):
        before = draw(st.sets(st.integers(0, number - 1), max_size=3)) if number else ()
        kind = draw(st.sampled_from(["Mul", "Mul", "Mul", "Const", "Placeholder"]))
        sources = [f"op_{source}" for source in sorted(before)]
        ops[f"op_{number}"] = " ".join([kind if not sources else "Mul", *sources])
    names = st.sampled_from(sorted(ops))
    tensors = st.one_of(names, st.tuples(names, names))
    gradients = draw(st.lists(tensors, min_size=1, max_size=4))
    parameters = {f"p_{number}": tensor for number, tensor in enumerate(gradients)}
    forward = draw(st.sets(names, max_size=2))
    loss = " ".join(["Mean", *sorted(forward)])
    return step(parameters, **ops, loss=loss, train=f"NoOp {' '.join(f'^{n}' for n in ops)}")


def sources_with(job: Step, edges) -> dict[str, set[str]]:
    """What each op of the step waits for."""
    names = job.graph.ancestors(["train", "loss"])
    sources = {name: set(job.graph[name].sources) for name in job.graph.ops if name in names}
    for edge in edges:
        sources[edge.after].add(edge.before)
    return sources


def executions(sources):
    """All sets of ops that can have run at some time, each with the ops that can run next."""
    seen, waiting = {frozenset()}, [frozenset()]
    while waiting:
        done = waiting.pop()
        ready = {name for name, own in sources.items() if name not in done and own <= done}
        assert ready or len(done) == len(sources), "the edges close a cycle"
        yield done, ready
        for name in ready:
            if done | {name} not in seen:
                seen.add(done | {name})
                waiting.append(done | {name})


def never_held(job: Step) -> set[str]:
    units = job.units
    parts = units.by_target(list(targets_of(job.frontier).values()))[:-1]
    held = units_never_held(job.graph, job.job, units, parts)
    return {name for unit in held for name in units.ops[unit]}


def possible(job: Step, order) -> bool:
    """Whether, edges or not, no gradient has to be ready before one that stands before it."""
    targets, free = targets_of(job.frontier), never_held(job)
    for number, name in enumerate(order):
        own, needed = set(targets[name]) - free, set()
        for earlier in order[:number]:
            # What is computed last for the earlier one, if all before it has been.
            last = set(targets[earlier]) - free - needed
            last -= {n for n in last for other in last - {n} if n in job.graph.ancestors([other])}
            needed |= job.graph.ancestors(targets[earlier])
            if own and own <= needed:
                if not own & last:
                    return False
                break
    return True


@settings(max_examples=150)
@given(random_steps(), st.randoms(use_true_random=False))
def test_every_execution_keeps_the_order(job, random):
    targets, free = targets_of(job.frontier), never_held(job)
    order = random.choice(list(permutations(targets)))
    try:
        edges = job.edges(*order)
    except PlanError:
        assert not possible(job, order)
        return
    needed = {name: job.graph.ancestors(targets[name]) for name in order}
    for done, ready in executions(sources_with(job, edges)):
        remaining = [name for name in order if not set(targets[name]) - free <= done]
        allowed = set().union(*(needed[name] for name in remaining[:1]))
        later = set().union(*(needed[name] for name in remaining[1:]))
        assert not (ready & later) - allowed - free, (done, ready, edges)


@settings(max_examples=100)
@given(random_steps(), st.randoms(use_true_random=False))
def test_no_edge_is_implied_and_what_is_not_ordered_waits_for_nothing_new(job, random):
    order = random.choice(list(permutations(targets_of(job.frontier))))
    try:
        edges = job.edges(*order)
    except PlanError:
        return
    assert len(set(edges)) == len(edges)
    free = never_held(job)
    gradients = {name for own in targets_of(job.frontier).values() for name in own}
    needed = job.graph.ancestors(gradients)
    for edge in edges:
        assert edge.after in needed - free
        assert edge.before in gradients
        sources = sources_with(job, [other for other in edges if other != edge])
        assert edge.before not in reachable(sources, edge.after), edge


def reachable(sources, name) -> set[str]:
    seen, waiting = set(), [name]
    while waiting:
        for source in sources[waiting.pop()]:
            if source not in seen:
                seen.add(source)
                waiting.append(source)
    return seen


# Distributed graphs -----------------------------------------------------------------------------


def fan(x):
    """Layers side by side, whose gradients can get ready in any order."""
    parts = []
    for number in range(6):
        w = parameter(f"w{number}", [FEATURES, WIDTH], x.dtype)
        parts.append(tf.tanh(x @ w + parameter(f"b{number}", [WIDTH], x.dtype)))
    return tf.add_n(parts) @ parameter("out", [WIDTH, CLASSES], x.dtype)


def loop(x):
    w, v = parameter("w", [FEATURES, WIDTH], x.dtype), parameter("v", [WIDTH, WIDTH], x.dtype)
    b = parameter("b", [WIDTH], x.dtype)
    _, h = tf.while_loop(lambda i, h: i < 40, lambda i, h: (i + 1, tf.tanh(h @ v + b)), [0, x @ w])
    return h @ parameter("out", [WIDTH, CLASSES], x.dtype)


def embedded(x):
    rows = tf.gather(parameter("rows", [7, WIDTH], x.dtype), tf.cast(tf.abs(x[:, 0]), tf.int32) % 7)
    return (rows + x @ parameter("w", [FEATURES, WIDTH], x.dtype)) @ parameter(
        "out", [WIDTH, CLASSES], x.dtype
    )


def planned(job: networks.Network, reverse: bool = False, workers: int = 2):
    """A model with the edges of the greedy order, or of one as different as can be, and that."""
    context = job.context()
    graph, own = context.op_graph, context.job
    analysis = Analysis([graph, own, TimingTable({})], ANALYZERS)
    frontier, frames = analysis.get(GradientFrontier), analysis.get(LoopFrames)
    order = analysis.get(ActivationOrder)
    if reverse:
        order = ActivationOrder(tuple(reversed(order.parameters)))
    edges = serialize(graph, own, frontier, frames, order)
    plain = caramel.ARModel(context, workers=workers)
    plan = plain.plan.deciding(edges=edges)
    return plain, caramel.ARModel(context, workers=workers, plan=plan, check=True), order


def trained(model: caramel.ARModel, start: str, feed, steps: int = 4):
    with model.session() as session:
        session.restore(start)
        losses = [session.step(feed) for _ in range(steps)]
        return losses, session.variables()


@pytest.mark.parametrize(
    ("model", "optimizer", "version"),
    networks.partly(
        pytest.mark.onednn,
        [
            (networks.perceptron, "adam", "v2"),
            (networks.tied, "momentum", "v2"),
            (fan, "momentum", "v2"),
            (embedded, "adagrad", "v2"),
            (loop, "rmsprop", "v1"),
            (loop, "rmsprop", "v2"),
        ],
        every=2,
    ),
)
def test_edges_change_no_bit(model, optimizer, version, tmp_path):
    with networks.control_flow_version(version):
        job = networks.network(
            optimizer, "clip_by_global_norm", model=model, dtype=tf.float32, decayed_loss=True
        )
    plain, ordered, _ = planned(job)
    assert ordered.plan.decision.edges
    assert ordered.traffic == plain.traffic
    with plain.session() as session:
        start = session.save(tmp_path / "start")
    expected_losses, expected = trained(plain, start, job.feed)
    losses, values = trained(ordered, start, job.feed)
    assert losses == expected_losses
    for name, value in expected.items():
        np.testing.assert_array_equal(values[name], value, err_msg=name)


@pytest.mark.parametrize("reverse", [False, True])
def test_gradients_get_ready_in_the_planned_order_on_every_worker(reverse):
    job = networks.network("momentum", model=fan)
    _, model, order = planned_fan(job, reverse)
    for _ in range(3):
        ends = traced_step(model, job.feed).ends
        for worker in range(2):
            times = [
                ends[in_replica(worker, model.plan.gradient(name).values.op)]
                for name in order.parameters
            ]
            assert times == sorted(times)


def planned_fan(job: networks.Network, reverse: bool):
    """The layers in the order of their numbers, or the other way round."""
    context = job.context()
    analysis = Analysis([context.op_graph, context.job], ANALYZERS)
    frontier, frames = analysis.get(GradientFrontier), analysis.get(LoopFrames)
    numbers = range(6)
    layers = [[f"b{n}", f"w{n}"] for n in (reversed(numbers) if reverse else numbers)]
    order = ActivationOrder(("out", *(name for layer in layers for name in layer)))
    edges = serialize(context.op_graph, context.job, frontier, frames, order)
    plain = caramel.ARModel(context, workers=2)
    plan = plain.plan.deciding(edges=edges)
    return plain, caramel.ARModel(context, workers=2, plan=plan, check=True), order


def test_every_replica_has_the_edges():
    job = networks.network("momentum", model=fan)
    _, model, _ = planned(job, workers=3)
    for worker in range(3):
        for edge in model.plan.decision.edges:
            after = model.graph.get_operation_by_name(in_replica(worker, edge.after))
            assert in_replica(worker, edge.before) in {op.name for op in after.control_inputs}


@pytest.mark.parametrize(
    ("edge", "message"),
    [
        (Edge("nothing", "w1/Read/ReadVariableOp"), "names 'nothing', which worker 0 does not"),
        (Edge("w1/Read/ReadVariableOp", "nothing"), "names 'nothing', which worker 0 does not"),
        (Edge("x", "x"), "do not fit the graph: the graph has a cycle: worker_0/x -> worker_0/x"),
    ],
)
def test_edges_that_do_not_fit_the_graph_are_refused(edge, message):
    job = networks.network("momentum")
    plan = caramel.ARModel(job.context(), workers=2).plan.deciding(edges=(edge,))
    with pytest.raises(PlanError, match=message):
        caramel.ARModel(job.context(), workers=2, plan=plan)


def test_edges_across_the_border_of_a_loop_are_refused():
    with networks.control_flow_version("v1"):
        context = networks.network("momentum", model=loop).context()
    model = caramel.ARModel(context, workers=2)
    graph, frames = context.op_graph, Analysis([context.op_graph], ANALYZERS).get(LoopFrames).frame
    outside = "w/Read/ReadVariableOp"
    inside = next(op.name for op in graph if op.kind == "Tanh" and frames[op.name])
    enters = next(op.name for op in graph if op.kind == "Enter" and frames[inside] == op.name)
    leaves = next(op.name for op in graph if op.kind == "Exit" and not frames[op.name])

    def with_edge(before, after):
        plan = model.plan.deciding(edges=(Edge(before, after),))
        return caramel.ARModel(context, workers=2, plan=plan)

    assert not frames[outside]
    for before, after in ((outside, inside), (inside, outside), (inside, enters)):
        with pytest.raises(PlanError, match=f"'{before}' -> '{after}', crosses the border"):
            with_edge(before, after)
    with_edge(outside, enters)
    with_edge(leaves, next(g.consumers[0] for g in model.plan.job.gradients))
