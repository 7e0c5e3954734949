"""What the peers that run in a TensorFlow session have in common."""

from __future__ import annotations

from typing import Any

INTER_OP_THREADS = 2  # what a Caramel worker takes on a host with one core


def config() -> Any:
    """Options of a session or server: no optimizers, and threads as Caramel's workers have them."""
    import tensorflow as tf

    options = tf.compat.v1.ConfigProto(
        intra_op_parallelism_threads=1, inter_op_parallelism_threads=INTER_OP_THREADS
    )
    options.graph_options.rewrite_options.disable_meta_optimizer = True
    options.graph_options.optimizer_options.opt_level = tf.compat.v1.OptimizerOptions.L0
    return options
