"""Tests of the benchmarks have the settings and fixtures of the library's tests."""

from tests.conftest import fixture_collected, pytest_collection_finish, quick_plans

__all__ = ["fixture_collected", "pytest_collection_finish", "quick_plans"]
