"""Fixtures of tests of models."""

from __future__ import annotations

import pytest


@pytest.fixture
def float64():
    """Keras computes in float64 until the test ends."""
    from keras import config  # most tests of models need none

    before = config.floatx(), config.dtype_policy()
    config.set_floatx("float64")
    config.set_dtype_policy("float64")  # Keras keeps the first one that it has made of `floatx`
    yield
    config.set_floatx(before[0])
    config.set_dtype_policy(before[1])
