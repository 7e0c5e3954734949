"""What servers have in TensorFlow's containers."""

from __future__ import annotations

import tensorflow as tf

tf1 = tf.compat.v1


def is_there(target: str, device: str, container: str, variable: str) -> bool:
    """Whether a server has a variable."""
    with tf.Graph().as_default(), tf.device(device):
        handle = tf.raw_ops.VarHandleOp(
            dtype=tf.float64, shape=[], container=container, shared_name=variable
        )
        # Else it would wait for other workers, which may be lost.
        config = tf1.ConfigProto(device_filters=[device])
        with tf1.Session(target, config=config) as plain:
            return bool(plain.run(tf.raw_ops.VarIsInitializedOp(resource=handle)))
