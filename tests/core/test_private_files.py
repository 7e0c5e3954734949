"""Files that are made are nobody else's, and what others made is not followed."""

from __future__ import annotations

import os
import stat

import pytest

from caramel.core.errors import FileError
from caramel.core.util import disk_cache
from caramel.core.util.atomic_files import make_private, write_whole


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_a_private_file_is_never_open_to_others(tmp_path, monkeypatch):
    seen = []
    replace = os.replace
    monkeypatch.setattr(os, "replace", lambda old, new: (seen.append(mode(old)), replace(old, new)))
    write_whole(tmp_path / "key", "secret", private=True)
    assert (seen, mode(tmp_path / "key")) == ([0o600], 0o600)


def test_a_link_in_the_place_of_a_file_is_replaced_and_not_followed(tmp_path):
    (tmp_path / "mine").write_text("mine")
    (tmp_path / "file").symlink_to(tmp_path / "mine")
    write_whole(tmp_path / "file", "new")
    assert (tmp_path / "mine").read_text() == "mine"
    assert not (tmp_path / "file").is_symlink()


def test_what_has_the_temporary_name_is_not_opened(tmp_path, monkeypatch):
    monkeypatch.setattr("secrets.token_hex", lambda count: "guessed")
    (tmp_path / "mine").write_text("mine")
    (tmp_path / ".file-guessed").symlink_to(tmp_path / "mine")
    with pytest.raises(FileError, match="File exists"):
        write_whole(tmp_path / "file", "new")
    assert (tmp_path / "mine").read_text() == "mine"


def test_a_directory_becomes_private_or_is_refused(tmp_path):
    make_private(tmp_path / "a" / "b")
    assert mode(tmp_path / "a" / "b") == 0o700
    (tmp_path / "c").mkdir(mode=0o755)
    make_private(tmp_path / "c")
    assert mode(tmp_path / "c") == 0o700
    (tmp_path / "file").write_text("")
    with pytest.raises(FileError, match="cannot make directory"):
        make_private(tmp_path / "file")


def test_caches_are_private_and_one_that_others_can_write_is_not_read(tmp_path, monkeypatch):
    monkeypatch.setenv(disk_cache.VARIABLE, str(tmp_path / "cache"))
    timing = disk_cache.TimingTable({})
    disk_cache.keep_timing("a", timing)
    assert mode(tmp_path / "cache") == 0o700
    assert disk_cache.kept_timing("a") == timing
    (tmp_path / "cache").chmod(0o777)
    assert disk_cache.kept_timing("a") is None
    disk_cache.keep_timing("a", timing)  # which takes it back
    assert disk_cache.kept_timing("a") == timing
    if os.geteuid() == 0:
        os.chown(tmp_path / "cache", 65534, 65534)
        assert disk_cache.kept_timing("a") is None
