"""Caramel: without a plan, where each gradient is aggregated when it is there, and with one.

Host 0 has worker 0 and drives the job; the other hosts run ``caramel worker``. What a planned run
needs to know of its ops is traced before the first such run of a case, while all of its hosts
compute (`benchmarks.peers.traced`); what it needs to know of the network is measured by the first
one between such hosts.
"""

from __future__ import annotations

import dataclasses
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.peers.base import PeerError, Setting, evenly, versions_of
from benchmarks.peers.data import Case
from benchmarks.peers.rank import ONLY, Rank, leave
from benchmarks.peers.running import Run, Running, launch
from benchmarks.peers.traced import timing_of, trace

if TYPE_CHECKING:
    from benchmarks.testbed import Testbed


OPTIMIZATIONS = {
    "order": "serialization",
    "batch": "batching",
    "schedule": "scheduling",
    "depth": "adaptive_depth",
}
"""The optimizations of the Caramel paper: what they are called here, and the flags of `ARModel`."""

PROFILE = "profile.json"
TRACED_STEPS = 3
LONG_S = 5.0  # a step of which one trace has to do
MOST_TRIED_STEPS = 200
OWN, OTHER = "own", "beside"  # names of two plans of one session


class InGraph:
    """Caramel.

    A setting of a planned run names the optimizations of the Caramel paper that it `uses`, joined
    by plus signs; or it says that the plan comes from a `planner`: "search" for the one that is
    predicted to be the fastest, "tried" for the one that proved the fastest when the session tried
    the best few, as it does by default, or "live" for a job that is given nothing, measures itself
    while it trains, and tries its plans; or which of some `varied` plans is taken, by its number.
    It can name the `pattern` of all groups, or say that no `factors` are sent.
    """

    def __init__(self, name: str, settings: Sequence[dict[str, Any]]) -> None:
        self.name, self._settings = name, settings

    def versions(self) -> dict[str, str]:
        """Caramel's and TensorFlow's."""
        from caramel import __version__

        return {"caramel": __version__, **versions_of("tensorflow")}

    def available(self) -> str | None:
        """Always."""
        return None

    def settings(self) -> list[dict[str, Any]]:
        """Every pattern; everything that can be planned."""
        return [dict(setting) for setting in self._settings]

    def expected_bytes(self, sizes: Sequence[int], workers: int, setting: Setting) -> list[float]:
        """What an all-reduce must send; halving-doubling sends more if N is no power of two."""
        return evenly(sizes, workers)

    def start(self, bed: Testbed, case: Case, setting: Setting) -> Running:
        """Start a worker on each host."""
        return self._start(bed, case, setting, {})

    def _start(
        self, bed: Testbed, case: Case, setting: Setting, extra: Mapping[str, Any]
    ) -> Running:
        def start_all(run: Run) -> None:
            if _needs_profile(setting) and case.accelerator is None:
                trace(bed, case)
            addresses = run.addresses()
            for number, host in enumerate(bed.hosts[1:], 1):
                run.start(host, _worker(addresses, number, case))
            told = {"addresses": addresses, "link": bed.rate, **extra}
            run.start(bed.hosts[0], run.command(0, **told))

        plans = extra.get("plans", (ONLY,))
        return launch(self, __name__, bed, case, setting, start_all, ranks=1, plans=plans)

    def start_beside_plain(
        self, bed: Testbed, case: Case, setting: Setting, plain: Setting
    ) -> tuple[Running, Running]:
        """Start a worker on each host, in whose session two plans take turns.

        For networks of which two systems do not fit into the memory. Steps must put gradients in
        the place of parameters, which then do not tell how many were done before.

        Args:
            setting: of the plan that the session begins with.
            plain: that of the other one, which has none but a pattern.
        """
        if case.updates != "none":
            raise PeerError("plans take turns in one session where nothing is updated only")
        planned = self._start(bed, case, setting, {"plans": [OWN, OTHER], "plain": plain})
        return planned, Running(
            PEER, planned.run, plain, planned.load, planned.restless, planned.compared, OTHER
        )


PEER = InGraph("plain", [{"pattern": name} for name in ("shuffle", "ring", "halving_doubling")])
PLANNED = InGraph("planned", [{"planner": "search"}])


def _needs_profile(setting: Setting) -> bool:
    """Whether a run is planned from what was measured before it: not if it has a pattern only, nor
    if it measures itself."""
    return set(setting) != {"pattern"} and setting.get("planner") != "live"


def _worker(addresses: Sequence[str], number: int, case: Case) -> list[str]:
    return [
        *(sys.executable, "-m", "caramel", "worker", "--cluster", ",".join(addresses)),
        *("--task", str(number)),
        *("--intra-op-threads", str(case.threads)),
        *("--inter-op-threads", str(case.inter_op_threads)),
    ]


