"""In which order workers receive variables: gates of each channel, and orders by hand."""

from __future__ import annotations

import pytest

from caramel.core.decision import Pull
from caramel.core.errors import PlanError
from caramel.core.plan import Plan
from caramel.core.time_facts import TimingTable, TransferTimes
from caramel.planning.ordering.executor import execute
from caramel.planning.serving.planner import (
    DEFAULT_IN_FLIGHT_BYTES,
    VAIN,
    ServingPlanner,
    ordered,
    usual_in_flight_bytes,
)
from caramel.planning.serving.received import received, time_oracle
from caramel.planning.worth_a_trial import PLAIN
from caramel.simulation.network_model import assumed_network
from tests.support.served_graphs import ServedGraph, graph_of

SERVERS = ("/job:ps/task:0", "/job:ps/task:1")
NAMES = tuple("edcba")  # in the order of definition

# Each op waits for one transfer, and nothing but their sum for several. Seconds of the transfers:
# those that are shorter than what they let be computed go first, the shortest of these before; of
# the others the one with the most to compute (Johnson 1954, of which TAC's equation 6 is a case).
TRANSFERS_S = {"a": 3, "b": 1, "c": 2, "d": 4, "e": 5}
OPS_S = {"op_a": 2.0, "op_b": 4.0, "op_c": 5.0, "op_d": 1.0, "op_e": 1.5}
BY_HAND = ["b", "c", "a", "e", "d"]


def five_transfers(*servers: str) -> ServedGraph:
    """An agent's step that reads five variables of as many floats as they take seconds."""
    handles = dict.fromkeys(NAMES, "VarHandleOp")
    reads = {f"read_{name}": f"ReadVariableOp {name}" for name in NAMES}
    ops = {f"op_{name}": f"Mul x read_{name}" for name in NAMES}
    total = "AddN " + " ".join(ops)
    graph = graph_of(
        elements=TRANSFERS_S,
        x="Placeholder",
        **handles,
        **reads,
        **ops,
        loss=total,
        train="NoOp ^loss",
    )
    return ServedGraph(graph, {}, servers or (" ".join(NAMES),), train_op="loss")


def chain() -> ServedGraph:
    """Each op waits for the one before and one more transfer, from a to e."""
    handles = dict.fromkeys(NAMES, "VarHandleOp")
    reads = {f"read_{name}": f"ReadVariableOp {name}" for name in NAMES}
    ops = {"op_a": "Mul x read_a", "op_b": "Mul op_a read_b", "op_c": "Mul op_b read_c"}
    ops |= {"op_d": "Mul op_c read_d", "loss": "Mul op_d read_e"}
    return ServedGraph(
        graph_of(x="Placeholder", **handles, **reads, **ops, train="NoOp ^loss"),
        {},
        (" ".join(NAMES),),
        train_op="loss",
    )


def plain_of(made: ServedGraph) -> Plan:
    """The plan with a pull of each variable that the step reads."""
    readings = made.serving().readings
    return made.plan.deciding(pulls=tuple(Pull(each.variable) for each in readings))


def chosen(made: ServedGraph, ordering, *facts, in_flight_bytes=None):
    planner = ServingPlanner(SERVERS, ordering, in_flight_bytes, overlap=False)
    return planner, planner.choose(plain_of(made), made.knowing(*facts))


def order_of(plan: Plan) -> list[str]:
    return [pull.variable for pull in plan.decision.pulls]


def waits(plan: Plan) -> dict[str, tuple[str, ...]]:
    return {pull.variable: pull.after for pull in plan.decision.pulls}


# Gates -------------------------------------------------------------------------------------------


def test_with_nothing_in_flight_each_waits_for_the_one_before():
    plan = ordered(plain_of(five_transfers()), "cabed", 0)
    assert order_of(plan) == [*"cabed"]
    assert waits(plan) == {"c": (), "a": ("c",), "b": ("a",), "e": ("b",), "d": ("e",)}


def test_each_server_has_a_chain_of_its_own():
    plan = ordered(plain_of(five_transfers("a c e", "b d")), "bcdae", 0)
    assert waits(plan) == {"b": (), "c": (), "d": ("b",), "a": ("c",), "e": ("a",)}
    firsts = [name for name, after in waits(plan).items() if not after]
    assert len(firsts) == 2


def test_a_limit_holds_for_each_server_by_itself():
    """Floats of 4 bytes: a 12, b 4, c 8, d 16, e 20."""
    plan = ordered(plain_of(five_transfers("a c e", "b d")), "bcdae", 20)
    assert waits(plan) == {"b": (), "c": (), "d": (), "a": (), "e": ("c",)}
    plan = ordered(plain_of(five_transfers()), "bcade", 24)
    assert waits(plan) == {"b": (), "c": (), "a": (), "d": ("c",), "e": ("a",)}


def test_pulls_say_which_op_needs_them():
    _, decision = chosen(five_transfers(), "tic", in_flight_bytes=0)
    reasons = {pull.variable: pull.reason for pull in decision.plan.decision.pulls}
    assert reasons["a"] == "'read_a' needs it"


