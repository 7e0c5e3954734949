"""What holds of a session with pending updates, whatever is deferred: as with the plain plan."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.networks import tf


def assert_equal(values, expected):
    """The same values, bit for bit, of all that is expected."""
    for name, value in expected.items():
        np.testing.assert_array_equal(values[name], value, err_msg=name)


def assert_saving_loses_nothing(job, plain, model, tmp_path):
    """A checkpoint has all updates, and nothing of Caramel's; restoring drops what is pending."""
    with plain.session() as expected, model.session() as session:
        session.restore(expected.save(tmp_path / "initial"))
        for _ in range(3):
            assert session.step(job.feed) == expected.step(job.feed)
        path = session.save(tmp_path / "middle")
        names = [name for name, _ in tf.train.list_variables(path)]
        assert sorted(names) == sorted(v.full_name for v in model.plan.job.variables if v.saved)
        session.step(job.feed), expected.step(job.feed)
        expected.restore(path)
        session.restore(path)  # while something is pending
        for _ in range(3):
            assert session.step(job.feed) == expected.step(job.feed)
        assert_equal(session.variables(), expected.variables())


def assert_fetches_are_of_their_step(job, plain, model, tmp_path):
    """The loss and the raw gradients, in every other step."""
    fetches = [job.loss, *job.raw.values()]
    with plain.session() as expected, model.session() as session:
        session.restore(expected.save(tmp_path / "initial"))
        for number in range(4):
            given = session.step(job.feed, fetches if number % 2 else None)
            wanted = expected.step(job.feed, fetches if number % 2 else None)
            np.testing.assert_equal(given, wanted)
        assert_equal(session.variables(), expected.variables())


def assert_errors_lose_no_updates(
    job, bad, plain, model, tmp_path, *, told, use=lambda session, step: None
):
    """Each third step fails, in both sessions, for what it is fed; `use` chooses a step's plan."""
    with plain.session() as expected, model.session() as session:
        session.restore(expected.save(tmp_path / "initial"))
        for step in range(16):
            use(session, step)
            if step % 3 == 2:
                for each in (session, expected):
                    with pytest.raises(tf.errors.InvalidArgumentError, match=told):
                        each.step({**job.feed, **bad})
            else:
                assert session.step(job.feed) == expected.step(job.feed)
        assert_equal(session.variables(), expected.variables())
