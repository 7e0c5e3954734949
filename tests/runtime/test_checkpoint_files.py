"""Files of checkpoints: nothing that may be needed is removed, and any name can be read again."""

from __future__ import annotations

import errno
import os
import subprocess

import numpy as np
import pytest
import tensorflow as tf

from caramel.core.errors import CheckpointError
from caramel.core.facts import Variable
from caramel.core.graph import TensorSpec
from caramel.core.util.leftovers import temporary_prefix
from caramel.runtime import checkpoint
from caramel.runtime.checkpoint import SavedTensor, read_checkpoint, write_checkpoint
from caramel.runtime.checkpoint_index import data_files, with_data_files

A = Variable("a", "a", "a/init", "a/read", TensorSpec("float64", (2,)), True, True, "a")


def write(path, value):
    return write_checkpoint(path, [SavedTensor("a", "", np.full(2, float(value)))])


def read(path):
    return read_checkpoint(path, [A]).values["a"].tolist()


def data_file_names(folder):
    return sorted(file.name for file in folder.iterdir() if ".data-" in file.name)


NAMES = ["lr=[0.1]/m", "a*b", "what?", "[]", "[!a]/[b-c].ckpt", "back\\slash", "{x}", "~", "a b"]


@pytest.mark.parametrize("name", NAMES)
def test_names_that_look_like_patterns_are_taken_as_they_are(tmp_path, name, monkeypatch):
    write(tmp_path / "b" / "m", 0)  # what a pattern might find
    path = write(tmp_path / name, 1)
    write(path, 2)
    assert read(path) == [2, 2]
    assert read(os.path.dirname(path)) == [2, 2]
    assert len(data_file_names((tmp_path / name).parent)) == 2
    monkeypatch.chdir(tmp_path)
    assert read(name) == [2, 2]


def test_only_leftovers_of_this_machine_and_its_ended_processes_are_removed(tmp_path):
    here = temporary_prefix("[m]").removesuffix(f"{os.getpid()}-")
    gone, mine = tmp_path / f"{here}999999999-x", tmp_path / "mine"
    stays = [
        tmp_path / name
        for name in (
            f"{here}{os.getpid()}-x",
            ".[m].saving-0123456789abcdef-999999999-x",  # of another machine, or an earlier start
            f"{here}999999999",
            ".[m].saving-999999999-x",
        )
    ]
    for each in (gone, mine, *stays):
        each.mkdir()
        (each / "file").write_text("")
    link = tmp_path / f"{here}999999999-link"
    link.symlink_to(mine)
    foreign = tmp_path / f"{here}999999999-foreign"
    foreign.mkdir()
    if os.geteuid() == 0:
        os.chown(foreign, 65534, 65534)
        stays.append(foreign)
    write(tmp_path / "[m]", 1)
    assert not gone.exists()
    assert link.is_symlink()
    assert (mine / "file").exists()
    assert all(each.exists() for each in stays)


@pytest.mark.parametrize("header", [b"", b"\0\0", b"unknown format" * 9, bytes(100)])
@pytest.mark.parametrize("fails", [True, False])
def test_an_unknown_index_costs_no_data_file_before_the_new_one_stands(
    tmp_path, monkeypatch, header, fails
):
    path = tmp_path / "m"
    (tmp_path / "m.index").write_bytes(header)
    for name in ("m.data-00000-of-00001", "m.data-00000-of-00002", "m.data-00001-of-00002"):
        (tmp_path / name).write_text(name)
    before = data_file_names(tmp_path)
    if fails:
        monkeypatch.setattr(checkpoint.os, "replace", cannot_replace)
        with pytest.raises(CheckpointError, match="No space left"):
            write(path, 1)
        assert data_file_names(tmp_path) == before
        assert all((tmp_path / name).read_text() == name for name in before)
    else:
        write(path, 1)
        assert read(path) == [1, 1]
        assert data_file_names(tmp_path) == [f"m.data-0000{n}-of-00003" for n in range(3)]


def cannot_replace(source, target):
    raise OSError(errno.ENOSPC, "No space left on device", str(target))


def test_a_sharded_checkpoint_of_many_files_is_replaced(tmp_path):
    path = write(tmp_path / "m", 1)
    index = (tmp_path / "m.index").read_bytes()
    (tmp_path / "m.index").write_bytes(with_data_files(index, 100))
    os.replace(f"{path}.data-00000-of-00001", f"{path}.data-00000-of-00100")
    assert read(path) == [1, 1]
    write(path, 2)
    assert read(path) == [2, 2]
    assert data_file_names(tmp_path) == ["m.data-00000-of-00001"]


