"""Files that are written as a whole or not at all."""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path

from caramel.errors import FileError


def write_whole(path: Path, text: str) -> None:
    """Write a file, or leave what was there before; nobody ever reads half of it.

    Raises:
        FileError: it cannot be written.
    """
    temporary = path.with_name(f".{path.name}-{secrets.token_hex(8)}")
    try:
        with temporary.open("x") as file:
            file.write(text)
        os.replace(temporary, path)
    except OSError as error:
        raise FileError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
