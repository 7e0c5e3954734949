"""Every error Caramel raises: what went wrong, where, and what the user can do about it.

All of them derive from `CaramelError`, so ``except caramel.CaramelError`` catches them all.
The subclasses say which kind of mistake or failure it is:

========================== ==================================================================
`GraphError`               the single-device graph cannot be distributed as it is
`FeedError`                what was fed to or fetched from a step does not fit
`PlanError`                a plan does not fit the graph or the cluster
`ClusterError`             the workers cannot be described, reached or started, or one was lost
`CheckpointError`          a checkpoint cannot be read or does not fit the graph
`ProfileError`             measured facts cannot be had, read, or used for this job
`FileError`                a file cannot be written
`SessionError`             a session was used after it was closed, or after it failed
`InstallationError`        TensorFlow is not installed, or is not as Caramel needs it
`MissingFactError`         an analyzer needs a fact that nothing provides
`InvariantError`           Caramel built a graph it must not build; please report it
========================== ==================================================================
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from caramel.core.version import TENSORFLOW


class CaramelError(Exception):
    """Base of every error that Caramel raises."""


# The single-device graph ------------------------------------------------------------------------


class GraphError(CaramelError):
    """The single-device graph cannot be distributed as it is."""


class NotTensorFlowError(GraphError, TypeError):
    """Something that is neither a TensorFlow object nor a name was given."""


class UnknownNameError(GraphError, KeyError):
    """A name does not exist in the single-device graph."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class NoParametersError(GraphError):
    """The graph has no trainable variables."""


class NothingUpdatedError(GraphError):
    """The train op updates no parameter."""


class OneShotIteratorError(GraphError):
    """The graph reads a one-shot iterator, whose pipeline is hidden in a function."""


class ReferenceVariableError(GraphError):
    """The graph uses a reference variable instead of a resource variable."""


class QueueRunnerError(GraphError):
    """The graph uses queue runners, which feed one process only."""


class UnsupportedOpError(GraphError):
    """An op of the step cannot run on several workers."""


class AmbiguousGradientError(GraphError):
    """The raw gradient of a parameter cannot be told from the structure of the graph."""


class LossScaleError(GraphError):
    """The loss of the whole batch does not follow from the losses of its parts."""


class DriftError(GraphError):
    """A value that differs between workers reaches a variable that must stay equal on all."""


class InputPipelineError(GraphError):
    """A `tf.data` pipeline cannot be split into disjoint and complete shards."""


# Use --------------------------------------------------------------------------------------------


class FeedError(CaramelError, ValueError):
    """What was fed to or fetched from a step does not fit the graph or the workers."""


class PlanError(CaramelError, ValueError):
    """A plan does not fit the graph or the cluster it is used with."""


class CheckpointError(CaramelError):
    """A checkpoint cannot be read, or does not fit the graph."""


class DamagedCheckpointError(CheckpointError):
    """Files of a checkpoint are missing, or are not as they were written."""


class ProfileError(CaramelError, ValueError):
    """Measured facts cannot be had or read, or they belong to another job or cluster."""


class FileError(CaramelError, OSError):
    """A file cannot be written."""


class SessionError(CaramelError):
    """A session was used after it was closed, or after it failed."""


class InstallationError(CaramelError):
    """TensorFlow is not installed, or is not as Caramel needs it. Says what to install."""

    def __str__(self) -> str:
        return (
            f"{super().__str__()}. Install exactly the TensorFlow that Caramel is made for, here "
            f'and on all other machines: pip install "tensorflow=={TENSORFLOW}.*"'
        )


class MissingFactError(CaramelError):
    """An analyzer needs a fact that nobody provides."""


# Workers ----------------------------------------------------------------------------------------


class ClusterError(CaramelError):
    """The cluster is described wrongly, cannot be started, or has failed."""


class CertificateError(ClusterError):
    """Certificates of hosts cannot be made, read or used."""


class WorkerStartError(ClusterError):
    """A worker did not come up in time."""


class WorkerLostError(ClusterError):
    """A worker was lost while it was needed.

    Attributes:
        lost: its task (and others that were lost), for `Cluster.without`; none where it answers
            again.
    """

    def __init__(self, message: str, lost: Sequence[Any] = ()) -> None:
        super().__init__(message)
        self.lost = tuple(lost)


class RecoveryError(WorkerLostError):
    """Workers were lost, and the session could not go on without them (`caramel.Recovery`)."""


class StepTimeoutError(ClusterError):
    """A step did not end before its deadline although every worker can be reached."""


# Our own ----------------------------------------------------------------------------------------


class InvariantError(CaramelError):
    """A graph breaks one of the invariants that Caramel promises."""


class TrafficError(InvariantError):
    """Bytes cross between workers that the plan does not know, or planned ones do not cross."""
