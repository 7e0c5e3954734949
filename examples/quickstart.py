"""The README's example: an ordinary single-device job, trained on four workers in this process.

    python examples/quickstart.py

What stands between the two marks is also in the README; a test keeps them equal.
"""

import sys

import caramel
from caramel.cluster.quiet_start import quiet_start

if sys.stdout.isatty():
    caramel.show_progress()  # says what takes long
with quiet_start():  # hides what TensorFlow writes when it is imported for the first time
    import tensorflow  # noqa: F401

import tensorflow as tf
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

tf1 = tf.compat.v1
digits = load_digits(return_X_y=True)  # 1,797 handwritten digits of 8x8 pixels
images, test_images, labels, test_labels = train_test_split(*digits, random_state=0)

with tf.Graph().as_default() as graph:  # ordinary single-device code
    x = tf1.placeholder(tf.float32, [None, 64], name="x")
    y = tf1.placeholder(tf.int32, [None], name="y")
    w = tf1.get_variable("w", [64, 10])
    b = tf1.get_variable("b", [10], initializer=tf1.zeros_initializer())
    logits = x / 16 @ w + b
    errors = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits)
    loss = tf.reduce_mean(errors)
    accuracy = tf.reduce_mean(tf.cast(tf.equal(tf.argmax(logits, 1, tf.int32), y), tf.float32))
    train_op = tf1.train.AdamOptimizer(0.02).minimize(loss)

# README: begin
context = caramel.Context(graph, train_op=train_op, loss=loss)
model = caramel.ARModel(context, workers=4)
with model.session() as session:
    for _ in range(100):
        loss_value = session.step({x: images, y: labels})  # each worker gets a quarter
    print("loss", loss_value)
    print("accuracy", session.run(accuracy, {x: test_images, y: test_labels}))
    print("largest weight", session.variables()["w"].max())
    path = session.save("checkpoints/quickstart.ckpt")
    session.restore(path)
# README: end
