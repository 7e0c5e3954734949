"""What is left when a worker is lost can be saved, whichever it was."""

from __future__ import annotations

import os
import signal

import numpy as np
import pytest
import tensorflow as tf

import caramel
from caramel.core.errors import CheckpointError, SessionError, WorkerLostError
from tests.runtime.test_inheritance import averaging
from tests.support.processes import worker_pid

pytestmark = [pytest.mark.processes, pytest.mark.usefixtures("forked_workers")]


@pytest.mark.parametrize("victim", [0, 2])
def test_the_variables_of_those_that_are_left_are_saved(victim, tmp_path):
    job = averaging()
    with caramel.Cluster.local(3) as cluster:
        model = caramel.ARModel(job.context(), cluster)
        with model.session(trials=None) as session:
            for _ in range(2):
                session.step(job.feed)
            expected = session.variables()
            left = [worker for worker in range(3) if worker != victim]
            own = [session.variables(worker)["average"] for worker in left]
            with pytest.raises(SessionError, match="lost no worker: session.save writes"):
                session.rescue(tmp_path / "early")
            os.kill(worker_pid(cluster, victim), signal.SIGKILL)
            with pytest.raises(WorkerLostError, match=r"session\.rescue\(path\) writes: start it"):
                session.variables(victim)
            paths = []
            for worker in left:  # each time one less is left
                paths.append(session.rescue(tmp_path / str(worker)))
                os.kill(worker_pid(cluster, worker), signal.SIGKILL)
            assert session.checkpoints == tuple(paths)
            with pytest.raises(CheckpointError, match="nothing is written: worker 0 .* alone"):
                session.rescue(tmp_path / "late")
    for path, average in zip(paths, [(own[0] + own[1]) / 2, own[1]], strict=True):
        reader = tf.train.load_checkpoint(path)
        values = {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}
        np.testing.assert_allclose(values.pop("average"), average, rtol=1e-12)
        assert values.keys() == expected.keys() - {"average"}
        for name, value in values.items():
            np.testing.assert_array_equal(value, expected[name], err_msg=name)
    assert not np.array_equal(own[0], own[1])
