"""The certificate of this host, and TLS with it.

A directory has the certificate (`CERTIFICATE`), its key, the authority's own certificate, and the
list of those that were revoked. `certificates` makes such directories.
"""

from __future__ import annotations

import contextlib
import os
import ssl
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from caramel.core.errors import CertificateError

AUTHORITY, CERTIFICATE, KEY, REVOKED = "ca.pem", "cert.pem", "key.pem", "revoked.txt"

_LOOK_S = 1.0  # how often files are looked at
_OTHERS = 0o007  # permissions of everybody else
# What OpenSSL says of a certificate (`X509_V_ERR_...`).
_NOT_YET_VALID, _EXPIRED = 9, 10
_OTHER_AUTHORITY = (2, 7, 18, 19, 20, 21)
_OTHER_HOST = (62, 64)


def directory_of(certificates: str | os.PathLike[str], names: Iterable[str]) -> Path:
    """Where the certificate of this host is: `certificates` itself, or what is named for the host
    in it.

    Raises:
        CertificateError: nowhere.
    """
    if not isinstance(certificates, str | os.PathLike):
        raise CertificateError(
            f"certificates is {certificates!r}; expected a directory that 'caramel certificates' "
            "has made"
        )
    path, own = Path(certificates), list(dict.fromkeys(names))
    for each in (path, *(path / name for name in own)):
        if (each / CERTIFICATE).is_file():
            return each
    raise CertificateError(
        f"'{path}' holds no certificate ({CERTIFICATE}), nor does a directory in it that is named "
        f"for this host ({' or '.join(own)}). Make one: caramel certificates --out DIR {own[0]}"
    )


