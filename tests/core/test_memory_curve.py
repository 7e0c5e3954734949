"""How many bytes are there at each moment."""

from __future__ import annotations

from caramel.core.memory import MOST_POINTS, Held, MemoryCurve


def test_what_ends_makes_room_for_what_begins():
    curve = MemoryCurve.of(1, [Held(0.0, 2.0, 5), Held(1.0, 3.0, 2), Held(2.0, 4.0, 4)])
    assert curve.times_s[0] == 0.0
    assert curve.times_s[-1] == 4.0
    assert (curve.worker, curve.peak_bytes, curve.bytes[-1]) == (1, 7, 0)


def test_what_begins_and_ends_at_once_counts():
    assert MemoryCurve.of(0, [Held(0.0, 1.0, 2), Held(1.0, 1.0, 3)]).peak_bytes == 3
    assert MemoryCurve.of(0, [Held(1.0, 1.0, 3)]).peak_bytes == 3


def test_a_long_curve_is_thinned_and_keeps_its_peak():
    held = [Held(float(n), n + 1.0, n % 97) for n in range(10_000)]
    held.append(Held(5_000.2, 5_000.3, 1_000))
    curve = MemoryCurve.of(0, held)
    assert len(curve.times_s) <= MOST_POINTS
    assert curve.peak_bytes == 1_000 + 5_000 % 97
    assert list(curve.times_s) == sorted(curve.times_s)


def test_nothing_has_no_peak():
    assert MemoryCurve.of(0, []).peak_bytes == 0
