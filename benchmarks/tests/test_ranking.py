"""Varied plans fit the job they are drawn for, and predictions are judged as they should be."""

from __future__ import annotations

from itertools import pairwise

import pytest

import caramel
from benchmarks.peers.varied import varied
from benchmarks.results import Row
from benchmarks.step import cells
from benchmarks.step.predicted import draw, pairs, spearman, summary
from caramel.models.plan_choice import forecast_of
from tests.support.networks import CLASSES, FEATURES, network, parameter, tf
from tests.support.slow_steps import model_of


def row(predicted_s, measured_s, *, invalid=None, network="toy"):
    reported = {} if predicted_s is None else {"predicted_s": predicted_s}
    what = {"cell": f"{network}, 2 workers", "network": network, "system": "planned"}
    return Row(what, (measured_s, measured_s), {"reported": reported}, invalid)


def deep(x):
    """Gradients of some megabytes, which many different plans can join."""
    widths = (FEATURES, 1000, 800, 900, 700, 1000, CLASSES)
    for number, (before, after) in enumerate(pairwise(widths)):
        weights = parameter(f"w{number}", [before, after], x.dtype)
        x = tf.tanh(x @ weights + parameter(f"b{number}", [after], x.dtype))
    return x


def test_varied_plans_differ_repeat_and_can_be_carried_out():
    job = network("momentum", model=deep, dtype=tf.float32)
    context = job.context()
    decision = model_of(context, 2, pattern="auto").decision
    plans = [varied(decision, number) for number in range(cells.VARIED)]
    assert plans[0] == decision.plain
    assert plans == [varied(decision, number) for number in range(cells.VARIED)]
    assert len({plan.to_json() for plan in plans}) == cells.VARIED
    assert any(plan.deferred for plan in plans)
    assert any(plan.decision.gates for plan in plans)
    assert any(plan.decision.edges for plan in plans)
    assert len({round(forecast_of(plan, decision).step_s, 6) for plan in plans}) > 10
    for plan in plans:
        model = caramel.ARModel(context, 2, plan=plan, check=True)
        carried_out = [
            (set(g.members), g.deferred, g.depth, g.pattern) for g in model.plan.decision.groups
        ]
        assert carried_out == [
            (set(g.members), g.deferred, g.depth, g.pattern) for g in plan.decision.groups
        ]


def test_the_ranking_has_the_plans_and_the_chosen_one():
    for suite in cells.RANKING.values():
        assert len(suite.cells) == 3
        systems = suite.systems(suite.cells[0])
        assert [each.options.get("varied") for each in systems[2:-1]] == list(range(20))
        assert systems[-1] == cells.SEARCHED


def test_only_valid_rows_with_a_prediction_count():
    rows = [row(1.0, 2.0), row(None, 1.0), row(1.0, 1.0, invalid="wrong bytes")]
    assert [pair.error for pair in pairs(rows)] == [0.5]
    assert list(summary(rows)) == ["1 predicted steps: median error 50.0%, worst 50.0%"]


def test_the_rank_correlation_is_that_of_the_definition():
    pairs_of = [(1.0, 1.1), (2.0, 1.9), (3.0, 3.5), (4.0, 3.2), (5.0, 5.0)]
    found = [row(*pair) for pair in pairs_of]
    # One neighbouring pair is exchanged: 1 - 6 (1 + 1) / (5 (25 - 1)).
    assert spearman(pairs(found)) == pytest.approx(1 - 12 / 120)
    assert list(summary(found))[-1] == (
        "toy, 2 workers: Spearman 0.90 over 5 plans, median error 9.1%, worst 25.0%"
    )


def test_predictions_are_drawn(tmp_path):
    path = tmp_path / "predicted.png"
    assert not draw([row(None, 1.0)], path)
    assert not path.exists()
    assert draw([row(1.0, 1.1), row(0.5, 0.4, network="other")], path)
    assert path.stat().st_size > 1000
