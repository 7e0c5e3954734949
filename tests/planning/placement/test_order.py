"""Edges and gates hold the order of the simulated step, and close no cycle."""

from __future__ import annotations

from graphlib import TopologicalSorter

from hypothesis import given, settings
from hypothesis import strategies as st

from caramel.analyzers.fusions import find_cycle
from caramel.analyzers.sendings import sendings
from caramel.core.facts import Fusions, TrainingJob, Variable
from caramel.core.graph import Op, OpGraph, TensorSpec
from caramel.core.names import TensorRef
from caramel.planning.placement.from_graph import problem_of
from caramel.planning.placement.order import planned_edges
from caramel.planning.placement.place import Placed
from caramel.planning.placement.problem import Device, equal_rates
from caramel.planning.placement.schedulers import SCHEDULERS
from caramel.planning.placement.send_gates import planned_gates
from caramel.planning.placement.simulate import simulate
from caramel.planning.placement.step_ops import step_ops
from caramel.planning.placement.whole_graph import placed_everywhere
from tests.planning.placement.test_from_graph import FOUR, graph_of, job

NONE = Fusions(())
DEVICES = ("d0", "d1", "d2")


class Step:
    """The simulated step of a graph whose ops are on the first device, or on others by name.

    Each op takes a second but for those in `seconds`, and each tensor of 16 bytes, too.
    """

    def __init__(self, graph, about=None, *, on=None, seconds=None, scheduler="pct", latency_s=0.0):
        self.graph, self.job = graph, about or job("w")
        self.layout = problem_of(
            graph,
            self.job,
            tuple(map(Device, DEVICES)),
            equal_rates(len(DEVICES), 16),
            latency_s=latency_s,
            seconds={**dict.fromkeys(graph.ops, 1.0), **(seconds or {})},
        )
        problem, on = self.layout.problem, on or {}
        placement = tuple(on.get(names[0], 0) for names in self.layout.ops)
        schedule = simulate(problem, placement, scheduler, links="one")
        self.placed = Placed(placement, schedule, ())
        known = self.layout.numbers_of(placement)
        self.placement = placed_everywhere(graph, known, DEVICES)
        self.ops = step_ops(self.layout, graph, self.job)

    def edges(self, fusions=NONE, computed=("loss",)):
        return planned_edges(self.layout, self.placed, self.graph, self.ops, computed, fusions)

    def gates(self, edges=(), fusions=NONE, in_flight_bytes=0, least_bytes=1):
        return planned_gates(
            self.layout,
            self.placed,
            self.graph,
            self.ops,
            sendings(self.placement, self.graph, self.job),
            edges,
            fusions,
            in_flight_bytes=in_flight_bytes,
            least_bytes=least_bytes,
        )


def ordered(*args, fusions=NONE, **how):
    return [(edge.before, edge.after) for edge in Step(*args, **how).edges(fusions)]


def gated(*args, in_flight_bytes=0, least_bytes=1, **how):
    gates = Step(*args, **how).gates(in_flight_bytes=in_flight_bytes, least_bytes=least_bytes)
    return [(str(gate.tensor), str(gate.after), gate.device) for gate in gates]


# Two branches of a step, of which one is longer, and an update that reads more than the gradient.
BRANCHES = {
    "x": "Placeholder",
    "a": "Neg x",
    "b": "Neg x",
    "c": "Neg b",
    "loss": "Add a c",
    "w": "VarHandleOp",
    "more": "Neg b",
    "update": "ResourceApplyGradientDescent w loss more",
    "train": "NoOp ^update",
}


def test_ops_of_a_device_follow_each_other_where_they_do_not_anyway():
    # By the longest path: x b a c loss. What only updates are computed from is left alone.
    assert ordered(graph_of(**BRANCHES)) == [("b", "a"), ("a", "c")]
    assert ordered(graph_of(**BRANCHES), on={"c": 1}) == [("b", "a")]
    assert ordered(graph_of(**BRANCHES), on={"a": 1}) == []


def test_short_ops_are_not_ordered():
    assert ordered(graph_of(**BRANCHES), seconds={"a": 40e-6}) == []
    assert ordered(graph_of(**BRANCHES), seconds={"c": 40e-6}) == [("b", "a")]


def test_an_op_waits_for_another_by_way_of_short_ones():
    seconds = {"b": 40e-6}  # between x and c
    assert ordered(graph_of(**BRANCHES), seconds=seconds) == [("a", "c")]


def with_initializer(name):
    variables = [
        Variable(f"w{n}", "w", initializer, "", FOUR, trainable=True, saved=True, full_name="w")
        for n, initializer in enumerate(name)
    ]
    return TrainingJob("train", TensorRef("loss", 0), variables=tuple(variables))


