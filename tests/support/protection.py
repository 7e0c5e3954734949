"""Certificates, relays and strangers of tests."""

from __future__ import annotations

import functools
import os
import socket
import ssl
import threading
from contextlib import contextmanager, suppress

import pytest

from caramel.core.errors import ClusterError
from caramel.protection.credentials import CERTIFICATE, KEY, Credentials
from caramel.protection.namespace import enter_network_namespace
from caramel.protection.relay import Place, Relay, local_listener, port_of

HOST = "127.0.0.1"
_ALERT = 21  # the type of a record


@functools.cache
def namespaces_are_allowed() -> bool:
    child = os.fork()
    if child == 0:
        try:
            enter_network_namespace()
        except ClusterError:
            os._exit(1)
        os._exit(0)
    return os.waitpid(child, 0)[1] == 0


needs_namespaces = pytest.mark.skipif(
    not namespaces_are_allowed(), reason="the system forbids network namespaces"
)


class Echo:
    """A server that sends back what it gets, in the place of TensorFlow's."""

    def __init__(self):
        self.listener = local_listener()
        self.address = (HOST, port_of(self.listener))
        self.connections = 0
        self.received = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def connect(self):
        return socket.create_connection(self.address, 10)

    def _accept(self):
        with suppress(OSError):
            while True:
                connection, _ = self.listener.accept()
                self.connections += 1
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection):
        with connection, suppress(OSError):
            while got := connection.recv(1 << 16):
                self.received += len(got)
                connection.sendall(got)


@contextmanager
def entrance(directory, connect, **options):
    """A relay in front of a server: its place, and what it says."""
    said = []
    relay = Relay(Credentials(directory), said.append, **options)
    listener = local_listener()
    relay.let_in([listener], connect)
    yield Place(HOST, port_of(listener)), said
    listener.close()


def way_out(directory, place):
    """A relay beside a program: where that connects."""
    relay = Relay(Credentials(directory), lambda line: None)
    listener = local_listener()
    relay.let_out(listener, place)
    return HOST, port_of(listener)


def is_refused(connection) -> bool:
    """Whether the other side closes a connection, and says at most why: an alert of TLS."""
    connection.settimeout(30)
    try:
        said = connection.recv(100)
        return not said or (said[0] == _ALERT and connection.recv(1) == b"")
    except TimeoutError:
        return False
    except OSError:
        return True


def tls(place, directory=None, *, version=ssl.TLSVersion.TLSv1_3):
    """A TLS connection of somebody who checks nothing."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.minimum_version = context.maximum_version = version
    if directory is not None:
        context.load_cert_chain(directory / CERTIFICATE, directory / KEY)
    connection = socket.create_connection((place.host, place.port), 10)
    return context.wrap_socket(connection)
