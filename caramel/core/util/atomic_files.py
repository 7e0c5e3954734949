"""Files that are written as a whole or not at all, and are on the disk when that is said."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
from pathlib import Path

from caramel.core.errors import FileError


def write_whole(path: Path, text: str) -> None:
    """Write a file, or leave what was there before; nobody ever reads half of it.

    Raises:
        FileError: it cannot be written.
    """
    # In the same directory: only within one file system is a file replaced at once.
    temporary = path.with_name(f".{path.name}-{secrets.token_hex(8)}")
    try:
        with temporary.open("x") as file:
            file.write(text)
        # Else a crash may leave the new name with nothing in it.
        sync(temporary)
        os.replace(temporary, path)
    except OSError as error:
        raise FileError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


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