def test_what_an_initializer_reads_is_not_ordered():
    graph = graph_of(**BRANCHES, assign="AssignVariableOp w a", grouped="NoOp ^assign ^c")
    assert ordered(graph, with_initializer([])) == [("b", "a"), ("a", "c")]
    # Neither is what is grouped with it.
    assert ordered(graph, with_initializer(["assign"])) == []
    alone = graph_of(**BRANCHES, assign="AssignVariableOp w a", summary="Neg c")
    assert ordered(alone, with_initializer(["assign"])) == []  # b and c are in order anyway
    alone = graph_of(**BRANCHES, summary="Neg c")
    assert ordered(alone, with_initializer([])) == [("b", "a"), ("a", "c")]


CONDITIONAL = {
    **BRANCHES,
    "other": "Switch b a",
    "yes": "Neg other:1",
    "no": "Neg other",
    "merged": "Merge yes no",
    "loss": "Add merged c",
}


def test_conditionals_are_not_ordered():
    ops = {name for edge in ordered(graph_of(**CONDITIONAL)) for name in edge}
    assert ops <= {"x", "a", "b", "c", "loss"}


def test_loops_are_not_ordered():
    graph = graph_of(
        **{
            **BRANCHES,
            "enter": "Enter b",
            "merge": "Merge enter next",
            "cond": "LoopCond merge",
            "switch": "Switch merge cond",
            "body": "Neg switch:1",
            "next": "NextIteration body",
            "exit": "Exit switch",
            "loss": "Add exit c",
        }
    )
    graph = OpGraph(
        {n: _with(op, frame_name="f") if op.kind == "Enter" else op for n, op in graph.ops.items()}
    )
    ops = {name for edge in ordered(graph) for name in edge}
    assert ops <= {"x", "a", "b", "c", "loss"}


def _with(op, **attributes):
    return Op(op.name, op.kind, "", op.inputs, op.control_inputs, op.outputs, attributes=attributes)


def test_ops_that_may_be_computed_as_one_wait_for_nothing_more():
    assert ordered(graph_of(**BRANCHES), fusions=Fusions((("a", "more"),))) == [("a", "c")]


def test_there_is_no_order_in_which_such_ops_wait_for_themselves():
    # a, then b, for which c waits: as one op, a and c would wait for b, and b for a.
    graph, long = graph_of(**BRANCHES), {"a": 9.0}
    assert ordered(graph, seconds=long) == [("a", "b")]
    assert ordered(graph, seconds=long, fusions=Fusions((("a", "c"),))) == []


# Gates ------------------------------------------------------------------------------------------

# Three tensors that get ready one after the other, and their sum.
THREE = {
    "x": "Placeholder",
    "a": "Neg x",
    "b": "Neg a",
    "c": "Neg b",
    "loss": "AddN a b c",
    "w": "VarHandleOp",
    "update": "ResourceApplyGradientDescent w loss",
    "train": "NoOp ^update",
}
AWAY = {"loss": 1, "w": 1, "update": 1}


def test_a_tensor_waits_for_the_arrival_of_an_earlier_one():
    graph = graph_of(**THREE)
    assert gated(graph, on=AWAY) == [("b:0", "a:0", 1), ("c:0", "b:0", 1)]
    # Two of 16 bytes in flight.
    assert gated(graph, on=AWAY, in_flight_bytes=32) == [("c:0", "a:0", 1)]
    assert gated(graph, on=AWAY, in_flight_bytes=48) == []
    assert gated(graph, on=AWAY, least_bytes=17) == []
    assert gated(graph) == []


def test_each_two_devices_have_gates_of_their_own():
    graph = graph_of(**THREE)
    # b is sent from another device, and read in two places.
    assert gated(graph, on={**AWAY, "b": 2}) == [("c:0", "a:0", 1)]


def test_what_an_initializer_reads_is_not_gated():
    graph = graph_of(**THREE, assign="AssignVariableOp w a")
    about = with_initializer(["assign"])
    assert gated(graph, about, on=AWAY) == [("c:0", "b:0", 1)]


def test_tensors_of_conditionals_are_not_gated():
    graph = graph_of(**{**CONDITIONAL, "loss": "AddN a b c merged"})
    gates = gated(graph, on=AWAY)
    assert gates
    assert not {"merged:0"} & {tensor for gate in gates for tensor in gate[:2]}


# Both, on random graphs -------------------------------------------------------------------------


