"""What is malformed is refused by one clear error, or taken for what it says."""

from __future__ import annotations

from benchmarks.faults.malformed import Case, cases, judge, run
from caramel.core.errors import PlanError


def test_two_hundred_malformed_inputs_are_refused_or_taken_for_what_they_say(tmp_path):
    report = run(seed=41, count=200)
    assert report.faults == []
    assert sum(report.refused.values()) > 100


def test_the_judge_notices_what_is_wrong():
    def fails(error):
        def take():
            raise error

        return Case("some", "x", take, lambda taken: True)

    wrong = [
        fails(ValueError("not ours")),
        fails(PlanError("")),
        fails(PlanError("two\nlines")),
        fails(SystemExit(1)),
        Case("some", "x", lambda: 1, lambda taken: taken == 2),
    ]
    report = judge(iter(wrong))
    assert len(report.faults) == len(wrong)
    report = judge(iter([fails(PlanError("clear")), Case("some", "x", lambda: 1, bool)]))
    assert (report.faults, report.refused["some"], report.accepted["some"]) == ([], 1, 1)


def test_a_seed_gives_the_same_inputs_again(tmp_path):
    first, second = (
        [str(case.given) for case in cases(7, 40, tmp_path) if case.kind != "checkpoint"]
        for _ in range(2)
    )
    assert first == second
