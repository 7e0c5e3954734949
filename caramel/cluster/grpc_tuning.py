"""A process is woken when a message is there, not for each packet of it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from caramel.native import check, library

# gRPC is told only by this variable, which it reads when it is first used.
_VARIABLE = "GRPC_EXPERIMENTS"
# A tensor of 4 MB comes in some sixty pieces. By default gRPC reads each as soon as it has come: a
# wake-up, a system call, a piece of memory, and a look whether it was the last. Where the processor
# that computes also receives, that is time taken from computation: a twentieth of a step of
# Inception v1 on two hosts of one core. With these, gRPC waits until as much has come as the
# message still lacks (the second is the option SO_RCVLOWAT of the socket).
_WHOLE_MESSAGES = ("tcp_frame_size_tuning", "tcp_rcv_lowat")


@contextmanager
def whole_messages() -> Iterator[None]:
    """Start the first server of a process inside it, and its connections wait for whole messages.

    Where the user has set the variable ``GRPC_EXPERIMENTS``, what it says holds; so an empty one
    leaves gRPC as it is. Otherwise it is set only inside, and no child process inherits it.

    Raises:
        InstallationError: TensorFlow is not installed, or its gRPC has no such experiments.
    """
    if _VARIABLE in os.environ:
        yield
        return
    check.check_experiments(library.path(), _WHOLE_MESSAGES)
    os.environ[_VARIABLE] = ",".join(_WHOLE_MESSAGES)
    try:
        yield
    finally:
        os.environ.pop(_VARIABLE, None)
