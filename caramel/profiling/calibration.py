"""Measures on this machine, in some seconds, what transfers cost it (`core.calibration`).

One core adds and copies tensors; and two workers inside this process, whose processor time can be
told, aggregate a small tensor and many of them. The least of all times counts: whatever else the
machine does only makes them longer.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from typing import Any

import tensorflow as tf

from caramel.capture.context import Context
from caramel.cluster.cluster import Cluster
from caramel.core.calibration import DEFAULT, Calibration
from caramel.core.errors import CaramelError
from caramel.models.allreduce import ARModel
from caramel.profiling.network import MANY, aggregation_job, empty_job
from caramel.profiling.series import Progress, Series, take_turns
from caramel.simulation.network_model import SMALL_BYTES

tf1 = tf.compat.v1

_TENSOR_BYTES = 16 * 2**20
_REPEATS = 30  # the least of them is near that of a quiet machine, where it is busy now and then
_SANE = 5.0  # times the default, at most, and at least this part of it

_log = logging.getLogger(__name__)


def measure_calibration(*, progress: Progress | None = None) -> Calibration:
    """The calibration of this machine. What cannot be measured, or would be absurd, keeps its
    default, which the log tells.

    Args:
        progress: called with what is being measured, and the turns done and to do.
    """
    report = progress or (lambda *_: None)
    found: dict[str, float] = {}
    for measured in (_memory_costs, _message_costs):
        try:
            found.update(measured(report))
        except (CaramelError, tf.errors.OpError, OSError) as error:
            _log.warning("some costs of transfers keep their defaults: %s", error)
    return DEFAULT.with_measured(dict(_sane(found)))


def _sane(found: Mapping[str, float]) -> Iterable[tuple[str, float]]:
    """What is near its default, as on any machine on which TensorFlow trains."""
    for name, value in found.items():
        default = getattr(DEFAULT, name)
        if math.isfinite(value) and default / _SANE <= value <= default * _SANE:
            yield name, value
        else:
            _log.warning("%s keeps its default of %.3g: %.3g was measured", name, default, value)


def _memory_costs(report: Progress) -> dict[str, float]:
    """What adding and copying take."""
    with (
        tf.Graph().as_default() as graph,
        tf.device("/CPU:0"),
        tf1.Session(graph=graph, config=_one_core()) as session,
    ):
        one, other = (
            tf1.get_variable(
                name,
                [_TENSOR_BYTES // 4],
                initializer=tf1.zeros_initializer(),
                use_resource=True,
            )
            for name in ("one", "other")
        )
        added = one.read_value() + other.read_value()
        copied = tf.concat([one.read_value(), other.read_value()], axis=0)
        session.run(tf1.global_variables_initializer())
        series = [Series(session.make_callable(op)) for op in (tf.no_op(), added.op, copied.op)]
        take_turns(series, _REPEATS, "adding and copying", report)
    empty_s, added_s, copied_s = (min(each.processor_s) for each in series)
    return {
        "reduce_s_per_byte": (added_s - empty_s) / _TENSOR_BYTES,
        "copy_s_per_byte": (copied_s - empty_s) / (2 * _TENSOR_BYTES),
    }


def _one_core() -> Any:
    config = tf1.ConfigProto(
        inter_op_parallelism_threads=1,
        intra_op_parallelism_threads=1,
        use_per_session_threads=True,
    )
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    return config


def _message_costs(report: Progress) -> dict[str, float]:
    """What messages take, of which each worker sends and receives one for each small tensor.

    Who adds up a tensor receives the other's and sends the sum: two transfers, one after the other.
    """
    cluster = Cluster.coerce(2)
    devices = [f"{task}/device:CPU:0" for task in cluster.devices]
    with ExitStack() as stack:

        def series(context: Context) -> Series:
            model = ARModel(
                context, cluster, device_list=devices, pattern="shuffle", planner="plain"
            )
            session = stack.enter_context(model.session(trials=None))
            return Series(lambda: session.step(fetches=[]))

        empty, one, many = map(
            series, (empty_job(), aggregation_job(SMALL_BYTES), aggregation_job(SMALL_BYTES, MANY))
        )
        take_turns([empty, one, many], _REPEATS, "messages", report)
    further = MANY - 1
    message_s = (min(many.seconds) - min(one.seconds)) / further
    of_both_s = (min(many.processor_s) - min(one.processor_s)) / further
    return {
        "processor_s_per_message": of_both_s / 2,
        "transfer_s": (min(one.seconds) - min(empty.seconds)) / 2,
        "request_s": DEFAULT.request_share * message_s,
    }
