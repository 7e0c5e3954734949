"""Relays carry what hosts with a certificate say, and let nobody else in."""

from __future__ import annotations

import ctypes
import os
import random
import resource
import shutil
import signal
import socket
import ssl
import threading
from types import SimpleNamespace

import pytest

from caramel.cluster.client_relay import ClientRelay
from caramel.core.errors import ClusterError
from caramel.protection import client_process, handshakes, local_users, namespace
from caramel.protection.certificates import make_certificates, revoke
from caramel.protection.credentials import CERTIFICATE, REVOKED, Credentials
from caramel.protection.relay import Relay
from tests.support import protection
from tests.support.processes import wait_for

pytest.importorskip("cryptography")


@pytest.fixture(scope="module")
def hosts(tmp_path_factory):
    """Certificates: of this host, and of what is wrong in each way."""
    root = tmp_path_factory.mktemp("certificates")
    own, other_name = make_certificates(root / "own", [protection.HOST, "elsewhere"])
    (stranger,) = make_certificates(root / "other", [protection.HOST])
    (expired,) = make_certificates(root / "own", ["expired," + protection.HOST], days=1e-9)
    return SimpleNamespace(
        root=root / "own", own=own, elsewhere=other_name, stranger=stranger, expired=expired
    )


@pytest.fixture(scope="module")
def server():
    return protection.Echo()


@pytest.fixture
def door(hosts, server):
    with protection.entrance(hosts.own, server.connect) as (place, said):
        yield SimpleNamespace(place=place, said=said)


def echoed(address, content):
    """What comes back while it is being sent."""
    got = bytearray()
    with socket.create_connection(address, 30) as connection:
        sender = threading.Thread(target=connection.sendall, args=(content,))
        sender.start()
        while len(got) < len(content):
            got += connection.recv(1 << 20)
        sender.join()
    return bytes(got)


def test_what_is_sent_arrives_unchanged_both_ways_at_once(hosts, door):
    address = protection.way_out(hosts.own, door.place)
    for size in (1, 16_384, 5_000_001):
        content = random.Random(size).randbytes(size)
        assert echoed(address, content) == content


def test_an_end_is_told_to_the_other_side(hosts, door):
    address = protection.way_out(hosts.own, door.place)
    with socket.create_connection(address, 30) as connection:
        connection.sendall(b"x")
        assert connection.recv(1) == b"x"
        connection.shutdown(socket.SHUT_WR)
        assert connection.recv(1) == b""


STRANGERS = {
    "no certificate": lambda place, hosts: protection.tls(place),
    "of another authority": lambda place, hosts: protection.tls(place, hosts.stranger),
    "expired": lambda place, hosts: protection.tls(place, hosts.expired),
    "TLS 1.2": lambda place, hosts: protection.tls(
        place, hosts.own, version=ssl.TLSVersion.TLSv1_2
    ),
}


@pytest.mark.parametrize("who", STRANGERS)
def test_strangers_are_refused_before_a_byte_reaches_the_server(who, hosts, door, server):
    before = server.connections
    try:
        connection = STRANGERS[who](door.place, hosts)
    except OSError:
        pass
    else:
        with connection:
            assert protection.is_refused(connection)
    assert server.connections == before
    assert wait_for(lambda: door.said)
    assert "refused a connection from 127.0.0.1: " in door.said[0]


@pytest.mark.parametrize("first", [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"\x00" * 100, b"\x16\x03"])
def test_plain_tcp_is_refused(first, door, server):
    before = server.connections
    with socket.create_connection((door.place.host, door.place.port), 10) as connection:
        connection.sendall(first)
        if first == b"\x16\x03":  # the begin of TLS, and the end
            connection.shutdown(socket.SHUT_WR)
        assert protection.is_refused(connection)
    assert server.connections == before


def refusal(directory, place):
    """Why a host cannot reach another."""
    relay = Relay(Credentials(directory), lambda line: None)
    ((_, why),) = client_process.answers(relay, [place], 10)
    return why


def test_who_is_refused_is_told_why(hosts, door):
    assert refusal(hosts.own, door.place) == ""
    assert refusal(hosts.stranger, door.place) == "the certificate is of another authority (CA)"
    assert refusal(hosts.expired, door.place) == (
        "it refuses the certificate of this side (certificate expired)"
    )


def test_a_host_is_refused_that_has_another_ones_certificate_or_an_old_one(hosts, server):
    for directory, why in (
        (hosts.elsewhere, "the certificate is for another host"),
        (hosts.expired, "the certificate has expired"),
        (hosts.stranger, "the certificate is of another authority (CA)"),
    ):
        with protection.entrance(directory, server.connect) as (place, _):
            assert refusal(hosts.own, place) == why


def test_what_is_no_relay_or_not_there_is_told(hosts, server):
    def not_there():
        raise ConnectionRefusedError

    with protection.entrance(hosts.own, not_there) as (place, _):
        assert refusal(hosts.own, place) == "its relay runs, but its server does not listen"
        address = protection.way_out(hosts.own, place)
        with socket.create_connection(address, 30) as connection:
            assert protection.is_refused(connection)
    assert refusal(hosts.own, place) == "Connection refused"
    with socket.create_server((protection.HOST, 0)) as silent:
        place = protection.Place(protection.HOST, silent.getsockname()[1])
        relay = Relay(Credentials(hosts.own), lambda line: None)
        assert client_process.answers(relay, [place], 0.2) == [
            ("silent", "it does not answer in time")
        ]


def interrupted(after_s, call):
    """Call something that is interrupted after a while, as by Ctrl-C."""

    def interrupt(*_):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, after_s)
        call()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.processes
