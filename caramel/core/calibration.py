"""What transfers cost a machine, beside what is measured of each job and each network.

An analysis has the `DEFAULT` where no profile has another one (`usual_calibration`).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from caramel.core.errors import ProfileError


@dataclass(frozen=True, slots=True)
class Calibration:
    """Costs and sizes that simulation and planning take for granted.

    The defaults were measured on machines of two cores (Intel Xeon) with links of 200 Mbit/s to
    1 Gbit/s. ``caramel profile`` measures the first five on its machine
    (`profiling.calibration`). The others need networks of known rates, accelerators, or
    many training steps.

    Attributes:
        reduce_s_per_byte: adding two tensors of so many bytes, on one core, in seconds for each
            byte of one: 64 MB take 12 to 18 ms.
        copy_s_per_byte: laying tensors side by side, in seconds for each byte. Taking them apart
            again copies only what is not aligned.
        processor_s_per_message: time of one core for each chunk that a worker sends, receiving as
            many, in seconds: by so much processor times differ between plans of few and of many
            groups (ResNet-50, Inception v1 and v3 with real computation,
            `benchmarks/results/ablation-real-2.json`).
        transfer_s: what TensorFlow takes for a transfer of next to nothing, in seconds, if no
            faster one was measured: half of what two workers take to aggregate 64 bytes, without
            the client's call (`benchmarks/results/decided/allreduce.json`,
            `benchmarks/results/overhead.json`).
        request_s: what asking for a message takes, in seconds, if no faster host was measured:
            `request_share` of what a small message takes between two workers of one core each.
        processor_s_per_byte: time of one core for each byte that a worker sends in an all-reduce,
            receiving as many, additions included, in seconds: 100 MB between two workers at
            1 Gbit/s took 0.21 s on each. Within one machine there are neither packets nor a network
            card, and it is half of that; so it is not measured there.
        handling_s_per_byte: from the last byte of a tensor that arrives until it can be used, and
            before the first one goes, in seconds for each byte: what one aggregation of 16 or 64 MB
            between two workers takes longer than the wire and the additions need
            (`benchmarks/results/decided/allreduce.json`). Only a wire whose rate is known shows it.
        message_s: what each chunk costs its link beside its bytes, in seconds: what plain steps of
            Inception v1, v2 and v3 with emulated accelerators took longer than their bytes explain,
            with two workers and with four (`benchmarks/results/step-k80-2.json`,
            `step-k80-4.json`).
        request_share: of what a small message costs, the part that comes at the begin of a step,
            when whoever will receive it asks for it. Steps with emulated accelerators that hide all
            transfers are longer than their computation by 40, 115 and 240 microseconds for each
            message that a worker receives, with two, four and eight workers (`step-grid-2.json`,
            `step-grid-4.json`, `step-grid-8.json` in `benchmarks/results`, plain plans with rho
            0.5); of many small tensors each message took 81, 219 and 610 to 740 there, measured by
            hand (all workers share two cores).
        in_flight_bytes: of groups that may be on their way at a time (`planning.gates`):
            the best of 6, 12, 24 and 50 MB for ResNet-50 on two hosts of one core at 1 Gbit/s.
        pair_bytes: from here on, groups are split between two workers, too (`planning.depth`): they
            take so long to add that the link would stand still. Smaller ones need no parts, since
            both directions are busy from the begin (`benchmarks/results/decided/allreduce.json`).
        measured: names of the attributes that were measured on the machine of the profile.

    Raises:
        ProfileError: a cost or a size is not a positive number, there is no attribute of a name, or
            the additions alone take more than sending and they.
    """

    reduce_s_per_byte: float = 0.25e-9
    copy_s_per_byte: float = 0.25e-9
    processor_s_per_message: float = 0.15e-3
    transfer_s: float = 0.2e-3
    request_s: float = 0.036e-3
    processor_s_per_byte: float = 2.1e-9
    handling_s_per_byte: float = 0.4e-9
    message_s: float = 0.04e-3
    request_share: float = 0.45
    in_flight_bytes: int = 12_000_000
    pair_bytes: int = 128_000_000
    measured: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        costs = [field.name for field in dataclasses.fields(self) if field.name != "measured"]
        for name in costs:
            value = getattr(self, name)
            if not 0 < value < math.inf:
                raise ProfileError(f"{name} must be more than 0 and finite, not {value}")
        if unknown := sorted(set(self.measured) - set(costs)):
            raise ProfileError(f"nothing can have measured {unknown}; there is {costs}")
        if self.sending_s_per_byte <= 0:
            raise ProfileError(
                f"additions of {self.reduce_s_per_byte} s for each byte are more than the "
                f"{self.processor_s_per_byte} s that all of an aggregation takes"
            )

    @property
    def sending_s_per_byte(self) -> float:
        """What each byte that is sent costs a processor without the additions, which are half as
        many, in seconds."""
        return self.processor_s_per_byte - self.reduce_s_per_byte / 2

    def with_measured(self, values: Mapping[str, Any]) -> Calibration:
        """The same with what was measured, by the names of attributes."""
        measured = dict.fromkeys((*self.measured, *values))
        return dataclasses.replace(self, **values, measured=tuple(measured))

    def joined(self, newer: Calibration) -> Calibration:
        """The same with what a newer one has measured."""
        return self.with_measured({name: getattr(newer, name) for name in newer.measured})


DEFAULT = Calibration()
"""Where nothing was measured."""


def usual_calibration() -> Calibration:
    """The fact where no profile has it."""
    return DEFAULT