class Credentials:
    """The certificate of this host, and TLS with it. New files are noticed.

    Where new files cannot be used, what was there before holds until they can.

    Args:
        directory: where its files are.

    Raises:
        CertificateError: they cannot be used.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._lock = threading.Lock()
        self._looked_s = time.monotonic()
        self._seen = self._state()
        self._revoked: frozenset[int] = frozenset()
        self._load()

    @property
    def directory(self) -> Path:
        """Where its files are."""
        return self._directory

    def check(self, host: str | None = None) -> float:
        """Whether others will accept the certificate, found by TLS with itself.

        Args:
            host: what it must be for; None where that does not matter.

        Returns:
            When it expires, in seconds since 1970.

        Raises:
            CertificateError: they will not.
        """
        try:
            client = self._context(ssl.PROTOCOL_TLS_CLIENT)
            client.check_hostname = host is not None
            certificate = _handshake_with_itself(self.server(), client, host)
        except ssl.SSLError as error:
            names = "" if host is None else f" for host '{host}'"
            raise CertificateError(
                f"the certificate in '{self._directory}' cannot be used{names}: "
                f"{why_refused(error)}. Make a new one: caramel certificates --out DIR "
                f"{host or 'HOST'}"
            ) from None
        if serial_of(certificate) in self.revoked():
            raise CertificateError(f"the certificate in '{self._directory}' was revoked")
        return ssl.cert_time_to_seconds(certificate["notAfter"])

    def server(self) -> ssl.SSLContext:
        """For who is connected to."""
        self._look()
        return self._server

    def client(self) -> ssl.SSLContext:
        """For who connects."""
        self._look()
        return self._client

    def revoked(self) -> frozenset[int]:
        """The serial numbers of the certificates that were revoked."""
        self._look()
        return self._revoked

    def _look(self) -> None:
        with self._lock:
            now_s = time.monotonic()
            if now_s < self._looked_s + _LOOK_S:
                return
            self._looked_s = now_s
            state = self._state()
            if state == self._seen:
                return
            with contextlib.suppress(CertificateError):  # such as a copy that is under way
                self._load()
                self._seen = state

    def _state(self) -> list[tuple[int, int, int] | None]:
        return [_state(self._directory / name) for name in (AUTHORITY, CERTIFICATE, KEY, REVOKED)]

    def _load(self) -> None:
        revoked = _revoked(self._directory / REVOKED)
        server = self._context(ssl.PROTOCOL_TLS_SERVER)
        client = self._context(ssl.PROTOCOL_TLS_CLIENT)
        if revoked is None and self._revoked:
            raise CertificateError(f"there is no '{self._directory / REVOKED}' any more")
        self._server, self._client, self._revoked = server, client, revoked or frozenset()

    def _context(self, protocol: int) -> ssl.SSLContext:
        key = self._directory / KEY
        try:
            if key.stat().st_mode & _OTHERS:
                raise CertificateError(
                    f"'{key}' can be read by every user of this machine: chmod 600 '{key}'"
                )
            context = ssl.SSLContext(protocol)
            context.minimum_version = ssl.TLSVersion.TLSv1_3
            context.verify_mode = ssl.CERT_REQUIRED
            context.load_cert_chain(self._directory / CERTIFICATE, key, password=_no_password)
            context.load_verify_locations(self._directory / AUTHORITY)
        except ssl.SSLError as error:
            raise CertificateError(
                f"the files {AUTHORITY}, {CERTIFICATE} and {KEY} in '{self._directory}' cannot be "
                f"used: {error.reason or error}"
            ) from None
        except OSError as error:
            name = error.filename or self._directory
            raise CertificateError(f"cannot read '{name}': {error.strerror or error}") from None
        if protocol == ssl.PROTOCOL_TLS_SERVER:
            context.num_tickets = 0  # each connection is checked anew
        return context


def serial_of(certificate: Any) -> int:
    """The serial number of a certificate, as `ssl.SSLSocket.getpeercert` has it."""
    return int(certificate["serialNumber"], 16)


def why_refused(error: Exception) -> str:
    """What is wrong where TLS with somebody fails, in words."""
    if isinstance(error, ssl.SSLCertVerificationError):
        code = error.verify_code
        if code in _OTHER_AUTHORITY:
            return "the certificate is of another authority (CA)"
        if code == _EXPIRED:
            return "the certificate has expired"
        if code == _NOT_YET_VALID:
            return "the certificate is not valid yet: is the clock right?"
        if code in _OTHER_HOST:
            return "the certificate is for another host"
        return f"the certificate cannot be used: {error.verify_message}"
    if isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError | ConnectionResetError):
        return "it closed the connection"
    if isinstance(error, ssl.SSLError):
        reason = error.reason or str(error)
        if "ALERT" in reason:
            told = reason.rpartition("ALERT_")[2].replace("_", " ").lower()
            return f"it refuses the certificate of this side ({told})"
        if reason == "PEER_DID_NOT_RETURN_A_CERTIFICATE":
            return "it has no certificate"
        return f"it does not speak TLS 1.3 ({reason.replace('_', ' ').lower()})"
    if isinstance(error, TimeoutError):
        return "it does not answer in time"
    if isinstance(error, OSError):
        return error.strerror or str(error) or type(error).__name__
    return str(error)


def _no_password() -> str:
    return ""  # else OpenSSL asks for one at the terminal


def _state(file: Path) -> tuple[int, int, int] | None:
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_ino, status.st_size


def _revoked(file: Path) -> frozenset[int] | None:
    """The serial numbers of a list, with which its lines begin; None if there is no list."""
    try:
        lines = file.read_text().splitlines()
        return frozenset(int(line.split()[0], 16) for line in lines if line.strip())
    except FileNotFoundError:
        return None
    except OSError as error:
        raise CertificateError(f"cannot read '{file}': {error.strerror}") from None
    except ValueError:
        raise CertificateError(
            f"'{file}' is no list of revoked certificates: each line begins with a serial number"
        ) from None


def _handshake_with_itself(server: ssl.SSLContext, client: ssl.SSLContext, host: str | None) -> Any:
    """TLS between two ends in memory; returns the certificate."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    # The client first: what is wrong is what it says.
    ends = [
        client.wrap_bio(to_client, to_server, server_hostname=host),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    left = list(ends)
    while left:
        for end in tuple(left):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
            left.remove(end)
    return ends[0].getpeercert()