def test_the_answer_to_who_was_interrupted_is_not_taken_for_another_one(hosts, door):
    with socket.create_server((protection.HOST, 0)) as silent:
        there = f"{door.place.host}:{door.place.port}"
        relay = ClientRelay(hosts.own, [f"{protection.HOST}:{silent.getsockname()[1]}", there])
        assert len(relay.targets) == 2
        with pytest.raises(KeyboardInterrupt):
            interrupted(0.3, lambda: relay.answers([0], 5.0))
        assert relay.answers([1, 1], 10.0) == [("accepts", ""), ("accepts", "")]
        relay.close()


@pytest.mark.processes
def test_a_relay_that_cannot_start_leaves_no_process(hosts, tmp_path):
    directory = tmp_path / "certificates"
    shutil.copytree(hosts.own, directory)
    relay = ClientRelay(directory, [f"{protection.HOST}:1"])
    (directory / CERTIFICATE).write_text("no certificate")
    for _ in range(2):
        with pytest.raises(ClusterError, match="the relay of this program cannot start"):
            relay.targets  # noqa: B018
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(ClusterError):
        relay.targets  # noqa: B018
    assert len(os.listdir("/proc/self/fd")) <= before


def test_a_revoked_host_is_cut_off_and_others_are_not(hosts, server, tmp_path):
    root = tmp_path / "certificates"
    shutil.copytree(hosts.root, root)
    (thief,) = make_certificates(root, ["thief," + protection.HOST])
    own = root / hosts.own.name
    with protection.entrance(own, server.connect) as (place, said):
        addresses = [protection.way_out(each, place) for each in (thief, own)]
        its, others = (socket.create_connection(address, 30) for address in addresses)
        for connection in (its, others):
            connection.sendall(b"x")
            assert connection.recv(1) == b"x"
        (thief / REVOKED).unlink()  # it does not look
        revoke(root, "thief")
        assert protection.is_refused(its)
        others.sendall(b"y")
        assert others.recv(1) == b"y"
        (thief / REVOKED).write_text("")
        assert wait_for(lambda: refusal(thief, place) == "the certificate of this side was revoked")
        assert any("its certificate was revoked" in line for line in said)
    for connection in (its, others):
        connection.close()


def test_new_certificates_are_taken_up_without_a_restart(hosts, server, tmp_path):
    own = tmp_path / "own"
    shutil.copytree(hosts.expired, own)
    with protection.entrance(own, server.connect) as (place, _):
        assert refusal(hosts.own, place) == "the certificate has expired"
        for name in ("cert.pem", "key.pem"):
            shutil.copy(hosts.own / name, own / name)
        assert wait_for(lambda: refusal(hosts.own, place) == "")


def test_a_slow_handshake_is_closed(hosts, server, monkeypatch):
    monkeypatch.setattr(handshakes, "LIMIT_S", 0.3)
    with (
        protection.entrance(hosts.own, server.connect) as (place, said),
        socket.create_connection((place.host, place.port), 10) as slow,
    ):
        slow.sendall(b"\x16\x03\x01\x02")  # the begin of a ClientHello
        assert protection.is_refused(slow)
        assert wait_for(lambda: said)
        assert "its handshake took too long" in said[0]


def test_a_flood_of_connections_that_say_nothing_disturbs_nobody(hosts, door, server):
    """A thousand that stay open, as far as the relay leaves them."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 4000:
        pytest.skip("this system allows too few open files")
    content = os.urandom(100_000)
    address = protection.way_out(hosts.own, door.place)
    before = server.connections
    with socket.create_connection(address, 30) as open_before:
        open_before.sendall(b"x")
        assert open_before.recv(1) == b"x"
        flood = []
        for _ in range(1000):
            flood.append(socket.create_connection((door.place.host, door.place.port), 30))
        open_before.sendall(b"y")
        assert open_before.recv(1) == b"y"
        assert echoed(address, content) == content
        assert server.connections == before + 2
        for each in flood[: 1000 - handshakes.MOST_UNDER_WAY - 10]:
            assert protection.is_refused(each)
        for each in flood:
            each.close()
    assert 1 <= len(door.said) <= 3


def test_other_users_of_this_machine_are_told_from_this_one():
    with socket.create_server((protection.HOST, 0)) as listener:
        for family in (socket.AF_INET, socket.AF_INET6):
            with socket.socket(family) as own:
                if family == socket.AF_INET6:  # as gRPC does it
                    own.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
                    own.connect((f"::ffff:{protection.HOST}", listener.getsockname()[1]))
                else:
                    own.connect(listener.getsockname())
                with listener.accept()[0] as accepted:
                    assert local_users.is_of_this_user(accepted)
        if os.geteuid() != 0:
            return
        child = os.fork()
        if child == 0:
            os.setuid(65534)
            stranger = socket.create_connection(listener.getsockname())
            stranger.recv(1)
            os._exit(0)
        with listener.accept()[0] as accepted:
            assert not local_users.is_of_this_user(accepted)
        os.waitpid(child, 0)


@protection.needs_namespaces
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be somebody else")
def test_a_namespace_needs_no_root():
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
            # Who was root is not trusted with its own /proc; other users are.
            ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)
            before = os.stat("/proc/self/ns/net").st_ino
            namespace.enter_network_namespace()
            # Looking up an address would load a module, which this user may not be able to read.
            with (
                socket.create_server((protection.HOST, 0)) as listener,
                socket.socket() as connecting,
            ):
                connecting.connect(listener.getsockname())
            is_alone = os.stat("/proc/self/ns/net").st_ino != before
            code = 0 if is_alone and os.getuid() == 65534 else 1
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