def test_the_number_of_data_files_is_read_and_changed(tmp_path):
    write(tmp_path / "m", 1)
    index = (tmp_path / "m.index").read_bytes()
    assert data_files(index) == 1
    assert data_files(with_data_files(index, 127)) == 127
    assert with_data_files(with_data_files(index, 2), 1) == index
    assert data_files(b"\0\0\6\x08\xac\x02" + index[5:]) == 300


def test_old_files_go_only_when_the_new_index_is_on_the_disk(tmp_path, monkeypatch):
    path = tmp_path / "m"
    write(path, 1)
    done = []
    for name in ("replace", "unlink", "fsync"):
        real = getattr(os, name)

        def noted(target, *others, name=name, real=real, **options):
            file = os.readlink(f"/proc/self/fd/{target}") if name == "fsync" else target
            done.append((name, os.path.basename(str(others[0] if others else file))))
            return real(target, *others, **options)

        monkeypatch.setattr(checkpoint.os, name, noted)
    write(path, 2)
    kept = [entry for entry in done if entry[1].startswith("m") or entry[1] == tmp_path.name]
    assert kept == [
        ("replace", "merged.data-00000-of-00002"),
        ("fsync", "merged.data-00000-of-00002"),
        ("fsync", "merged.data-00001-of-00002"),
        ("fsync", "merged.index"),
        ("replace", "m.data-00000-of-00002"),
        ("replace", "m.data-00001-of-00002"),
        ("fsync", tmp_path.name),
        ("replace", "m.index"),
        ("fsync", tmp_path.name),
        ("unlink", "m.data-00000-of-00001"),
    ]


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a small disk")
def test_a_full_disk_is_one_clear_error_and_the_old_checkpoint_is_whole(tmp_path):
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", tmp_path])
    if mounted.returncode:
        pytest.skip("no disk can be mounted here")
    try:
        path = write(tmp_path / "m", 1)
        large = [SavedTensor("a", "", np.zeros(10**6)), SavedTensor("b", "", np.zeros(10**6))]
        with pytest.raises(CheckpointError, match="No space left on device") as raised:
            write_checkpoint(path, large)
        assert "\n" not in str(raised.value)
        assert read(path) == [1, 1]
        assert sorted(file.name for file in tmp_path.iterdir()) == [
            "checkpoint",
            "m.data-00000-of-00001",
            "m.index",
        ]
    finally:
        subprocess.run(["umount", tmp_path], check=True)


def test_a_path_without_a_file_name_is_refused(tmp_path):
    for path in ("", "."):
        with pytest.raises(CheckpointError, match="is no path of a checkpoint"):
            write(path, 1)


def test_a_directory_whose_latest_checkpoint_is_gone_says_so(tmp_path):
    path = write(tmp_path / "m", 1)
    os.unlink(f"{path}.index")
    with pytest.raises(CheckpointError, match=r"holds no checkpoint: '.*m.index', its latest"):
        read(tmp_path)


def test_tensorflow_reads_what_has_fewer_tensors_than_files(tmp_path):
    for value in range(3):
        path = write(tmp_path / "m", value)
        assert tf.train.load_variable(path, "a").tolist() == [value, value]
        assert tf.train.latest_checkpoint(str(tmp_path)) == path


def test_a_name_that_is_also_a_directorys_means_the_checkpoint(tmp_path):
    (tmp_path / "m").mkdir()
    write(tmp_path / "m", 1)
    assert read(tmp_path / "m") == [1, 1]


@pytest.mark.parametrize("name", ["a\0b", "a\udcff"])
def test_a_name_that_no_file_can_have_is_refused(tmp_path, name):
    with pytest.raises(CheckpointError, match="cannot write checkpoint"):
        write(f"{tmp_path}/{name}", 1)


@pytest.mark.parametrize("name", ["m", "[m]"])
def test_checkpoints_of_tensorflows_first_format_are_read(tmp_path, name):
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        variable = tf.Variable(np.ones(2), name="a")
        session.run(variable.initializer)
        saver = tf.compat.v1.train.Saver([variable], write_version=1)
        saver.save(session, str(tmp_path / "m"), write_meta_graph=False)
    os.rename(tmp_path / "m", tmp_path / name)
    assert read(tmp_path / name) == [1, 1]


def test_checkpoints_of_objects_are_refused_by_what_they_are(tmp_path):
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        variable = tf.Variable(np.ones(2), name="a")
        session.run(variable.initializer)
        path = tf.compat.v1.train.Checkpoint(a=variable).save(str(tmp_path / "m"), session)
    with pytest.raises(CheckpointError, match=r"as tf\.train\.Checkpoint does; write one with"):
        read(path)
