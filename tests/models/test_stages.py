"""A model is made in four stages, each of which can be used by itself."""

from __future__ import annotations

import pytest

import caramel
from caramel.cluster.cluster import Cluster
from caramel.core.errors import PlanError
from caramel.core.facts import GradientFrontier
from caramel.core.util.stopwatch import Stopwatch
from caramel.models.assembly import Assembly
from caramel.models.facts import find_facts
from caramel.models.model import Model
from caramel.models.options import ModelOptions, by_step
from caramel.models.planned import plan_step
from caramel.models.variants import OWN, Variants
from caramel.planning.all_reduce_planner import AllReducePlanner
from caramel.planning.options import Options
from tests.support.networks import network, slow_facts, train_steps, wide
from tests.support.step_jobs import gan

PLAIN = ModelOptions(AllReducePlanner(Options(planner="plain")))
TWO = Cluster.embedded(2)
QUIET = Stopwatch(False)


def test_facts_are_found_of_every_step():
    facts = find_facts(gan().context(), TWO, PLAIN)
    assert list(facts.steps) == ["d", "g"]
    assert len(facts.devices) == 2
    parameters = {
        name: {cut.gradient.parameter for cut in step.get(GradientFrontier).cuts}
        for name, step in facts.steps.items()
    }
    assert parameters == {"d": {"d1", "bias", "d2"}, "g": {"g1", "g2"}}


def test_a_step_is_planned_without_a_graph():
    options = ModelOptions(AllReducePlanner(Options(budget_tasks=10_000)), analyzers=slow_facts(2))
    facts = find_facts(network("adam", model=wide).context(), TWO, options)
    planned = plan_step(facts.steps[0], facts, options, None, QUIET)
    assert planned.decision.found is not None
    assert not planned.is_given
    given = plan_step(facts.steps[0], facts, options, planned.plan, QUIET)
    assert given.is_given
    assert given.plan == planned.completed(planned.plan)


def test_plans_of_a_step_are_put_into_a_graph():
    facts = find_facts(network("adam", model=wide).context(), TWO, PLAIN)
    planned = plan_step(facts.steps[0], facts, PLAIN, None, QUIET)
    assembly = Assembly(QUIET)
    variants = Variants(assembly, planned)
    assert variants[OWN].number == 0
    assert variants[OWN].plan is planned.plan
    assert assembly.graph.size[0] > len(facts.context.graph_def.node)


def test_other_options_make_a_model_of_another_kind():
    class Plain(Model):
        """A model that plans nothing."""

        def __init__(self, context: caramel.Context, workers: int) -> None:
            super().__init__(context, Cluster.embedded(workers), PLAIN)

    job = network("adam", model=wide)
    with Plain(job.context(), 2).session() as session:
        train_steps(session, job, 2)
        assert session.metrics().steps == 2
    with pytest.raises(PlanError, match="Plain takes a caramel.Context, not Network"):
        Plain(job, 2)


@pytest.mark.parametrize(
    ("given", "steps", "told"),
    [
        ("a", ["d", "g"], "what must be a mapping by step, since the job has several: 'd', 'g'"),
        ({"x": "a"}, ["d", "g"], "what: there is no step 'x'; the steps are 'd', 'g'"),
    ],
)
def test_what_is_given_for_no_step_is_refused(given, steps, told):
    with pytest.raises(PlanError, match=told):
        by_step(given, steps, "what")


def test_what_is_given_is_sorted_by_step():
    assert by_step(None, ["d", "g"], "what") == {}
    assert by_step("a", [0], "what") == {0: "a"}
    assert by_step({"g": "a"}, ["d", "g"], "what") == {"g": "a"}