# Orders ------------------------------------------------------------------------------------------


def test_what_blocks_least_comes_first_where_no_times_are_known():
    """By TIC: op_b needs 2 transfers, op_c 3, so a and b come first, as they are defined."""
    for ordering in ("tic", "execution_ordering"):
        _, decision = chosen(chain(), ordering)
        assert order_of(decision.plan) == ["b", "a", "c", "d", "e"]


@pytest.mark.parametrize("ordering", ["tac", "search"])
def test_what_needs_times_is_made_by_tic_until_there_are_some(ordering):
    planner, decision = chosen(chain(), ordering)
    assert order_of(decision.plan) == ["b", "a", "c", "d", "e"]
    assert decision.source == "by TIC, because nothing is known of times"
    assert planner.wants_times(decision)
    assert decision.worker is None


@pytest.mark.parametrize("known", ["transfers", "network"])
def test_tac_finds_the_order_by_hand(known):
    facts = [TimingTable(OPS_S)]
    if known == "transfers":
        facts.append(TransferTimes({name: float(s) for name, s in TRANSFERS_S.items()}))
    else:  # 4 bytes in a second
        facts.append(assumed_network(2, 4.0, 0.0))
    planner, decision = chosen(five_transfers(), "tac", *facts)
    assert order_of(decision.plan) == BY_HAND
    assert decision.source == "by TAC, from measured times"
    assert decision.worker is not None
    assert not planner.wants_times(decision)


def test_the_search_finds_a_step_as_short_as_the_shortest():
    made = five_transfers()
    times = TransferTimes({name: float(s) for name, s in TRANSFERS_S.items()})
    facts = (TimingTable(OPS_S), times)
    _, decision = chosen(made, "search", *facts)
    plain, analysis = plain_of(made), made.knowing(*facts)
    graph, oracle = received(plain, analysis), time_oracle(plain, analysis)
    step_s = execute(graph, oracle, [f"recv {name}" for name in order_of(decision.plan)]).step_s
    # All arrive after 15 s, and the last one lets 1 s be computed.
    assert step_s == pytest.approx(16.0)


def test_the_order_of_tic_is_taken_where_it_is_predicted_to_be_as_good():
    times = TransferTimes({name: float(s) for name, s in TRANSFERS_S.items()})
    # Most is computed when everything was received: no order makes much of a difference.
    quick = {name: seconds / 1000 for name, seconds in OPS_S.items()}
    _, decision = chosen(five_transfers(), "search", TimingTable(quick | {"loss": 5.0}), times)
    _, simple = chosen(five_transfers(), "tic")
    assert decision.source.startswith("by TIC, which is predicted to be as good")
    assert order_of(decision.plan) == order_of(simple.plan)
    _, decision = chosen(five_transfers(), "search", TimingTable(OPS_S), times)
    assert decision.source == "by a search, from measured times"


def test_nothing_is_searched_where_the_network_bounds_every_step(monkeypatch):
    times = TransferTimes({name: float(s) for name, s in TRANSFERS_S.items()})
    monkeypatch.delattr("caramel.planning.serving.planner.search_order")
    quick = TimingTable({name: seconds / 1000 for name, seconds in OPS_S.items()})
    planner, decision = chosen(five_transfers(), "search", quick, times)
    _, simple = chosen(five_transfers(), "tic")
    assert decision.source == VAIN
    assert order_of(decision.plan) == order_of(simple.plan)
    assert not planner.wants_times(decision)
    with pytest.raises(NameError):
        chosen(five_transfers(), "search", TimingTable(OPS_S), times)


def test_what_a_search_may_bring_is_known_only_with_times_and_of_a_search():
    made, timing = five_transfers(), TimingTable(OPS_S)
    times = TransferTimes({name: float(s) for name, s in TRANSFERS_S.items()})
    plain, knowing = plain_of(made), made.knowing(timing, times)
    assert ServingPlanner(SERVERS).prospect(plain, made.knowing(timing)) is None
    assert ServingPlanner(SERVERS, "tac").prospect(plain, knowing) is None
    found = ServingPlanner(SERVERS, trains=False).prospect(plain, knowing)
    # Five transfers take 15 s, and what the last one lets be computed comes after it.
    step_s = execute(
        received(plain, knowing),
        time_oracle(plain, knowing),
        [f"recv {name}" for name in order_of(chosen(made, "tic")[1].plan)],
    ).step_s
    assert found.saved_s == pytest.approx(step_s - 15.0)
    assert 0.0 < found.pause_s < 10.0


def test_times_of_some_transfers_are_completed_by_the_network():
    made = five_transfers()
    facts = (TimingTable(OPS_S), TransferTimes({"a": 7.0}))
    plain = plain_of(made)
    assert time_oracle(plain, made.knowing(*facts)) is None
    network = assumed_network(2, 4.0, 0.0)  # two workers share the link of the server
    found = time_oracle(plain, made.knowing(*facts, network)).transfers_s
    assert found == {"recv a": 7, "recv b": 2, "recv c": 4, "recv d": 8, "recv e": 10}


