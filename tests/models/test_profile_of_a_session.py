"""`session.profile`: what a running job tells of itself, and a new model that plans from it."""

from __future__ import annotations

import numpy as np
import pytest

import caramel
from caramel.core.errors import FeedError, ProfileError
from caramel.core.profile import Profile
from tests.support.networks import deep, network, run_on_one_device, wide
from tests.support.placed import is_spread, placed


def test_a_placed_model_is_placed_anew_by_what_it_has_measured(tmp_path):
    job = network("adam", model=wide)
    model = placed(job, seed=1)
    with model.session() as session:
        initial = session.variables()
        losses = [session.step(job.feed)]
        profile = session.profile(2, job.feed)  # ordinary steps, too
        losses.append(session.step(job.feed))
        path = session.save(tmp_path / "model.ckpt")
    assert Profile.from_json(profile.to_json()) == profile
    for workers in (1, 2):
        with pytest.raises(ProfileError, match="was made for another graph"):
            placed(network("momentum", model=wide), workers, profile=profile)
    timing = profile.timing
    assert (timing.steps, timing.on_processor, timing.step_s) == (2, True, None)
    kinds = {job.context().op_graph[op].kind for op in timing.seconds}
    assert {"MatMul", "Tanh", "ResourceApplyAdam"} <= kinds
    # Of placeholders, too, which no trace tells: 40 examples.
    assert timing.traced_bytes["x:0"] == 40 * 6 * 8
    assert timing.traced_bytes["Tanh:0"] == 40 * 700 * 8
    (network_model,) = profile.networks
    assert network_model.workers == 3

    anew = placed(job, seed=2, profile=profile, order="schedule")
    assert is_spread(anew)
    assert anew.plan.placement.ops != model.plan.placement.ops
    with anew.session() as session:
        session.restore(path)
        losses += [session.step(job.feed) for _ in range(2)]
        values = session.variables()
    expected = run_on_one_device(job, initial, steps=6)
    assert losses == [expected.losses[step] for step in (0, 3, 4, 5)]
    for name, value in expected.values.items():
        np.testing.assert_array_equal(values[name], value, err_msg=name)


@pytest.mark.parametrize("kind", [caramel.ARModel, caramel.PSModel])
def test_other_models_plan_from_it_as_well(kind):
    job = network("gradient_descent", model=deep)
    servers = 1 if kind is caramel.PSModel else None
    with caramel.Cluster.embedded(2, parameter_servers=servers) as cluster:
        with kind(job.context(), cluster).session(trials=None) as session:
            session.step(job.feed)
            profile = session.profile(1, job.feed)
            with pytest.raises(FeedError, match="session.profile takes a number of steps"):
                session.profile(job.feed)
        assert profile.timing.traced_bytes["Tanh:0"] == 20 * 500 * 8  # of one worker's examples
        assert kind(job.context(), cluster, profile=profile).windows is not None
