"""Networks whose gradients take all kinds of ways from differentiation to their updates."""

from __future__ import annotations

from tests.support.networks import parameter, perceptron, tf, tf1


def square(x):
    """All layers as wide as the input."""
    h = tf.nn.relu(x @ parameter("w", [6, 6]) + parameter("b", [6]))
    return h @ parameter("w2", [6, 3])


def bias_of_one_row(x):
    return x @ parameter("w", [6, 3]) + parameter("b", [1, 3])


def column(x):
    one = x @ parameter("w", [6, 1]) + parameter("b", [1])
    return tf.concat([one, x @ parameter("v", [6, 2])], 1)


def scalars(x):
    return tf.tanh(x @ parameter("w", [6, 3]) * parameter("scale", []) + parameter("shift", []))


def layer_norm(x):
    h = x @ parameter("w", [6, 5])
    mean, variance = tf.nn.moments(h, [1], keepdims=True)
    h = (h - mean) / tf.sqrt(variance + 1e-3) * parameter("gamma", [5]) + parameter("beta", [5])
    return h @ parameter("w2", [5, 3])


def prelu(x):
    h = x @ parameter("w", [6, 5])
    return (tf.nn.relu(h) - parameter("alpha", [5]) * tf.nn.relu(-h)) @ parameter("w2", [5, 3])


def transposed(x):
    h = tf.matmul(x, parameter("w", [5, 6]), transpose_b=True)
    return h @ tf.transpose(parameter("w2", [3, 5]))


def reshaped(x):
    h = tf.tanh(x @ tf.reshape(parameter("w", [30]), [6, 5]))
    return h @ tf.reshape(parameter("w2", [5, 3, 1]), [5, 3])


def sliced(x):
    h = tf.tanh(x @ parameter("w", [8, 5])[:6] + parameter("b", [7])[2:])
    return h @ parameter("w2", [5, 3])


def sliced_at_run_time(x):
    positions = tf.shape(x)[1] // 2
    h = tf.reshape(x, [-1, positions, 2]) + parameter("position", [8, 2])[:positions]
    return tf.reshape(tf.tanh(h), [-1, 6]) @ parameter("w", [6, 3])


def concatenated(x):
    w = tf.concat([parameter("wa", [2, 5]), parameter("wb", [4, 5])], 0)
    return tf.tanh(x @ w) @ parameter("w2", [5, 3])


def unstacked(x):
    first, second = tf.unstack(parameter("w", [2, 6, 3]))
    return x @ first + tf.tanh(x @ second)


def residual(x):
    w = parameter("w", [6, 6])
    for layer in range(3):
        x += tf.tanh(x @ w + parameter(f"b{layer}", [6]))
    return x @ parameter("w2", [6, 3])


def einsum(x):
    h = tf.tanh(tf.einsum("bi,ij->bj", x, parameter("w", [6, 5])))
    return tf.einsum("bi,ij->bj", h, parameter("w2", [5, 3]))


def convolution(x):
    h = tf.nn.conv2d(tf.reshape(x, [-1, 6, 1, 1]), parameter("k", [3, 1, 1, 4]), 1, "SAME")
    h = tf.nn.max_pool2d(tf.nn.relu(h + parameter("b", [4])), [2, 1], [2, 1], "SAME")
    return tf.reshape(h, [-1, 12]) @ parameter("w", [12, 3])


def stopped(x):
    w = parameter("w", [6, 6])
    return (tf.tanh(x @ w) + tf.stop_gradient(x @ w)) @ parameter("w2", [6, 3])


def unknown_rank(x):
    x = tf1.placeholder_with_default(x, None)
    return tf.tanh(tf.matmul(x, parameter("w", [6, 5])) + parameter("b", [1, 5])) @ parameter(
        "w2", [5, 3]
    )


def function(x):
    w, b = parameter("w", [6, 6]), parameter("b", [6])

    @tf.function
    def layer(h):
        return tf.tanh(h @ w + b)

    return layer(layer(x)) @ parameter("w2", [6, 3])


def loop(x):
    w, b = parameter("w", [6, 6]), parameter("b", [6])
    _, h = tf.while_loop(lambda i, h: i < 3, lambda i, h: (i + 1, tf.tanh(h @ w + b)), [0, x])
    return h @ parameter("w2", [6, 3])


def recurrence(x):
    w, b = parameter("w", [6, 4]), parameter("b", [4])
    steps = tf.TensorArray(x.dtype, 3).unstack(tf.transpose(tf.reshape(x, [-1, 3, 2]), [1, 0, 2]))

    def step(i, state):
        return i + 1, tf.tanh(tf.concat([steps.read(i), state], 1) @ w + b)

    _, state = tf.while_loop(lambda i, _: i < 3, step, [0, tf.zeros([tf.shape(x)[0], 4], x.dtype)])
    return state @ parameter("w2", [4, 3])


def initial_state(x):
    w = parameter("w", [6, 6])
    state = tf.tile(parameter("state", [1, 6]), [tf.shape(x)[0], 1])
    _, h = tf.while_loop(lambda i, h: i < 3, lambda i, h: (i + 1, tf.tanh(h @ w + x)), [0, state])
    return h @ parameter("w2", [6, 3])


def conditional(x):
    w, b = parameter("w", [6, 6]), parameter("b", [6])
    even = tf.equal(tf1.train.get_or_create_global_step() % 2, 0)
    h = tf.cond(even, lambda: tf.tanh(x @ w + b), lambda: tf.nn.relu(x @ w))
    return h @ parameter("w2", [6, 3])


MODELS = (
    perceptron,
    square,
    bias_of_one_row,
    column,
    scalars,
    layer_norm,
    prelu,
    transposed,
    reshaped,
    sliced,
    sliced_at_run_time,
    concatenated,
    unstacked,
    residual,
    einsum,
    convolution,
    stopped,
    unknown_rank,
    function,
)
WITH_CONTROL_FLOW = (loop, recurrence, initial_state, conditional)