def test_a_random_order_is_the_same_each_time():
    orders = [order_of(chosen(five_transfers(), "random")[1].plan) for _ in range(2)]
    assert orders[0] == orders[1]
    assert sorted(orders[0]) == sorted(NAMES)


def test_no_order_is_the_plain_plan():
    planner, decision = chosen(five_transfers(), None)
    assert decision.plan == decision.plain
    assert set(waits(decision.plan).values()) == {()}
    assert planner.name == PLAIN
    assert not planner.plans
    assert planner.worth_a_trial(decision) == {}


def test_an_order_is_tried_against_none():
    planner, decision = chosen(five_transfers(), "tic", in_flight_bytes=30)
    assert decision.alternatives == ()
    assert planner.worth_a_trial(decision) == {PLAIN: decision.plain}


def three_layers() -> tuple[ServedGraph, list]:
    """The step of `test_pushes`: a layer takes 4 s forward, 1 s backward, 4 s on the link."""
    parameters = dict.fromkeys("abc", "VarHandleOp")
    reads = {f"read_{name}": f"ReadVariableOp {name}" for name in "abc"}
    forward = {"forward_a": "Mul x read_a", "forward_b": "Mul forward_a read_b"}
    backward, before = dict[str, str](), "loss"
    for name in "cba":
        backward[f"back_{name}"] = f"Mul {before} read_{name}"
        backward[f"grad_{name}"] = f"Mul x back_{name}"
        before = f"back_{name}"
    updates = {f"update_{n}": f"ResourceApplyGradientDescent {n} grad_{n}" for n in "abc"}
    graph = graph_of(
        x="Placeholder",
        **parameters,
        **reads,
        **forward,
        loss="Mul forward_b read_c",
        **backward,
        **updates,
        train="NoOp " + " ".join(f"^{name}" for name in updates),
    )
    seconds = dict.fromkeys([*forward, "loss"], 4.0) | {f"back_{n}": 1.0 for n in "abc"}
    facts = [TimingTable(seconds), TransferTimes(dict.fromkeys("abc", 4.0))]
    return ServedGraph(graph, {n: f"grad_{n}" for n in "abc"}, ("a b c",)), facts


def test_gradients_are_ordered_where_that_pays():
    """29 s without an order of gradients, 25 with one."""
    made, facts = three_layers()
    planner = ServingPlanner(SERVERS[:1], "tac", 0)
    decision = planner.choose(plain_of(made), made.knowing(*facts))
    assert decision.source == "by TAC, from measured times, 1 of 3 ahead, gradients in order"
    groups = {g.name: g.members[0] for g in decision.plan.decision.groups}
    assert [*groups.values()] == ["c", "a", "b"]
    gates = [(groups[g.group], groups[g.after]) for g in decision.plan.decision.gates]
    assert gates == [("a", "c"), ("b", "a")]
    tried = planner.worth_a_trial(decision)
    assert PLAIN in tried
    assert not any(plan.decision.gates for plan in tried.values())
    asked = [ServingPlanner(SERVERS[:1], "tac", 0, order_gradients=False)]
    asked.append(ServingPlanner(SERVERS[:1], "tac", 0, overlap=False))  # all ends at the same time
    for planner in asked:
        decision = planner.choose(plain_of(made), made.knowing(*facts))
        assert decision.plan.decision.gates == ()
        assert "gradients" not in decision.source


def test_an_order_by_which_nothing_waits_is_not_tried():
    planner, decision = chosen(five_transfers(), "tic", in_flight_bytes=1000)
    assert order_of(decision.plan) != []
    assert planner.worth_a_trial(decision) == {}


def test_what_proved_the_fastest_before_is_kept():
    made = five_transfers()
    plain = plain_of(made)
    kept = ordered(plain, "abcde", 0)
    decision = ServingPlanner(SERVERS, "tic").choose(plain, made.analysis, kept)
    assert decision.plan.decision == kept.decision
    assert decision.is_kept


def test_a_fast_network_has_more_in_flight():
    made = five_transfers()
    assert usual_in_flight_bytes(made.analysis) == DEFAULT_IN_FLIGHT_BYTES
    bytes_of = [
        usual_in_flight_bytes(made.knowing(assumed_network(2, r, 0.0))) for r in (1.25e9, 1)
    ]
    assert bytes_of == [25_000_000, 250_000]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"ordering": "fifo"},
            r"one of 'search', .*'random', or None, not 'fifo'",
        ),
        ({"in_flight_bytes": -1}, "must be a number of bytes, at least 0, not -1"),
        ({"in_flight_bytes": 0.5}, "must be a number of bytes, at least 0, not 0.5"),
    ],
)
def test_options_that_cannot_be_are_refused(options, message):
    with pytest.raises(PlanError, match=message):
        ServingPlanner(SERVERS, **options)
