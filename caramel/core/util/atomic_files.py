"""Files that are written as a whole or not at all, and are on the disk when that is said."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
from pathlib import Path

from caramel.core.errors import FileError


def write_whole(path: Path, text: str, *, private: bool = False) -> None:
    """Write a file, or leave what was there before; nobody ever reads half of it.

    Args:
        path: where.
        text: what.
        private: whether only this user may read it, from the first moment on.

    Raises:
        FileError: it cannot be written.
    """
    # In the same directory: only within one file system is a file replaced at once. Nobody can
    # guess its name; and where there is something of that name, a link too, it is not opened.
    if not path.name:
        raise FileError(f"cannot write '{path}': it is no name of a file")
    temporary = path.with_name(f".{path.name}-{secrets.token_hex(8)}")
    try:
        flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY
        with open(os.open(temporary, flags, 0o600 if private else 0o666), "w") as file:
            file.write(text)
        # Else a crash may leave the new name with nothing in it.
        sync(temporary)
        os.replace(temporary, path)
    except OSError as error:
        raise FileError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def make_private(directory: Path) -> None:
    """Make a directory that only this user can use, or make one of this user's such a directory.

    Raises:
        FileError: it cannot be made, or is of another user.
    """
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        if directory.stat().st_mode & 0o077:
            directory.chmod(0o700)
    except OSError as error:
        raise FileError(f"cannot make directory {directory}: {error.strerror or error}") from error


def is_own(directory: Path) -> bool:
    """Whether nobody but this user, and root, can change what is in a directory.

    Raises:
        OSError: there is none.
    """
    status = directory.stat()
    return status.st_uid in (0, os.geteuid()) and not status.st_mode & 0o022


_CANNOT_SYNC = (errno.EINVAL, errno.ENOTSUP)  # said by file systems for directories


def sync(path: Path) -> None:
    """Wait until a file, or the names in a directory, are on the disk.

    Raises:
        OSError: they cannot be written.
    """
    # Read only, since a directory cannot be opened for writing.
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if not path.is_dir() or error.errno not in _CANNOT_SYNC:
            raise
    finally:
        os.close(descriptor)
