"""Whatever public functions are given that cannot be: one clear error, before anything is done.

Every public entry is called, as its signature says: everything in `caramel.__all__`, and the public
methods of the classes in it. `entries` has a call of each that works; each argument in turn is
replaced by what is of another type or out of range.
"""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

import caramel
from caramel.cluster.local_tasks import LocalTasks
from caramel.core.errors import CaramelError, InvariantError, PlanError
from caramel.core.util.arguments import SECONDS, at_least, checked, fits
from caramel.runtime import checkpoints
from caramel.runtime.saving import check_path
from tests.support.networks import network

WRONG: dict[str, Any] = {
    "object": object(),
    "text": "no such thing",
    "empty": "",
    "False as text": "False",
    "bytes": b"bytes",
    "True": True,
    "None": None,
    "three": 3,
    "negative": -1,
    "zero": 0,
    "huge": 10**30,
    "fraction": 0.5,
    "nan": float("nan"),
    "infinite": float("inf"),
    "list": [object()],
    "mapping": {3: object()},
    "function": len,
    "class": int,
    "array": np.zeros(3),
}


@dataclass(frozen=True)
class Entry:
    """A public function, and a call of it that works.

    Attributes:
        name: what it is called.
        call: the function.
        given: arguments by their names, as far as they are needed.
        right: by parameter those of `WRONG` that are right, where the annotation does not say so.
    """

    name: str
    call: Callable[..., Any]
    given: dict[str, Any] = field(default_factory=dict)
    right: dict[str, str] = field(default_factory=dict)


NOTHING = {
    *("CaramelError", "Cluster", "Session", "__version__"),
    *("keep_memory", "keras", "loss", "per_worker"),
}
"""Of `caramel.__all__`, what takes nothing or anything, and classes that other entries make."""

FOR_ANYTHING = {
    *("as_dict", "close", "to_json", "pull", "push"),  # nothing is given
    *("fit", "__call__"),  # Keras and the user's function say what they take
    "refusing",  # like `unreachable`
}


def entries(folder, monkeypatch) -> Iterator[Entry]:
    made = network()
    context = made.context()
    given = {"context": context}
    job = {"graph": made.graph, "train_op": made.train_op, "loss": made.loss}
    yield Entry("Context", caramel.Context, job, {"steps": "None", "loss_weight": "None"})
    counts = {"workers": "three"}
    yield Entry("ARModel", caramel.ARModel, {**given, "workers": 1}, counts)
    served = {**given, "workers": 1, "parameter_servers": 1}
    yield Entry("PSModel", caramel.PSModel, served, {**counts, "parameter_servers": "three"})
    yield Entry("PlacedModel", caramel.PlacedModel, {**given, "workers": 1}, counts)
    for settings in ("TrialSettings", "ReplanSettings", "StallSettings", "Recovery"):
        yield Entry(settings, getattr(caramel, settings))
    anything = ", ".join(WRONG)
    of_step = {"workers": anything}  # looked at in the first step
    yield Entry("distribute", caramel.distribute, {"function": len, "workers": 1}, of_step)
    yield Entry("show_progress", caramel.show_progress)
    yield from of_clusters(monkeypatch)
    yield from of_models(context, made.feed)
    yield from of_keras()
    yield from of_functions()
    model = caramel.ARModel(context, 1)
    with model.session() as session:
        feeds = {"feed_dict": made.feed}
        (timeline,) = session.trace(1, made.feed)
        picture = {"path": folder / "timeline.json", "measured": timeline}
        yield Entry("save_timelines", caramel.save_timelines, picture)
        yield Entry("session.step", session.step, feeds, {"fetches": "None, list, mapping"})
        yield Entry("session.trace", session.trace, {"steps": 1, **feeds})
        yield Entry("session.profile", session.profile, {"steps": 1, **feeds})
        yield Entry("session.run", session.run, {"fetches": made.loss.name, **feeds})
        evaluated = {"batches": made.feed}
        yield Entry(
            "session.evaluate", session.evaluate, evaluated, {"fetches": "None, list, mapping"}
        )
        logs = {"logdir": folder / "logs"}
        yield Entry("session.summaries", session.summaries, logs, {"logdir": "text, False as text"})
        yield Entry("session.use", session.use, {"plan": "own"})
        yield Entry("session.try_plans", session.try_plans)
        yield Entry("session.metrics", session.metrics)
        yield Entry("session.variables", session.variables)
        yield Entry("session.assign", session.assign, {"values": {}})
        path = {"path": folder / "m", "global_step": 1}
        yield Entry("session.save", session.save, path, {"path": "text, False as text"})
        yield Entry("session.restore", session.restore, {"path": session.save(folder / "m")})
        monkeypatch.setattr(checkpoints, "rescue_variables", lambda _, path: check_path(path))
        rescued = {"path": folder / "rescued"}
        yield Entry("session.rescue", session.rescue, rescued, {"path": "text, False as text"})


