"""The certificates of a cluster's hosts, as files.

A directory has the authority (CA), whose key never leaves it, and one directory for each host, to
be copied there as a whole. With a certificate a host may connect to all others, and they to it.
Only making certificates needs the package `cryptography`.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from caramel.core.errors import CertificateError
from caramel.core.util.atomic_files import make_private, write_whole
from caramel.protection.credentials import AUTHORITY, CERTIFICATE, KEY, REVOKED

if TYPE_CHECKING:
    from caramel.protection.authority import Authority

AUTHORITY_KEY, ISSUED = "ca-key.pem", "issued.txt"
DAYS = 365
"""How long the certificate of a host is valid by default."""

_MOST_DAYS = 36_500
_NAME = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]{0,251}[A-Za-z0-9_])?")


def make_certificates(directory: Path, hosts: Sequence[str], *, days: float = DAYS) -> list[Path]:
    """A certificate for each host; one that has one gets a new one.

    The authority is that of the directory, or a new one where there is none.

    Args:
        directory: where all is kept; made if missing.
        hosts: the name or address by which others reach each; several are joined by commas.
        days: how long they are valid.

    Returns:
        The directory of each host, which is named for its first name.

    Raises:
        CertificateError: `cryptography` is not installed, a name cannot be one, or `directory` has
            other things or half an authority.
        FileError: a file cannot be written.
    """
    names = [_names(host) for host in hosts]
    if not 0 < days <= _MOST_DAYS:
        raise CertificateError(f"days is {days:g}; expected more than 0, and at most {_MOST_DAYS}")
    authority = _authority_in(directory)
    return [_certify(directory, authority, each, days) for each in names]


def revoke(directory: Path, host: str) -> list[Path]:
    """Put all certificates that a host ever had on the list of those that were revoked.

    Args:
        directory: that of `make_certificates`.
        host: its first name.

    Returns:
        The files with the list, one for each host, to be copied there.

    Raises:
        CertificateError: it never had a certificate.
        FileError: a file cannot be written.
    """
    issued = [line.split() for line in _lines(directory / ISSUED)]
    serials = [serial for serial, of, *_ in issued if of == host]
    if not serials:
        known = ", ".join(sorted({of for _, of, *_ in issued})) or "none"
        raise CertificateError(
            f"no certificate for '{host}' was made in '{directory}'; those of: {known}"
        )
    today = datetime.now(timezone.utc).date()
    before = _lines(directory / REVOKED)
    listed = {line.split()[0] for line in before}
    added = [f"{serial} {host} {today}" for serial in serials if serial not in listed]
    return _write_revoked(directory, [*before, *added])


def _authority_in(directory: Path) -> Authority:
    """The authority that is in a directory, or a new one."""
    try:
        from caramel.protection.authority import Authority
    except ImportError as error:
        raise CertificateError(
            f"certificates are made by the package cryptography, which cannot be used ({error}); "
            "install it with: pip install '.[secure]' in Caramel's directory. Hosts that only use "
            "certificates do not need it"
        ) from None
    files = [directory / AUTHORITY, directory / AUTHORITY_KEY]
    there = [file.exists() for file in files]
    if all(there):
        make_private(directory)
        try:
            return Authority.read(*(file.read_text() for file in files))
        except (OSError, ValueError, TypeError) as error:
            raise CertificateError(f"cannot read the authority in '{directory}': {error}") from None
    if any(there):
        raise CertificateError(
            f"'{directory}' has half an authority: {files[there.index(False)].name} is missing"
        )
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise CertificateError(
            f"'{directory}' has other things than certificates; give a new directory, or an empty "
            "one"
        )
    make_private(directory)
    authority = Authority.new()
    write_whole(files[1], authority.key, private=True)
    write_whole(files[0], authority.text, private=True)
    return authority


def _certify(directory: Path, authority: Authority, names: Sequence[str], days: float) -> Path:
    """Make the directory of a host, or a new certificate in it."""
    signed = authority.certify(names, days)
    # Before it can be used: whatever happens now, it can be revoked.
    issued = [*_lines(directory / ISSUED), f"{signed.serial:x} {names[0]} {signed.until}"]
    write_whole(directory / ISSUED, _text(issued), private=True)
    own = directory / names[0]
    make_private(own)
    write_whole(own / KEY, signed.key, private=True)
    write_whole(own / CERTIFICATE, signed.text, private=True)
    write_whole(own / AUTHORITY, authority.text, private=True)
    _write_revoked(directory, _lines(directory / REVOKED))
    return own


def _write_revoked(directory: Path, lines: Sequence[str]) -> list[Path]:
    """Write the list of what was revoked for each host."""
    files = [each.parent / REVOKED for each in sorted(directory.glob(f"*/{CERTIFICATE}"))]
    for file in (directory / REVOKED, *files):
        write_whole(file, _text(lines), private=True)
    return files


def _names(host: str) -> list[str]:
    """The names of a host, which are joined by commas."""
    names = [name.strip() for name in host.split(",")]
    for name in names:
        if not _NAME.fullmatch(name) and not _is_address(name):
            raise CertificateError(
                f"'{name}' is no name or address of a host; expected one such as node1, "
                "node1.example.com, 192.168.0.7 or ::1, without a port"
            )
    return names


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return "%" not in name  # an interface is not part of an address


def _lines(file: Path) -> list[str]:
    try:
        return [line for line in file.read_text().splitlines() if line.strip()]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise CertificateError(f"cannot read '{file}': {error.strerror}") from None


def _text(lines: Sequence[str]) -> str:
    return "".join(f"{line}\n" for line in lines)
