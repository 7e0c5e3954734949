"""What the peers that run in a TensorFlow session have in common."""

from __future__ import annotations

from typing import Any


def config() -> Any:
    """Options of a session or server: one thread for an op, as all systems have; no optimizers."""
    import tensorflow as tf

    options = tf.compat.v1.ConfigProto(intra_op_parallelism_threads=1)
    options.graph_options.rewrite_options.disable_meta_optimizer = True
    options.graph_options.optimizer_options.opt_level = tf.compat.v1.OptimizerOptions.L0
    return options