def random_step(draw):
    """A step of a random graph that is placed at random, with random pairs that may be one op."""
    count = draw.randint(2, 14)
    sizes = [[draw.randint(1, 40) for _ in range(draw.randint(1, 2))] for _ in range(count)]
    made = {}
    for n in range(count):
        inputs, controls = [], []
        for source in draw.sample(range(n), min(n, draw.randint(0, 3))):
            if draw.random() < 0.2:
                controls.append(f"v{source}")
            else:
                inputs.append(TensorRef(f"v{source}", draw.randrange(len(sizes[source]))))
        outputs = tuple(TensorSpec("int8", (size,)) for size in sizes[n])
        made[f"v{n}"] = Op(f"v{n}", "Neg", "", tuple(inputs), tuple(controls), outputs)
    made["loss"] = Op("loss", "Neg", "", (TensorRef(f"v{count - 1}", 0),), (), (FOUR,))
    made["train"] = Op("train", "NoOp", "", (), tuple(made))
    graph = OpGraph(made)
    step = Step(
        graph,
        job(),
        on={name: draw.randrange(3) for name in made},
        seconds={name: draw.choice((0, 1, 1, 2)) for name in made},
        scheduler=draw.choice(list(SCHEDULERS)),
        latency_s=draw.choice((0, 1)),
    )
    number_of = step.placement.number_of
    names = draw.sample(list(made)[:-1], 2 * draw.randint(0, min(3, (len(made) - 1) // 2)))
    pairs = zip(names[::2], names[1::2], strict=True)
    fusions = Fusions(tuple((a, b) for a, b in pairs if number_of[a] == number_of[b]))
    return step, fusions if find_cycle(graph, fusions) is None else NONE


def waits(step, edges, gates, one):
    """What waits for what in the graph that is executed, where some ops are one."""
    number_of = step.placement.number_of
    found = {}
    for op in step.graph:
        own, target = one.get(op.name, op.name), number_of[op.name]
        behind = found.setdefault(own, set())
        for tensor, source in [(t, t.op) for t in op.inputs] + [(s, s) for s in op.control_inputs]:
            name = one.get(source, source)
            if number_of[source] == target:
                behind |= {name} - {own}
            else:
                behind.add(("received", tensor, target))
                found["received", tensor, target] = {("sent", tensor, target)}
                found.setdefault(("sent", tensor, target), set()).add(name)
    for edge in edges:
        found[one.get(edge.after, edge.after)].add(one.get(edge.before, edge.before))
    for gate in gates:
        assert ("received", gate.after, gate.device) in found
        found["sent", gate.tensor, gate.device].add(("received", gate.after, gate.device))
    return found


@settings(max_examples=200)
@given(
    draw=st.randoms(use_true_random=False),
    in_flight_bytes=st.sampled_from((0, 20, 60)),
    of_another=st.booleans(),
)
def test_nothing_waits_for_itself(draw, in_flight_bytes, of_another):
    step, fusions = random_step(draw)
    if of_another:  # step of the job, in which ops wait for more than in the simulated one
        names = list(step.graph.ops)[:-1]
        pairs = [sorted(draw.sample(range(len(names)), 2)) for _ in range(2)]
        more = [(names[first], names[second]) for first, second in pairs]
        graph = step.graph.with_edges(more)
        step.graph, fusions = graph, fusions if find_cycle(graph, fusions) is None else NONE
    edges = step.edges(fusions, computed=list(step.graph.ops))
    gates = step.gates(edges, fusions, in_flight_bytes)
    one = {name: group[0] for group in fusions.groups for name in group}
    for joined in ({}, one):
        TopologicalSorter(waits(step, edges, gates, joined)).prepare()  # raises on a cycle


@settings(max_examples=100)
@given(draw=st.randoms(use_true_random=False), in_flight_bytes=st.sampled_from((0, 20, 60)))
def test_the_simulated_step_holds_all_of_them(draw, in_flight_bytes):
    step, _ = random_step(draw)
    schedule, layout = step.placed.schedule, step.layout
    vertex_of = {names[0]: number for number, names in enumerate(layout.ops)}
    for edge in step.edges(computed=list(step.graph.ops)):
        before, after = vertex_of[edge.before], vertex_of[edge.after]
        assert step.placed.placement[before] == step.placed.placement[after]
        assert schedule.ends[before] <= schedule.begins[after]
    moments = {
        (layout.tensors[number], device): (begin, end)
        for number, device, begin, end in schedule.transfers
        if number < len(layout.tensors)
    }
    for gate in step.gates(in_flight_bytes=in_flight_bytes):
        assert moments[gate.after, gate.device][1] <= moments[gate.tensor, gate.device][0]
