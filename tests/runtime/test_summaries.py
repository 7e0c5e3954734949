"""Numbers of steps for TensorBoard, as TensorBoard itself reads them."""

from __future__ import annotations

import pytest
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
from tensorboard.util.tensor_util import make_ndarray

import caramel
from caramel.core.errors import FeedError, FileError
from tests.support.networks import network, wide
from tests.support.slow_steps import model_of
from tests.support.step_jobs import gan


def read(directory):
    """What TensorBoard finds in the only file of a directory: by step the values by tag."""
    (file,) = directory.iterdir()
    found = {}
    for event in EventFileLoader(str(file)).Load():
        for value in event.summary.value:
            found.setdefault(event.step, {})[value.tag] = float(make_ndarray(value.tensor))
    return found


def test_losses_times_and_bytes_of_steps(tmp_path):
    job = network("momentum", model=wide)
    model = model_of(job.context(), 2)
    with model.session(trials=None) as session:
        session.step(job.feed)
        session.summaries(tmp_path / "first", every=2)
        losses = [session.step(job.feed, fetches) for fetches in (None, None, [job.loss])]
        losses.append(session.run(job.loss, job.feed))
        assert session.step(job.feed, []) == []  # the loss is written all the same
        session.summaries(tmp_path / "second", every=1)
        losses.append(session.step(job.feed))
        session.summaries(None)
        session.step(job.feed)
        forecast = model.steps[0].plans.forecast("own").step_s
    first, second = read(tmp_path / "first"), read(tmp_path / "second")
    assert (list(first), list(second)) == ([3, 5], [6])
    assert first[3]["loss"] == pytest.approx(losses[1], rel=1e-6)
    assert first[5]["loss"] == pytest.approx(losses[3], rel=1e-6)
    assert second[6]["loss"] == pytest.approx(losses[4], rel=1e-6)
    sent = sum(model.traffic.bytes.values())
    for numbers in (*first.values(), *second.values()):
        assert numbers.keys() == {"loss", "step/measured_s", "step/planned_s", "wire/bytes"}
        assert numbers["wire/bytes"] == sent > 0
        assert numbers["step/planned_s"] == pytest.approx(forecast, rel=1e-6)
        assert 0 < numbers["step/measured_s"] < 60


def test_each_step_of_a_job_writes_its_own(tmp_path):
    job = gan()
    with caramel.ARModel(job.context(), 2).session(trials=None) as session:
        (tmp_path / "file").write_text("")
        with pytest.raises(FileError, match="summaries cannot be written to '.*below'"):
            session.summaries(tmp_path / "file" / "below")
        with pytest.raises(FeedError, match="every must be a whole number of steps, at least 1"):
            session.summaries(tmp_path, every=0)
        session.summaries(tmp_path / "gan", every=2)
        losses = [session.step(job.part(0), step=step) for step in ("d", "g", "d", "g")]
    found = read(tmp_path / "gan")
    assert {step: set(numbers) for step, numbers in found.items()} == {
        3: {"d/loss", "d/step/measured_s", "d/wire/bytes"},
        4: {"g/loss", "g/step/measured_s", "g/wire/bytes"},
    }
    assert found[3]["d/loss"] == pytest.approx(losses[2], rel=1e-6)
