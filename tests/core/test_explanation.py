"""An explanation is checked, saved and loaded, and knows what was predicted worst."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest

from caramel.core.errors import PlanError
from caramel.core.explanation import Explanation
from tests.support.explanations import SMALL, resnet, trained


@pytest.mark.parametrize(
    "explanation",
    [SMALL, trained(SMALL), resnet(8), trained(resnet(2)), replace(SMALL, rho=math.inf)],
)
def test_json_gives_the_same_explanation_again(explanation):
    assert Explanation.from_json(explanation.to_json()) == explanation


def test_the_bound_is_the_longer_of_computation_and_wire_limit():
    assert SMALL.bound_s == 0.4
    assert replace(SMALL, wire_limit_s=0.45).bound_s == 0.45


def test_a_group_knows_its_place_and_how_late_it_was():
    late, early = trained(SMALL, {"late": -0.025, "early": 0.125}).groups
    assert (late.place, late.late_s) == ("deferred", pytest.approx(-0.025))
    assert (early.place, early.late_s) == ("in-step", pytest.approx(0.125))
    assert SMALL.groups[0].late_s is None


def test_the_largest_misses_come_first_whether_late_or_early():
    def names(lateness_s):
        return [group.name for group in trained(SMALL, lateness_s).misses]

    assert names({"late": -0.02, "early": 0.01}) == ["late", "early"]
    assert names({"late": -0.02, "early": 0.03}) == ["early", "late"]
    assert names({}) == ["late", "early"]  # equal ones in order of transfer


def test_there_are_no_misses_before_training():
    assert SMALL.misses == ()


LATE, EARLY = SMALL.groups


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"workers": 0}, "an explanation of 0 workers"),
        ({"step_s": 0.0}, "a step of 0.0 s cannot be"),
        ({"groups": (LATE, LATE)}, "two groups of the explanation have the name 'late'"),
        ({"groups": (EARLY,)}, "group 'early' waits for 'late', which is no group"),
    ],
)
def test_an_explanation_that_cannot_be_is_refused(change, message):
    with pytest.raises(PlanError, match=message):
        replace(SMALL, **change)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"predicted_end_s": -1.0}, "group 'late' is predicted to end at -1.0 s, before it begins"),
        ({"measured_end_s": 0.2}, "group 'late' needs both measured times"),
        ({"measured_begin_s": 0.3, "measured_end_s": 0.2}, "group 'late' is measured to end at"),
    ],
)
def test_a_group_that_cannot_be_is_refused(change, message):
    with pytest.raises(PlanError, match=message):
        replace(LATE, **change)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda value: value.pop("kind"), "not a Caramel explanation of format 1"),
        (lambda value: value.update(format=7), "not a Caramel explanation of format 1"),
        (lambda value: value.pop("job"), r"keys \['job'\] are missing from a Explanation"),
        (lambda value: value.update(limited_by="luck"), r"\$.limited_by: expected one of"),
        (lambda value: value["groups"][1].update(depth="2"), r"\$.groups\[1\].depth: expected a"),
        (lambda value: value["predicted"]["spans"][0].update(end_s=-1.0), "a damaged explanation"),
    ],
)
def test_json_that_is_no_explanation_is_refused_with_the_place(change, message):
    value = json.loads(SMALL.to_json())
    change(value)
    with pytest.raises(PlanError, match=message):
        Explanation.from_json(json.dumps(value))


def test_text_that_is_not_json_is_refused():
    with pytest.raises(PlanError, match="an explanation must be JSON"):
        Explanation.from_json("{")
