"""Which checkpoints stay, and that nothing else goes."""

from __future__ import annotations

import errno
import os

import numpy as np
import pytest
import tensorflow as tf

import caramel
from caramel.core.errors import CheckpointError
from caramel.runtime.checkpoint import SavedTensor, write_checkpoint
from caramel.runtime.rotation import Rotation, rotate
from tests.support.networks import network


def indices(folder):
    return sorted(name[: -len(".index")] for name in os.listdir(folder) if name.endswith(".index"))


def test_the_newest_stay_and_one_in_some_hours():
    hours = [0, 0.5, 1, 1.5, 2, 2.5, 3]
    times_s = [3600.0 * each for each in hours]
    assert Rotation().of(times_s) == [True] * 7
    assert Rotation(2).of(times_s) == [False] * 5 + [True] * 2
    assert Rotation(9).of(times_s) == [True] * 7
    kept = [hour for hour, stays in zip(hours, Rotation(2, 1).of(times_s), strict=True) if stays]
    assert kept == [0, 1, 2, 2.5, 3]


def test_one_by_one_the_same_stay():
    """As if all had been there: what is left says enough of what was before."""
    left: list[float] = []
    for hour in range(20):
        left.append(1200.0 * hour)
        stays = Rotation(3, 1).of(left)
        left = [each for each, is_kept in zip(left, stays, strict=True) if is_kept]
    everything = [1200.0 * hour for hour in range(20)]
    stays = Rotation(3, 1).of(everything)
    assert left == [each for each, is_kept in zip(everything, stays, strict=True) if is_kept]


def test_only_files_of_the_series_go(tmp_path):
    def write(name):
        return write_checkpoint(tmp_path / name, [SavedTensor("a", "", np.zeros(2))])

    for name in ("m-best", "m", "m-1x-2", "other-1", "m-1", "m-2", "m-3"):
        write(name)
    (tmp_path / "m-1.txt").write_text("mine")
    rotate(write("m-4"), Rotation(2))
    assert indices(tmp_path) == ["m", "m-1x-2", "m-3", "m-4", "m-best", "other-1"]
    assert (tmp_path / "m-1.txt").exists()
    assert not any(name.startswith("m-2.") for name in os.listdir(tmp_path))
    state = tf.train.get_checkpoint_state(str(tmp_path))
    assert os.path.basename(state.model_checkpoint_path) == "m-4"
    named = [os.path.basename(path) for path in state.all_model_checkpoint_paths]
    assert named == ["m-best", "m", "m-1x-2", "other-1", "m-3", "m-4"]


def test_it_is_told_if_another_program_removes_one_meanwhile(tmp_path, monkeypatch):
    for step in (1, 2):
        write_checkpoint(tmp_path / f"m-{step}", [SavedTensor("a", "", np.zeros(2))])

    def gone(path):
        raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)

    monkeypatch.setattr(os.path, "getmtime", gone)
    with pytest.raises(CheckpointError, match=r"m-2' is written, but .* No such file .*m-1\.index"):
        rotate(str(tmp_path / "m-2"), Rotation(1))


def test_a_session_lists_what_it_has_saved(tmp_path):
    model = caramel.ARModel(network().context(), 1)
    with model.session() as session:
        paths = [session.save(tmp_path / "m", global_step=step, keep=2) for step in (1, 2, 3, 2, 4)]
        assert session.checkpoints == (paths[1], paths[4])
        assert indices(tmp_path) == ["m-2", "m-4"]
        session.restore(tmp_path)
        for options, message in (
            ({"keep": 2}, "give global_step, too"),
            ({"keep": 0, "global_step": 1}, "at least 1, not 0"),
            ({"keep": True, "global_step": 1}, "at least 1, not True"),
            ({"keep_every_hours": 2, "global_step": 1}, "give keep"),
            ({"keep": 1, "keep_every_hours": -1, "global_step": 1}, "more than 0, not -1"),
        ):
            with pytest.raises(CheckpointError, match=message):
                session.save(tmp_path / "m", **options)
    assert session.checkpoints == (paths[1], paths[4])
