"""A network namespace of this process's own, with nothing but loopback."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import socket
import struct
from pathlib import Path

from caramel.core.errors import ClusterError

_NEW_USER, _NEW_NETWORK = 0x10000000, 0x40000000  # CLONE_NEWUSER, CLONE_NEWNET
_GET_FLAGS, _SET_FLAGS = 0x8913, 0x8914  # SIOCGIFFLAGS, SIOCSIFFLAGS
_UP = 1  # IFF_UP
_REQUEST = "16sh22x"  # struct ifreq: a name, and flags


def enter_network_namespace() -> None:
    """Move this process, which must have one thread, into a network namespace of its own.

    Root needs no user namespace for it, and so keeps its rights; others are in one of their own,
    as themselves.

    Raises:
        ClusterError: the system forbids it; says what allows it.
    """
    try:
        try:
            _unshare(_NEW_NETWORK)
        except PermissionError:
            _enter_user_namespace()
        _bring_loopback_up()
    except OSError as error:
        raise ClusterError(
            f"this system allows no network namespace ({error.strerror}), in which TensorFlow's "
            "server would be out of reach. An administrator may allow it: by sysctl "
            "kernel.unprivileged_userns_clone=1 (Debian) or "
            "kernel.apparmor_restrict_unprivileged_userns=0 (Ubuntu), by more than 0 in "
            "user.max_user_namespaces, for containers by their security profile. If a firewall "
            "keeps everybody from all ports of this host but those of the list of workers, say so: "
            "--firewalled"
        ) from None


def _enter_user_namespace() -> None:
    user, group = os.geteuid(), os.getegid()
    _unshare(_NEW_USER | _NEW_NETWORK)
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
    Path("/proc/self/gid_map").write_text(f"{group} {group} 1")


def _unshare(what: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(what):
        number = ctypes.get_errno()
        kind = PermissionError if number in (errno.EPERM, errno.EACCES) else OSError
        raise kind(number, os.strerror(number))


def _bring_loopback_up() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        asked = struct.pack(_REQUEST, b"lo", 0)
        _, flags = struct.unpack(_REQUEST, fcntl.ioctl(control, _GET_FLAGS, asked))
        fcntl.ioctl(control, _SET_FLAGS, struct.pack(_REQUEST, b"lo", flags | _UP))
