"""Every pattern adds up the values of all workers, whatever their number and the size."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from caramel.core.errors import PlanError
from caramel.core.patterns import (
    CHUNK_ALIGNMENT_BYTES,
    PATTERNS,
    Gather,
    Reduce,
    Schedule,
    Send,
    chunk_sizes,
    frugal_patterns,
    schedule,
)

WORKERS = range(1, 18)


def carried_out(plan: Schedule, values: np.ndarray, sizes: tuple[int, ...]) -> np.ndarray:
    """What each worker (row) ends with, by the meaning that the steps are given."""
    bounds = np.cumsum([0, *sizes])
    held = [[row[a:b] for a, b in pairwise(bounds)] for row in values]
    arrived: dict[tuple[int, int, int], np.ndarray] = {}
    for step in plan.steps:
        match step:
            case Send(source, target, chunk):
                assert (target, source, chunk) not in arrived
                arrived[target, source, chunk] = held[source][chunk]
            case Reduce(worker, chunk, order):
                total = None
                for member in order:
                    if member == worker:
                        value = held[worker][chunk]
                    else:
                        value = arrived.pop((worker, member, chunk))
                    total = value if total is None else total + value
                held[worker][chunk] = total
            case Gather(source, target, chunk):
                held[target][chunk] = held[source][chunk]
    assert not arrived, "something was sent and never added"
    return np.array([np.concatenate(row) for row in held])


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("workers", WORKERS)
def test_every_worker_ends_with_the_sum(workers, pattern):
    random = np.random.RandomState(workers)
    for depth in (1, 2, 3, 5, 8) if workers < 6 else (1, 3, 8):
        for elements in (0, 1, 7, workers - 1, 200):
            values = random.randint(-1000, 1000, (workers, elements))
            plan = schedule(pattern, workers, depth=depth, shift=depth)
            sizes = chunk_sizes(elements, plan.chunks, 8)
            expected = np.tile(values.sum(0), (workers, 1))
            np.testing.assert_array_equal(carried_out(plan, values, sizes), expected)


@settings(max_examples=150)
@given(
    pattern=st.sampled_from(PATTERNS),
    workers=st.integers(1, 17),
    depth=st.integers(1, 8),
    shift=st.integers(0, 40),
    elements=st.integers(0, 300),
    element_bytes=st.sampled_from([1, 2, 4, 8, 16]),
    seed=st.integers(0, 1000),
)
def test_laws_of_every_pattern(pattern, workers, depth, shift, elements, element_bytes, seed):
    plan = schedule(pattern, workers, depth=depth, shift=shift)
    sizes = chunk_sizes(elements, plan.chunks, element_bytes)
    assert sum(sizes) == elements
    values = np.random.RandomState(seed).standard_normal((workers, elements))
    ends = carried_out(plan, values, sizes)
    for row in ends:  # the same bits on all workers, although additions round
        np.testing.assert_array_equal(row, ends[0])
    np.testing.assert_allclose(ends[0], values.sum(0), atol=1e-12)
    # Every element leaves a worker at most once on the way there and once on the way back, and
    # the fewest bytes that suffice are 2 (n - 1) / n of the data for each worker. To send
    # everything to everyone takes n / 2 times as many.
    sent = plan.sent_elements(sizes)
    assert all(a != b and 0 <= a < workers and 0 <= b < workers for a, b in sent)
    copies = workers if pattern == "exchange" else 2
    assert sum(sent.values()) == copies * (workers - 1) * elements


@pytest.mark.parametrize("pattern", ["shuffle", "exchange"])
@pytest.mark.parametrize("workers", range(1, 9))
def test_some_patterns_add_in_the_order_of_the_workers(workers, pattern):
    values = np.random.RandomState(0).standard_normal((workers, 1000)).astype(np.float32)
    expected = values[0]
    for row in values[1:]:
        expected = expected + row
    for depth in (1, 3):
        for shift in range(workers):
            plan = schedule(pattern, workers, depth=depth, shift=shift)
            ends = carried_out(plan, values, chunk_sizes(1000, plan.chunks, 4))
            np.testing.assert_array_equal(ends[0], expected)


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("workers", WORKERS)
def test_each_worker_finishes_a_chunk_or_is_sent_it_finished(workers, pattern):
    plan = schedule(pattern, workers, depth=2, shift=1)
    for chunk in range(plan.chunks):
        finished = [step.worker for step in plan.finishing() if step.chunk == chunk]
        gathered = [s.target for s in plan.steps if isinstance(s, Gather) and s.chunk == chunk]
        assert sorted([*gathered, *finished]) == list(range(workers if workers > 1 else 0))
        assert len(finished) == (workers if pattern == "exchange" else 1) or workers == 1


@pytest.mark.parametrize("workers", WORKERS)
def test_an_exchange_is_one_round(workers):
    plan = schedule("exchange", workers)
    everyone = tuple(range(workers))
    pairs = [(step.source, step.target) for step in plan.steps if isinstance(step, Send)]
    assert sorted(pairs) == [(a, b) for a in everyone for b in everyone if a != b]
    sums = [(step.worker, step.order) for step in plan.steps if isinstance(step, Reduce)]
    assert sums == [(worker, everyone) for worker in everyone if workers > 1]
    assert len(plan.steps) == len(pairs) + len(sums)


@pytest.mark.parametrize("pattern", ["shuffle", "ring"])
@pytest.mark.parametrize("workers", [2, 3, 4, 8])
def test_all_workers_send_the_same_amount(workers, pattern):
    plan = schedule(pattern, workers)
    sent = dict.fromkeys(range(workers), 0)
    for (source, _), elements in plan.sent_elements((64,) * plan.chunks).items():
        sent[source] += elements
    assert set(sent.values()) == {2 * (workers - 1) * 64}


@given(elements=st.integers(0, 5000), chunks=st.integers(1, 64), size=st.sampled_from([1, 2, 4, 8]))
def test_chunks_are_even_and_begin_aligned(elements, chunks, size):
    sizes = chunk_sizes(elements, chunks, size)
    assert len(sizes) == chunks
    assert sum(sizes) == elements
    bounds = np.cumsum([0, *sizes])[:-1]
    assert all(b * size % CHUNK_ALIGNMENT_BYTES == 0 for b in bounds if b < elements)
    assert max(sizes) - min(sizes) <= 2 * CHUNK_ALIGNMENT_BYTES // size


def test_a_tiny_tensor_is_one_chunk():
    assert chunk_sizes(7, 4, 8) == (7, 0, 0, 0)
    sent = schedule("ring", 4).sent_elements((7, 0, 0, 0))
    assert sent == {(1, 2): 14, (2, 3): 14, (3, 0): 7, (0, 1): 7}


def test_which_patterns_send_no_more_than_they_must():
    assert frugal_patterns(2) == PATTERNS
    for workers in (3, 4, 7, 8):
        assert frugal_patterns(workers) == ("shuffle", "ring", "halving_doubling")


def test_one_worker_sends_nothing():
    for pattern in PATTERNS:
        assert schedule(pattern, 1, depth=3).steps == ()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pattern": "tree", "workers": 2}, "unknown pattern 'tree'; there are shuffle, ring"),
        ({"pattern": "ring", "workers": 0}, "ring over 0 workers"),
        ({"pattern": "ring", "workers": 2, "depth": 0}, "with depth 0: both must be >= 1"),
    ],
)
def test_mistakes_are_named(options, message):
    with pytest.raises(PlanError, match=message):
        schedule(**options)
