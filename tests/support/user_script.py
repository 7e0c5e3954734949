"""What users write, for type checkers: each function is a script of its own, and is never called.

`tests/test_types.py` lets mypy look at it as strictly as it can.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

import caramel

Batch = tuple["np.ndarray[Any, Any]", "np.ndarray[Any, Any]"]


def quickstart(graph: tf.Graph, train_op: Any, loss: Any, accuracy: Any, feeds: Any) -> float:
    """The README's ten lines."""
    context = caramel.Context(graph, train_op=train_op, loss=loss)
    model = caramel.ARModel(context, workers=4)
    with model.session(resume="checkpoints", recover=caramel.Recovery()) as session:
        for _ in range(session.steps_done, 100):
            loss_value: float = session.step(feeds)
        print("loss", loss_value)
        print("accuracy", session.run(accuracy, feeds))
        print("largest weight", session.variables()["w"].max())
        path: str = session.save("checkpoints/quickstart.ckpt", keep=3)
        restored: tuple[str, ...] = session.restore(path)
        metrics = session.metrics()
        step_s: float | None = metrics.usual_step_s
        explanation = model.explain(session.trace(3, feeds), measured_step_s=step_s)
    explanation.save_page("explain.html")
    print(explanation, metrics, restored, model.plan.to_json())
    caramel.save_timelines("trace.png", session.trace(2, feeds), explanation.predicted)
    return explanation.step_s


def servers(context: caramel.Context, batches: Iterator[dict[str, Any]]) -> None:
    """Parameter servers, on processes of this machine."""
    with caramel.Cluster.local(2, parameter_servers=1) as cluster:
        model = caramel.PSModel(context, cluster, ordering="tac", in_flight_bytes=0)
        unordered = caramel.PSModel(context, cluster, ordering=None)
        model.add_variant(unordered.plan, "unordered")
        with model.session(trials=None) as session:
            for feeds in batches:
                session.step(feeds)
            session.use("unordered")
            order = model.explain(session.trace(2))
            print(order, model.orders(session.trace(2)).unique)
            for transfer in order.transfers:
                print(transfer.variable, transfer.place)


def loop(model: Any, batches: Iterator[Batch]) -> list[float]:
    """A Keras model, trained by a loop of one's own."""

    def step(images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = caramel.loss(model.compute_loss(y=labels, y_pred=model(images, training=True)))
        gradients = tape.gradient(loss, model.trainable_weights)
        model.optimizer.apply_gradients(zip(gradients, model.trainable_weights, strict=True))
        return loss

    caramel.show_progress()
    with caramel.distribute(step, workers=caramel.Cluster.parse("local:2")) as distributed:
        losses = [float(distributed(*batch)) for batch in batches]
        print(distributed.explain().step_s, distributed.session.metrics().plan)
    return losses


def fit(model: Any, images: Any, labels: Any) -> Any:
    """A Keras model, trained by fit."""
    with caramel.keras.Trainer(model, workers=["a:2222", "b:2222"]) as trainer:
        history = trainer.fit(images, labels, epochs=5).history
        trainer.evaluate(images, labels)
        predictions = trainer.predict(images)
    return history, predictions


def placed(graph: tf.Graph, train_op: Any, loss: Any, feeds: dict[str, Any]) -> int:
    """A model that fits on no worker."""
    context = caramel.Context(graph, steps={"d": (train_op, loss)}, name="spread")
    try:
        model = caramel.PlacedModel(context, 2, memory="2GiB", constraints={".*embedding.*": 0})
    except caramel.CaramelError as error:
        raise SystemExit(str(error)) from None
    with model.session(stalls=caramel.StallSettings()) as session:
        session.step(feeds, step="d")
        profile = session.profile(3, feeds, step="d")
    plan: caramel.Plan = model.plan
    again = caramel.PlacedModel(context, 2, profile=profile, plan=plan)
    needs: tuple[float, ...] = again.memory_bytes
    return round(max(needs))
