"""Tests of the benchmarks have the settings and fixtures of the library's tests, and a bed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from benchmarks import testbed
from tests.conftest import (
    control_flow,
    fixture_collected,
    pytest_collection_finish,
    quick_plans,
)

__all__ = ["control_flow", "fixture_collected", "pytest_collection_finish", "quick_plans"]


@pytest.fixture(scope="module")
def bed() -> Iterator[testbed.Testbed]:
    """Two hosts with links of 200 Mbit/s."""
    with testbed.Testbed(2, "200mbit") as made:
        yield made
