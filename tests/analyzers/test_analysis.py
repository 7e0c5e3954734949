"""Analyzers are found from their annotations, ordered, and run once."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from caramel.analyzers.analysis import Analysis
from caramel.core.errors import MissingFactError


@dataclass(frozen=True)
class Base:
    value: int


@dataclass(frozen=True)
class Double:
    value: int


@dataclass(frozen=True)
class Total:
    value: int


def double(base: Base) -> Double:
    return Double(2 * base.value)


def total(base: Base, doubled: Double) -> Total:
    return Total(base.value + doubled.value)


def test_analyzers_run_in_the_order_of_what_they_need():
    assert Analysis([Base(3)], [total, double]).get(Total) == Total(9)


def test_every_analyzer_runs_once():
    calls = []

    def counted(base: Base) -> Double:
        calls.append(base)
        return Double(0)

    analysis = Analysis([Base(1)], [counted, total])
    analysis.get(Total)
    analysis.get(Double)
    assert len(calls) == 1


def test_a_later_analyzer_of_the_same_fact_replaces_the_earlier():
    def triple(base: Base) -> Double:
        return Double(3 * base.value)

    assert Analysis([Base(1)], [double, total, triple]).get(Total) == Total(4)


def test_a_given_fact_is_not_looked_for():
    assert Analysis([Base(1), Double(10)], [double, total]).get(Total) == Total(11)


def test_a_missing_fact_is_named_with_what_needs_it():
    with pytest.raises(MissingFactError, match=r"no Base is given.*Total needs Base"):
        Analysis([], [total, double]).get(Total)


def test_facts_that_need_each_other_are_named():
    def base(doubled: Double) -> Base:
        return Base(doubled.value)

    with pytest.raises(MissingFactError, match="Double needs Base needs Double"):
        Analysis([], [double, base]).get(Double)


def test_an_analyzer_must_say_what_it_takes_and_gives():
    def nameless(base) -> Double:
        return Double(0)

    with pytest.raises(TypeError, match="'nameless' has no annotation for base"):
        Analysis([], [nameless])