def of_models(context, feed) -> Iterator[Entry]:
    model = caramel.ARModel(context, 1)
    yield Entry("ARModel.session", model.session, {}, {"config": "None"})
    yield Entry("ARModel.add_variant", model.add_variant, {"plan": model.plan, "name": "another"})
    yield Entry("Plan.from_json", caramel.Plan.from_json, {"text": model.plan.to_json()})
    placed = caramel.PlacedModel(context, 2)
    yield Entry("PlacedModel.explain", placed.explain)
    yield Entry("Plan.deciding", partial(deciding, model.plan))
    served = caramel.PSModel(context, 1, 1, ordering=None)
    with served.session(trials=None) as session:
        yield Entry("PSModel.orders", served.orders, {"measured": session.trace(1, feed)})


LEFT = object()


def deciding(
    plan,
    groups: Any = LEFT,
    parts: Any = LEFT,
    edges: Any = LEFT,
    gates: Any = LEFT,
    owners: Any = LEFT,
    pulls: Any = LEFT,
):
    """`Plan.deciding`, whose signature does not say what it takes."""
    given = {"groups": groups, "parts": parts, "edges": edges, "gates": gates}
    given |= {"owners": owners, "pulls": pulls}
    return plan.deciding(**{name: each for name, each in given.items() if each is not LEFT})


def of_keras() -> Iterator[Entry]:
    import keras

    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    given, counts = {"model": model, "workers": 1}, {"workers": "three"}
    yield Entry("keras.Trainer", caramel.keras.Trainer, given, counts)


def of_functions() -> Iterator[Entry]:
    import tensorflow as tf

    weight = tf.Variable([[1.0], [1.0]])

    def step(x):
        with tf.GradientTape() as tape:
            loss = caramel.loss(tf.reduce_mean((x @ weight) ** 2))
        weight.assign_sub(tape.gradient(loss, weight))

    given = {"function": step, "signature": [tf.TensorSpec([None, 2])]}
    yield Entry("Context.from_function", caramel.Context.from_function, given)


class NoProcesses:
    """In place of the processes of `Cluster.local`."""

    def restart(self, number):
        pass

    def close(self):
        pass

    def exit_code(self, number, wait_s=0.0):
        return None

    def pid(self, number):
        return 0


def of_clusters(monkeypatch) -> Iterator[Entry]:
    cluster = caramel.Cluster
    with monkeypatch.context() as patch:
        patch.setattr(LocalTasks, "_started", lambda *_: NoProcesses())
        patch.setattr(LocalTasks, "wait_until_listening", lambda *_, **__: None)
        servers = {"parameter_servers": "three"}
        yield Entry("Cluster.local", cluster.local, {"n": 1}, {"n": "three", **servers})
        local = cluster.local(2)
        yield Entry("Cluster.restart", local.restart, {"tasks": local.tasks[:1]})
    yield Entry("Cluster.embedded", cluster.embedded, {"n": 2})
    yield Entry("Cluster.of", cluster.of, {"workers": ["a:1", "b:2"]}, {"task": "zero, None"})
    yield Entry("Cluster.parse", cluster.parse, {"text": "2", "parameter_servers": "1"})
    yield Entry("Cluster.coerce", cluster.coerce, {"workers": 2}, {"workers": "three"})
    both = {"workers": 2, "parameter_servers": 1}
    yield Entry(
        "Cluster.coerce_with_servers",
        cluster.coerce_with_servers,
        both,
        {"workers": "three", "parameter_servers": "three"},
    )
    environ = {"environ": {"TF_CONFIG": '{"cluster": {"worker": ["a:1"]}}'}}
    yield Entry("Cluster.from_environment", cluster.from_environment, environ)
    two = cluster.embedded(2)
    yield Entry("Cluster.without", two.without, {"lost": two.tasks[1:]})
    yield Entry("Cluster.name", two.name, {"task": 1})
    yield Entry("Cluster.describe", two.describe, {"task": 1})
    yield Entry("Cluster.unreachable", two.unreachable)
    yield Entry("Cluster.wait_until_reachable", two.wait_until_reachable, {"timeout_s": 1.0})


