"""A profile: measured facts in a file, so that planning needs to run nothing.

``caramel profile`` writes it and `ARModel(profile=...)` reads it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from caramel.core.calibration import DEFAULT, Calibration
from caramel.core.dtypes import dtype_bytes
from caramel.core.errors import CaramelError, ProfileError
from caramel.core.measurements import Measurements
from caramel.core.time_facts import NetworkModel, TimingTable
from caramel.core.util.arguments import checked
from caramel.core.util.atomic_files import write_whole
from caramel.core.util.fingerprint import Machine
from caramel.core.util.json_records import from_json_value, read_json, to_json_value
from caramel.core.workload import JobOutline

FORMAT = 5
_READABLE = (1, 2, 3, 4, 5)
"""Without outlines of jobs, of one tensor at a time only, and without a calibration."""
_KIND = "caramel profile"
_MOST = 2.0**63
"""Nothing measured is more: no size in bytes, no rate, no time in seconds. (As much says that there
is no such size: `caramel.simulation.network_model.LARGEST_THRESHOLD`.)"""


@dataclass(frozen=True, slots=True)
class Profile:
    """How long ops take on one worker, and aggregations on several.

    Attributes:
        tensorflow: the version it was measured with.
        machine: what it was measured on; for the network, what the client ran on.
        graph: hash of the job's graph (`util.fingerprint.graph_hash`) that `timing` is of.
        timing: of the ops; None if only the network was measured.
        job: what a step computes and aggregates, for simulating it without the graph.
        networks: at most one for each number of workers.
        measurements: what `networks` were fitted to.
        calibration: what transfers cost the machine.
    """

    tensorflow: str
    machine: Machine
    graph: str | None = None
    timing: TimingTable | None = None
    job: JobOutline | None = None
    networks: tuple[NetworkModel, ...] = ()
    measurements: tuple[Measurements, ...] = ()
    calibration: Calibration = DEFAULT

    def __post_init__(self) -> None:
        if (self.graph is None) != (self.timing is None):
            raise ProfileError("a profile has either both a graph and its timing or none of them")
        if self.job is not None and self.graph is None:
            raise ProfileError("a profile has the outline of a job only beside its timing")
        counts = [network.workers for network in self.networks]
        if len(set(counts)) < len(counts):
            raise ProfileError(f"a profile has two networks of as many workers: {counts}")
        if self.timing is not None and self.timing.cores == 0:
            raise ProfileError("a profile has times of ops that no core has computed")
        for network in self.networks:
            rates = [network.bytes_per_s, *(link.bytes_per_s for link in network.links)]
            if network.workers < 1 or not min(rates) > 0:
                raise ProfileError(
                    f"the network of {network.workers} workers in a profile has links that carry "
                    f"{min(rates):g} bytes per second"
                )
        for gradient in () if self.job is None else self.job.gradients:
            if not dtype_bytes(gradient.dtype):
                raise ProfileError(
                    f"the gradient of '{gradient.parameter:.100}' in a profile is of dtype "
                    f"'{gradient.dtype:.100}', whose elements have no size"
                )

    def timing_of(self, graph: str) -> TimingTable:
        """The timing of the graph with that hash.

        Raises:
            ProfileError: the profile has none, or that of another graph.
        """
        if self.timing is None or self.graph is None:
            raise ProfileError(
                "the profile has no times of ops; make it with 'caramel profile --module "
                "my_job:make_context'"
            )
        if self.graph != graph:
            raise ProfileError(
                f"the profile was made for another graph (hash {self.graph[:12]}, this job's is "
                f"{graph[:12]}): batch size, layers or optimizer may have changed; run 'caramel "
                "profile' again for this job, or leave the profile away"
            )
        return self.timing

    @property
    def outline(self) -> JobOutline:
        """The outline of the job.

        Raises:
            ProfileError: the profile has none.
        """
        if self.job is None:
            raise ProfileError(
                "the profile has no job; make it again with 'caramel profile --module "
                "my_job:make_context'"
            )
        return self.job

    def network(self, workers: int) -> NetworkModel:
        """The model for so many workers.

        Raises:
            ProfileError: it was not measured with so many.
        """
        for model in self.networks:
            if model.workers == workers:
                return model
        known = ", ".join(str(model.workers) for model in self.networks) or "none"
        raise ProfileError(
            f"the profile has no network of {workers} workers (measured: {known}); run 'caramel "
            "profile --add --workers ...' with all of them"
        )

    def joined(self, newer: Profile) -> Profile:
        """This profile with what `newer` has put in place of what both have.

        Raises:
            ProfileError: they were measured on different machines or with different versions of
                TensorFlow.
        """
        if (self.machine, self.tensorflow) != (newer.machine, newer.tensorflow):
            raise ProfileError(
                f"the profile was measured on {self.machine} with TensorFlow {self.tensorflow}, "
                f"this is {newer.machine} with {newer.tensorflow}; write another file"
            )
        networks = {model.workers: model for model in (*self.networks, *newer.networks)}
        measured = {each.workers: each for each in (*self.measurements, *newer.measurements)}
        # Graph, timing and outline belong together.
        timed = self if newer.timing is None else newer
        return replace(
            newer,
            graph=timed.graph,
            timing=timed.timing,
            job=timed.job,
            networks=tuple(networks[count] for count in sorted(networks)),
            measurements=tuple(measured[count] for count in sorted(measured)),
            calibration=self.calibration.joined(newer.calibration),
        )

    def to_json(self) -> str:
        """The profile as JSON text."""
        header = {"kind": _KIND, "format": FORMAT}
        return json.dumps({**header, **to_json_value(self)}, indent=1) + "\n"

    @classmethod
    @checked(ProfileError)
    def from_json(cls, text: str) -> Profile:
        """The profile that `to_json` wrote.

        Raises:
            ProfileError: the text is no profile, or one of another version of Caramel; says where.
        """
        try:
            value: Any = read_json(text)
        except ValueError as error:
            raise ProfileError(f"not a Caramel profile: it is not JSON ({error})") from None
        if not isinstance(value, Mapping) or value.get("kind") != _KIND:
            raise ProfileError("not a Caramel profile: 'caramel profile' writes one")
        if value.get("format") not in _READABLE:
            raise ProfileError(
                f"a Caramel profile of format {value.get('format')}, but this version of Caramel "
                f"reads formats {_READABLE[0]} to {FORMAT}; run 'caramel profile' again"
            )
        fields = {key: item for key, item in value.items() if key not in ("kind", "format")}
        _check_numbers(fields, "$")
        try:
            return from_json_value(cls, fields)
        except CaramelError as error:
            raise ProfileError(f"a damaged Caramel profile: {error}") from None

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the profile to a file, which is replaced only when the new one is whole.

        Raises:
            FileError: it cannot be written.
        """
        write_whole(Path(path), self.to_json())

    @classmethod
    @checked(ProfileError)
    def load(cls, path: str | os.PathLike[str]) -> Profile:
        """Read a profile from a file.

        Raises:
            ProfileError: there is none, or it is damaged; names the file.
        """
        try:
            text = Path(path).read_text()
        except OSError as error:
            raise ProfileError(f"cannot read {os.fspath(path)}: {error.strerror}") from None
        except UnicodeDecodeError:
            raise ProfileError(f"{os.fspath(path)}: not a Caramel profile") from None
        try:
            return cls.from_json(text)
        except ProfileError as error:
            raise ProfileError(f"{os.fspath(path)}: {error}") from None


def _check_numbers(value: Any, where: str) -> None:
    """Raise unless all numbers in JSON values are such as can be measured.

    Raises:
        ProfileError: one is negative or too large; says where.
    """
    items: Iterable[tuple[str, Any]] = ()
    if isinstance(value, dict):
        items = ((f"{where}.{key}", item) for key, item in value.items())
    elif isinstance(value, list):
        items = ((f"{where}[{number}]", item) for number, item in enumerate(value))
    elif isinstance(value, int | float) and not 0 <= value <= _MOST:
        raise ProfileError(
            f"a damaged Caramel profile: {where} is {value!r:.50}, which cannot have been measured"
        )
    for inner, item in items:
        _check_numbers(item, inner)
