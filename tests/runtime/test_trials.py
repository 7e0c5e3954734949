"""From step times to the plan that is kept, in literal numbers."""

from __future__ import annotations

import pytest

from caramel.core.errors import PlanError
from caramel.runtime.control.trials import Trials, TrialSettings, TriedPlan

SHORT = TrialSettings(rounds=2, steps=2, skipped=1)


def run(trials, times_s, limit=1000):
    """Let each plan take its times; returns whose turn each step was."""
    turns = []
    while not trials.is_over and len(turns) < limit:
        name = trials.turn
        given = times_s[name]
        turns.append(name)
        trials.record(given(turns.count(name)) if callable(given) else given)
    return turns


def medians(trials):
    return {plan.name: plan.median_s for plan in trials.state().plans}


def test_plans_take_turns_round_after_round():
    trials = Trials(["a", "b", "c"], SHORT)
    turns = run(trials, {"a": 1.0, "b": 1.1, "c": 1.2})
    assert "".join(turns) == "aaabbbcccaaabbbccc"


def test_the_first_steps_of_a_turn_do_not_count():
    trials = Trials(["a", "b"], SHORT)
    # Of each plan's steps the first, the fourth and so on are the first of a turn.
    times_s = {
        "a": lambda n: 9.0 if n % 3 == 1 else 1.0,
        "b": lambda n: 1.0 if n % 3 == 1 else 3.0,
    }
    run(trials, times_s)
    assert medians(trials) == {"a": 1.0, "b": 3.0}


def test_the_fastest_is_kept():
    trials = Trials(["a", "b", "c"], SHORT)
    run(trials, {"a": 1.0, "b": 0.9, "c": 0.8})
    assert (trials.is_over, trials.turn) == (True, "c")
    assert trials.state().turn == "c"


def test_the_first_stays_unless_another_is_faster_by_the_margin():
    noise = Trials(["a", "b"], TrialSettings(rounds=1, steps=1, skipped=0, margin=0.1))
    run(noise, {"a": 1.0, "b": 0.91})
    assert noise.turn == "a"
    faster = Trials(["a", "b"], TrialSettings(rounds=1, steps=1, skipped=0, margin=0.1))
    run(faster, {"a": 1.0, "b": 0.89})
    assert faster.turn == "b"


def test_of_equally_fast_plans_the_earlier_one_is_kept():
    trials = Trials(["a", "b", "c"], SHORT)
    run(trials, {"a": 1.0, "b": 0.5, "c": 0.5})
    assert trials.turn == "b"


def test_one_disturbed_step_changes_nothing():
    trials = Trials(["a", "b"], TrialSettings(rounds=3, steps=3, skipped=0))
    run(trials, {"a": 1.0, "b": lambda n: 60.0 if n == 4 else 0.9})
    assert trials.turn == "b"
    assert medians(trials) == {"a": 1.0, "b": 0.9}


def test_a_plan_that_is_far_behind_is_not_tried_again():
    trials = Trials(["a", "b", "c"], TrialSettings(rounds=3, steps=1, skipped=0, give_up=0.25))
    turns = run(trials, {"a": 1.0, "b": 1.26, "c": 1.24})
    assert "".join(turns) == "abcacac"
    assert [plan.given_up for plan in trials.state().plans] == [False, True, False]


def test_trials_end_early_when_one_plan_is_left():
    trials = Trials(["a", "b"], TrialSettings(rounds=3, steps=1, skipped=0, give_up=0.25))
    assert "".join(run(trials, {"a": 2.0, "b": 1.0})) == "ab"
    assert trials.turn == "b"


def test_steps_that_were_not_usual_do_not_count_but_pass():
    trials = Trials(["a", "b"], TrialSettings(rounds=1, steps=3, skipped=0))
    trials.record(5.0, counts=False)
    trials.record(1.0)
    trials.record(3.0)
    assert trials.turn == "b"
    assert trials.state().plans[0] == TriedPlan("a", steps=2, median_s=2.0, given_up=False)


def test_a_plan_without_steps_that_count_is_not_chosen():
    trials = Trials(["a", "b"], TrialSettings(rounds=1, steps=1, skipped=0))
    trials.record(1.0, counts=False)
    trials.record(7.0)
    assert trials.turn == "b"
    none = Trials(["a", "b"], TrialSettings(rounds=1, steps=1, skipped=0))
    none.record(1.0, counts=False)
    none.record(1.0, counts=False)
    assert (none.is_over, none.turn) == (True, "a")


def test_after_the_end_nothing_is_recorded():
    trials = Trials(["a", "b"], SHORT)
    run(trials, {"a": 1.0, "b": 2.0})
    before = trials.state()
    trials.record(0.1)
    assert trials.state() == before


def test_one_plan_alone_is_chosen_at_once():
    assert Trials(["a"]).is_over
    assert Trials(["a"]).turn == "a"


def test_the_state_tells_how_far_the_trials_are():
    trials = Trials(["a", "b"], SHORT)
    for _ in range(7):
        trials.record(1.0)
    state = trials.state()
    assert (state.is_over, state.round, state.turn) == (False, 2, "a")
    assert [(plan.name, plan.steps) for plan in state.plans] == [("a", 2), ("b", 2)]


@pytest.mark.parametrize(
    "options", [{"rounds": 0}, {"steps": 0}, {"skipped": -1}, {"margin": -0.1}, {"margin": 1.0}]
)
def test_settings_out_of_range_are_refused(options):
    with pytest.raises(PlanError, match=f"{next(iter(options))}"):
        TrialSettings(**options)


@pytest.mark.parametrize("names", [[], ["a", "a"]])
def test_names_must_differ(names):
    with pytest.raises(PlanError, match="different names"):
        Trials(names)