def hints(call: Callable[..., Any]) -> dict[str, Any]:
    call = call.func if isinstance(call, partial) else call
    return typing.get_type_hints(call.__init__ if inspect.isclass(call) else call)


def outcome(call: Callable[[], Any]) -> str | None:
    """What is wrong with how a call ended; None if it was refused or done."""
    try:
        result = call()
    except InvariantError as error:
        return f"raised {error}"
    except CaramelError as error:
        return None if str(error) and "\n" not in str(error) else f"says {str(error)!r}"
    except Exception as error:
        return f"raised {type(error).__name__}: {error}"
    if hasattr(result, "close"):
        result.close()
    return "accepted"


def faults(entry: Entry) -> Iterator[str]:
    signature, kinds = inspect.signature(entry.call), hints(entry.call)
    if (found := outcome(partial(entry.call, **entry.given))) != "accepted":
        yield f"{entry.name} is refused: {found}"
    unknown = outcome(partial(entry.call, **entry.given, no_such_argument=1))
    if not unknown or not unknown.startswith("raised TypeError"):
        yield f"{entry.name}(no_such_argument=1) {unknown}"
    for name, parameter in signature.parameters.items():
        if parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
            continue
        for what, value in WRONG.items():
            kind = kinds.get(name, Any)
            may_be = what in entry.right.get(name, "") or (kind is not Any and fits(value, kind))
            found = outcome(partial(entry.call, **{**entry.given, name: value}))
            if found is not None and not (found == "accepted" and may_be):
                yield f"{entry.name}({name}={what}) {found}"


def documented() -> set[str]:
    """The methods of public classes that the API reference names."""
    text = (Path(__file__).parents[1] / "docs/api.md").read_text()
    shown = re.findall(r"autoclass:: caramel\.(\w+)\n\s+:members: (.+)", text)
    return {
        method.strip()
        for name, methods in shown
        for method in methods.split(",")
        if callable(getattr(getattr(caramel, name), method.strip(), None))
    }


def test_each_public_entry_refuses_what_cannot_be(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found, called = [], set(NOTHING)
    for entry in entries(tmp_path, monkeypatch):
        found += faults(entry)
        called |= {entry.name, entry.name.partition(".")[2]}
    assert not found, "\n".join(found)
    assert set(caramel.__all__) - {"Plan"} <= called
    for kind in (caramel.Session, caramel.Cluster, caramel.ARModel, caramel.PSModel):
        methods = inspect.getmembers(kind, lambda m: inspect.isfunction(m) or inspect.ismethod(m))
        public = {name for name, _ in methods if not name.startswith("_")}
        assert public <= called | FOR_ANYTHING, kind
    methods = documented()
    assert {"deciding", "from_function", "rescue"} <= methods
    assert methods <= called | FOR_ANYTHING


def test_messages_say_what_is_expected():
    @checked(PlanError, count=at_least(1), wait_s=SECONDS, share=at_least(0, most=1))
    def function(
        word: Literal["a", "b", "c"] | None = None,
        count: int = 1,
        wait_s: float = 1.0,
        share: float = 0.5,
        names: Sequence[str] = (),
    ) -> None: ...

    for given, message in (
        ({"word": "d"}, r"word must be one of 'a', 'b', 'c', or None, not 'd'"),
        ({"names": [None]}, r"names must be a list of texts, not \[None\]"),
        ({"count": True}, "count must be a whole number, at least 1, not True"),
        ({"count": 0}, "count must be a whole number, at least 1, not 0"),
        ({"wait_s": 0}, "wait_s must be a number of seconds, more than 0, not 0"),
        ({"share": 2}, "share must be a number, at least 0 and at most 1, not 2"),
        ({"names": "abc"}, r"names must be a list of texts, not 'abc'"),
        ({"names": ["a", 3]}, r"names must be a list of texts, not \['a', 3\]"),
        ({"names": "x" * 999}, r"xxx\.\.\.$"),
    ):
        with pytest.raises(PlanError, match=message):
            function(**given)
    function("a", np.int64(3), wait_s=np.float32(1), names=("a",))


def test_an_argument_that_does_not_exist_is_told_with_the_name_that_is_like_it():
    @checked(PlanError)
    def function(workers: int, *, pattern: str = "auto") -> None: ...

    for given, message in (
        ({"workers": 2, "patern": "ring"}, r"no argument 'patern' \(did you mean 'pattern'\?\)$"),
        ({"worker": 2}, r"no argument 'worker' \(did you mean 'workers'\?\)$"),
        ({"pattern": "ring"}, "function: missing a required argument: 'workers'$"),
    ):
        with pytest.raises(TypeError, match=message):
            function(**given)
