"""Certificates of hosts: what is made, who may read it, what is refused."""

from __future__ import annotations

import shutil
import stat
from types import SimpleNamespace

import pytest

from caramel.core.errors import CertificateError
from caramel.protection.certificates import make_certificates
from caramel.protection.credentials import (
    AUTHORITY,
    CERTIFICATE,
    KEY,
    REVOKED,
    Credentials,
    directory_of,
)
from tests.support.commands import called

pytest.importorskip("cryptography")


@pytest.fixture
def made(tmp_path):
    """An authority with two hosts."""
    root = tmp_path / "all"
    a, b = make_certificates(root, ["a,10.0.0.1,::1", "b"])
    return SimpleNamespace(root=root, a=a, b=b)


def contents(directory):
    return {str(p.relative_to(directory)): p.read_text() for p in directory.rglob("*.pem")}


def test_only_their_owner_reads_them(made):
    for path in [made.root, *made.root.rglob("*")]:
        wanted = 0o700 if path.is_dir() else 0o600
        assert stat.S_IMODE(path.stat().st_mode) == wanted, path
    assert {p.name for p in made.a.iterdir()} == {AUTHORITY, CERTIFICATE, KEY, REVOKED}


def test_a_certificate_is_for_the_names_of_its_host_only(made):
    credentials = Credentials(made.a)
    for host in ("a", "10.0.0.1", "::1", None):
        credentials.check(host)
    with pytest.raises(CertificateError, match="for host 'b': the certificate is for another host"):
        credentials.check("b")


def test_a_host_more_is_of_the_authority_that_is_there(made, monkeypatch, capsys, tmp_path):
    before = contents(made.root)
    done = called(monkeypatch, capsys, tmp_path, "certificates", "--out", made.root, "c")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"made {made.root / 'c'}: copy this directory to its host\n"
    after = contents(made.root)
    assert after.items() >= before.items()
    assert set(after) - set(before) == {f"c/{name}" for name in (AUTHORITY, CERTIFICATE, KEY)}


def test_every_certificate_that_a_host_had_is_revoked_on_all_hosts(made, monkeypatch, capsys):
    stolen = made.root.parent / "stolen"
    shutil.copytree(made.b, stolen)
    make_certificates(made.root, ["b"])
    done = called(
        monkeypatch, capsys, made.root, "certificates", "--out", made.root, "--revoke", "b"
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert len(done.stdout.splitlines()) == 2
    shutil.copy(made.a / REVOKED, stolen / REVOKED)
    for directory in (stolen, made.b):
        with pytest.raises(CertificateError, match="was revoked"):
            Credentials(directory).check()
    Credentials(made.a).check()
    make_certificates(made.root, ["b"])  # it may have another one
    Credentials(made.b).check("b")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "nothing to do: name hosts, or one to --revoke"),
        (["a:2222"], "'a:2222' is no name or address of a host"),
        (["../a"], "'../a' is no name or address of a host"),
        ([".."], "'..' is no name or address of a host"),
        (["a,"], "'' is no name or address of a host"),
        (["a", "--days", "0"], "days is 0; expected more than 0"),
        (["a", "--days", "nan"], "days is nan; expected more than 0"),
        (["a", "--days", "1e9"], "days is 1e+09; expected more than 0"),
        (["--revoke", "c"], "no certificate for 'c' was made"),
    ],
)
def test_mistakes_are_one_line(arguments, message, monkeypatch, capsys, tmp_path):
    done = called(monkeypatch, capsys, tmp_path, "certificates", "--out", "all", *arguments)
    assert done.returncode == 2
    assert done.stderr.startswith(f"caramel: error: {message}")
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "all").exists()


def test_directories_with_other_things_are_left_alone(tmp_path):
    (tmp_path / "mine").write_text("")
    with pytest.raises(CertificateError, match="has other things than certificates"):
        make_certificates(tmp_path, ["a"])
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_half_an_authority_is_not_taken_for_none(made):
    (made.root / "ca-key.pem").unlink()
    with pytest.raises(CertificateError, match="half an authority: ca-key.pem is missing"):
        make_certificates(made.root, ["c"])


def spoiled(made, tmp_path, how):
    directory = tmp_path / "spoiled"
    shutil.copytree(made.a, directory)
    how(directory)
    return directory


@pytest.mark.parametrize(
    ("how", "message"),
    [
        (lambda d, made: (d / KEY).unlink(), "cannot read .*: No such file"),
        (lambda d, made: (d / KEY).chmod(0o644), "can be read by every user .*: chmod 600"),
        (lambda d, made: shutil.copy(made.b / KEY, d / KEY), "cannot be used: KEY_VALUES_MISMATCH"),
        (lambda d, made: (d / CERTIFICATE).write_text("x"), "cannot be used: "),
        (lambda d, made: (d / REVOKED).write_text("b, c\n"), "is no list of revoked certificates"),
        (
            lambda d, made: shutil.copy(made.other / AUTHORITY, d / AUTHORITY),
            "the certificate is of another authority",
        ),
        (
            lambda d, made: shutil.copytree(made.expired, d, dirs_exist_ok=True),
            r"has expired\. Make a new one: caramel certificates --out DIR HOST",
        ),
    ],
    ids=["no key", "open key", "other key", "no certificate", "no list", "other CA", "expired"],
)
def test_credentials_that_cannot_be_used_say_why(made, tmp_path, how, message):
    (made.other,) = make_certificates(tmp_path / "other", ["a"])
    (made.expired,) = make_certificates(tmp_path / "old", ["a"], days=1e-9)
    directory = spoiled(made, tmp_path, lambda copy: how(copy, made))
    with pytest.raises(CertificateError, match=message):
        Credentials(directory).check()


def test_a_directory_is_that_of_a_host_or_of_all(made, tmp_path):
    assert directory_of(made.a, ["x"]) == made.a
    assert directory_of(str(made.root), ["x", "b"]) == made.b
    with pytest.raises(CertificateError, match=r"named for this host \(x\).*--out DIR x$"):
        directory_of(made.root, ["x"])
    with pytest.raises(CertificateError, match="certificates is 3; expected a directory"):
        directory_of(3, ["x"])