def main() -> None:
    """Worker 0."""
    import caramel
    from benchmarks.peers import graph
    from caramel.core.decision import FACTORS
    from caramel.models.plan_choice import forecast_of

    rank = Rank.read()
    caramel.keep_memory()
    job = graph.build(rank.alone())  # Caramel itself gives each worker its shard
    emulated = rank.case.accelerator is not None  # nothing in the graph shows what is a gradient
    gradients = job.gradients if emulated else None
    context = caramel.Context(job.graph, train_op=job.train_op, loss=job.loss, gradients=gradients)
    cluster = caramel.Cluster.of(rank.extra["addresses"], task=0)
    model = _model(rank, context, cluster)
    is_live = rank.setting.get("planner") == "live"
    tries = is_live or rank.setting.get("planner") == "tried"
    takes_turns = "plain" in rank.extra
    if takes_turns:
        plain = caramel.ARModel(context, cluster, planner="plain", **rank.extra["plain"])
        model.add_variant(plain.plan, OTHER)
    session = model.session(
        config=graph.config(rank.case),
        trials="auto" if tries else None,
        replanning=caramel.ReplanSettings(payback=0.0),  # it is the plan that is measured
    )
    session.run(job.assign, job.fed)
    session.run(job.start)

    if is_live or session.metrics().trials is not None:
        _let_try(session, str(Path(rank.directory) / "start"))
        session.run(job.start)  # the examples begin anew, too

    def parameters() -> dict[str, Any]:
        values = session.variables()
        return {name: values[name] for name in job.parameters}

    def facts() -> dict[str, Any]:
        """What the links were busy with, in traced steps; the plan and its prediction."""
        is_long = session.metrics().recent_step_s[-1] > LONG_S
        if is_long:
            session.step()  # the first one after a look at the parameters has nothing deferred
        timelines = session.trace(1 if is_long else TRACED_STEPS)
        name = session.metrics().plan
        plan = model.variants.plan(name)
        pauses = [dataclasses.astuple(each.link_pauses) for each in timelines]
        trials = _medians(session.metrics().trials)

        def predicted_s(name: str) -> float | None:
            forecast = forecast_of(model.variants.plan(name), model.decision)
            return None if forecast is None or name == OTHER else forecast.step_s

        return {
            "communication_s": statistics.median(each.communication_s for each in timelines),
            "link_pauses_s": [statistics.median(each) for each in zip(*pauses, strict=True)],
            "groups": len(plan.decision.groups),
            "factored": sum(group.pattern == FACTORS for group in plan.decision.groups),
            "sent_bytes": _sent_bytes(model.variants[name].traffic, plan),
            "gates": len(plan.decision.gates),
            "edges": len(plan.decision.edges),
            "deferred_bytes": sum(
                plan.bytes(group) for group in plan.decision.groups if group.deferred
            ),
            "predicted_s": predicted_s(name),
            "timing_error": _timing_error(rank),
            "plan": name,
            "trials": trials,
            "predictions_s": {tried: predicted_s(tried) for tried in trials},
        }

    rank.measure(session.step, parameters, facts=facts, use=session.use if takes_turns else None)
    leave()


def _sent_bytes(traffic: Any, plan: Any) -> list[int]:
    """What each host sends in a step, from the edges of the graph."""
    from caramel.core.devices import task_of

    tasks = [task_of(device) for device in plan.job.devices]
    sent = dict.fromkeys(tasks, 0)
    for (source, _), size in traffic.bytes.items():
        sent[source] += size
    return [sent[task] for task in tasks]


def _let_try(session: Any, checkpoint: str) -> None:
    """Train until the session has tried its plans, or will not get any, and begin anew."""
    start = session.save(checkpoint)
    for _ in range(MOST_TRIED_STEPS):
        session.step()
        metrics = session.metrics()
        if metrics.trials is not None and metrics.trials.is_over:
            break
    session.restore(start)


def _medians(trials: Any) -> dict[str, float | None]:
    """The step of each plan that was tried."""
    return {} if trials is None else {each.name: each.median_s for each in trials.plans}


def _model(rank: Rank, context: Any, cluster: Any) -> Any:
    """The model that the setting asks for."""
    import caramel
    from benchmarks.peers.varied import varied

    setting = rank.setting
    if setting.get("planner") == "live":
        return caramel.ARModel(context, cluster)
    if not _needs_profile(setting):
        return caramel.ARModel(context, cluster, pattern=setting["pattern"], planner="plain")
    profile = _profile(rank, context, cluster)
    if "varied" in setting:
        decision = caramel.ARModel(context, cluster, profile=profile, planner="paper").decision
        plan = varied(decision, setting["varied"])
        return caramel.ARModel(context, cluster, plan=plan, profile=profile)
    planner = "search" if setting.get("planner") == "tried" else setting.get("planner", "paper")
    options: dict[str, Any] = {"profile": profile, "planner": planner}
    if "factors" in setting:
        options["factors"] = setting["factors"]
    if "pattern" in setting:
        options["pattern"] = setting["pattern"]
    if "uses" in setting:
        used = setting["uses"].split("+")
        options |= {flag: word in used for word, flag in OPTIMIZATIONS.items()}
    return caramel.ARModel(context, cluster, **options)


def _timing_error(rank: Rank) -> float | None:
    """How much less ops take by all traced steps than by half of them, if they were traced."""
    timing = timing_of(rank.prepared)
    return None if timing is None else timing.error


def _profile(rank: Rank, context: Any, cluster: Any) -> Path:
    """The file with the facts of this case, measured if it is not there."""
    from benchmarks.peers import graph
    from benchmarks.workers import measured_profile

    case, directory = rank.case, Path(rank.prepared)
    path = directory / PROFILE
    if not path.exists():
        threads = f"{case.threads}-{case.inter_op_threads}"
        name = f"network-{rank.workers}-{rank.extra['link']}-{threads}.json"
        measured_profile(
            context,
            cluster,
            graph.config(case),
            timing=timing_of(directory),
            accelerator=case.accelerator,
            network=directory.parent / name,
            repeats=case.network_repeats,
        ).save(path)
    return path


if __name__ == "__main__":
    main()
