"""The outline of a job says of its steps what its graph says."""

from __future__ import annotations

import pytest

import caramel
from caramel.analyzers import ANALYZERS
from caramel.analyzers.analysis import Analysis
from caramel.core.decision import ALL_GATHER
from caramel.core.time_facts import TimingTable
from caramel.planning.choose import choose
from caramel.planning.from_profile import deferrable, outline_of, outlook_of, plan_of
from caramel.planning.options import Options
from caramel.simulation.hardware import Hardware, Host
from caramel.simulation.network_model import assumed_network
from caramel.simulation.simulate import sizes_of
from tests.support.networks import (
    OPTIMIZERS,
    clip_by_global_norm,
    cross_entropy,
    inputs,
    network,
    parameter,
    perceptron,
    tf,
    tf1,
    wide,
)

QUICK = Options(budget_tasks=1_000)  # what is asked for is known before the search
HARDWARE = Hardware((Host(1e6, 1e6),) * 2, {"shuffle": 1e-4})


def outline(context):
    timing = TimingTable({op.name: 1e-3 for op in context.op_graph if op.inputs})
    return outline_of(context.op_graph, context.job, timing), timing


def embedding():
    """Rows of a matrix, looked up."""
    with tf.Graph().as_default() as graph:
        tf1.set_random_seed(1)
        _, y, _ = inputs(10)
        ids = tf1.placeholder(tf.int32, [None], name="ids")
        rows = tf.gather(parameter("embedding", [20, 6]), ids)
        loss = cross_entropy(perceptron(rows), y)
        train_op = tf1.train.GradientDescentOptimizer(0.1).minimize(loss)
    return caramel.Context(graph, train_op=train_op, loss=loss)


@pytest.mark.parametrize("optimizer", ["gradient_descent", "momentum", "adam"])
def test_it_computes_and_aggregates_what_the_graph_does(optimizer):
    assert optimizer in OPTIMIZERS
    context = network(optimizer, model=wide).context()
    found, timing = outline(context)
    model = caramel.ARModel(context, 2, pattern="shuffle", planner="plain")
    facts = [context.op_graph, context.job, timing, assumed_network(2, 1e6, 1e-4)]
    known = choose(model.plan, Analysis(facts, ANALYZERS), QUICK).outlook
    assert (found.free, found.ordered) == (known.free, known.ordered)
    plain = plan_of(found, 2, "shuffle")
    assert sizes_of(plain) == sizes_of(model.plan)
    assert plain.decision.groups == model.plan.decision.groups
    assert outlook_of(found, HARDWARE, "shuffle").plain == plain


def test_one_worker_has_no_groups():
    assert plan_of(outline(network("adam").context())[0], 1, "ring").decision.groups == ()


def test_gradients_that_cannot_be_deferred_say_why():
    found, _ = outline(embedding())
    (sparse,) = [each for each in found.gradients if each.is_sparse]
    assert (sparse.parameter, sparse.elements) == ("embedding", 120)
    assert sparse.stays == "rows of 'embedding' are gathered"
    reason_against = deferrable(found)
    others = frozenset(each.parameter for each in found.gradients if not each.is_sparse)
    assert reason_against(others) is None
    assert reason_against(others | {"embedding"}) == sparse.stays
    plain = plan_of(found, 2, "ring")
    assert {g.members[0]: g.pattern for g in plain.decision.groups}["embedding"] == ALL_GATHER


def test_after_a_global_norm_every_update_waits_for_all_gradients():
    found, _ = outline(network("momentum", clip_by_global_norm).context())
    everything = frozenset(each.parameter for each in found.gradients)
    assert {u.gradients for u in found.free.updates if u.writes} == {everything}


def test_it_says_of_which_parameters_servers_may_have_rows():
    """All rows of what is updated element by element, none of what is clipped by its norm."""
    found, _ = outline(network("adam", model=wide).context())
    rows = {each.parameter: each.rows for each in found.gradients}
    assert rows == {"w1": 6, "b1": 700, "w2": 700, "b2": 0}  # the last one is too small
    found, _ = outline(network("adam", clip_by_global_norm, model=wide).context())
    assert {each.rows for each in found.gradients} == {0}
