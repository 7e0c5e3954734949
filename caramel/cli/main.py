"""The command ``caramel``. Start a worker with ``caramel worker``; see ``caramel --help``."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from caramel.cli.certificates import certificates as make_certificates
from caramel.cli.clusters import WORKERS, count_of, workers_of
from caramel.cli.worker import worker as run_worker
from caramel.cluster.quiet_start import quiet_start
from caramel.core.errors import CaramelError, FileError, PlanError, ProfileError
from caramel.core.util.atomic_files import write_whole
from caramel.core.util.gc_pause import held_back
from caramel.core.util.progress import show_on, working

# Nothing here imports TensorFlow: commands that need it do so, and ``caramel --help`` is fast.
from caramel.core.util.sizes import parse_bytes
from caramel.core.version import __version__
from caramel.native.malloc import keep_memory
from caramel.planning.options import Planner

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    # Rich's tables of options cut long names, and take a quarter of a second to load.
    rich_markup_mode=None,
    help="Train single-device TensorFlow graphs on many workers.",
)

# More than these are mistakes, and some would take all memory.
_MOST_STEPS, _MOST_PLANNED = 1_000_000, 4096


def main() -> NoReturn:
    """Run the command line and exit: 0 if all is well, 2 for a mistake the user can correct."""
    try:
        app()
    except CaramelError as error:
        print(f"caramel: error: {error}", file=sys.stderr)
        sys.exit(2)
    sys.exit(0)


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"caramel {__version__}")
        raise typer.Exit


@app.callback()
def _caramel(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Train single-device TensorFlow graphs on many workers."""


# Lists of commands show one line of 80 columns for each: `short_help`.
app.command(name="worker", short_help="Run one worker, or one parameter server.")(run_worker)
app.command(name="certificates", short_help="Make certificates that keep strangers outside.")(
    make_certificates
)


@app.command(
    context_settings={"allow_interspersed_args": False},
    short_help="Run a program, and start it again when it crashes.",
)
def run(
    command: Annotated[
        list[str],
        typer.Argument(metavar="COMMAND", help="After --: the program and its arguments."),
    ],
    restarts: Annotated[
        int,
        typer.Option(
            min=0,
            max=_MOST_STEPS,
            help="How often it is started again in a row. A run of an hour begins anew.",
        ),
    ] = 5,
    hosts: Annotated[
        str | None,
        typer.Option(
            help='Start a worker by ssh on each of these: "a,b" or "user@a:2222,b:2222". The '
            "program finds them by Cluster.from_environment, or as {workers} in its arguments."
        ),
    ] = None,
    ps: Annotated[
        str | None,
        typer.Option(help="Likewise, hosts of parameter servers: {servers} in its arguments."),
    ] = None,
    ssh: Annotated[
        str | None,
        typer.Option(help='With --hosts: the ssh program with its options, such as "ssh -p 2200".'),
    ] = None,
    python: Annotated[
        str | None,
        typer.Option(
            help="With --hosts: the Python on them that has Caramel. By default this one."
        ),
    ] = None,
) -> None:
    """Run a program, and start it again when it crashes: it goes on by session(resume=...).

    A program is not started again that exits with code 0 or 2, or is told to end (SIGTERM, Ctrl-C).
    With --hosts its workers are started before, and end with it.
    """
    from caramel.cli.hosts import hosts_of, run_on
    from caramel.cli.run import run as run_program

    given = {"--ssh": ssh, "--python": python}
    jobs = hosts_of(hosts, ps, [name for name, value in given.items() if value is not None])
    if jobs:
        raise typer.Exit(
            run_on(jobs, command, restarts, ssh="ssh" if ssh is None else ssh, python=python)
        )
    raise typer.Exit(run_program(command, restarts))


@app.command()
def doctor() -> None:
    """Say what this machine has for Caramel, and what to change."""
    from rich.console import Console

    from caramel.cli.doctor import findings, show

    if not show(findings(), Console()):
        raise typer.Exit(1)


@app.command(short_help="Measure how long ops and aggregations take.")
def profile(
    out: Annotated[Path, typer.Option(help="The file to write.")],
    workers: Annotated[
        str | None,
        typer.Option(help=f"Workers between which the network is measured: {WORKERS}"),
    ] = None,
    certificates: Annotated[
        Path | None,
        typer.Option(help="With --workers that are secure: what 'caramel certificates' has made."),
    ] = None,
    module: Annotated[
        str | None,
        typer.Option(
            help="The job whose ops are timed on this machine: module:function, where the "
            "function returns a caramel.Context, or a pair of it and what one worker is fed."
        ),
    ] = None,
    sizes: Annotated[str, typer.Option(help='Sizes that are aggregated: "64,4MiB".')] = "64,4MiB",
    repeats: Annotated[
        int, typer.Option(min=1, max=_MOST_STEPS, help="Aggregations of each pattern and size.")
    ] = 20,
    pairs: Annotated[
        bool | None,
        typer.Option(help="Measure each pair of workers; by default with up to 8 workers."),
    ] = None,
    threshold: Annotated[
        str | None,
        typer.Option(help="Size below which latency dominates, in place of the fitted one."),
    ] = None,
    steps: Annotated[
        int, typer.Option(min=1, max=_MOST_STEPS, help="Steps of the job that are traced.")
    ] = 10,
    device: Annotated[
        str | None, typer.Option(help='Where the job\'s ops run, such as "/CPU:0".')
    ] = None,
    cache: Annotated[bool, typer.Option(help="Take times of ops that were kept before.")] = True,
    add: Annotated[
        bool, typer.Option("--add", help="Keep what else the file holds, such as other networks.")
    ] = False,
) -> None:
    """Measure how long ops and aggregations take, and write it to a file for the planner."""
    if workers is None and module is None:
        raise ProfileError(
            "nothing to measure: name --workers for the network, --module for the ops, or both"
        )
    if workers is None and certificates is not None:
        raise ProfileError("--certificates are for workers that run: name them by --workers")
    wanted_sizes = [int(parse_bytes(size, "--sizes")) for size in sizes.split(",")]
    threshold_bytes = None if threshold is None else int(parse_bytes(threshold, "--threshold"))
    # Before anything is measured, which may take minutes.
    _check_directory(out)
    _show_progress()
    cluster = None if workers is None else workers_of(workers, certificates)
    keep_memory()
    _load("caramel.cli.profile")
    show_on(None)  # measuring has bars of its own
    from rich.console import Console

    from caramel.cli.profile import add_to, measured_profile, show
    from caramel.cli.user_job import check_fed, load_job

    job = None if module is None else load_job(module)
    if job is not None:
        check_fed(job, str(module))
    measured = measured_profile(
        cluster=cluster,
        job=job,
        sizes=wanted_sizes,
        repeats=repeats,
        pairs=pairs,
        steps=steps,
        device=device,
        use_cache=cache,
        threshold_bytes=threshold_bytes,
    )
    whole = add_to(out, measured) if add else measured
    whole.save(out)
    console = Console()
    show(whole, console)
    console.print(f"written to {out}", soft_wrap=True, highlight=False)


@app.command(short_help="Plan a job from measured facts, and print the plan.")
def plan(
    module: Annotated[
        str,
        typer.Option(
            help="The job: module:function, where the function returns a caramel.Context."
        ),
    ],
    profile: Annotated[Path, typer.Option(help="What 'caramel profile' wrote.")],
    workers: Annotated[
        str, typer.Option(help=f"How many workers, at least 2. Only the number counts: {WORKERS}")
    ] = "2",
    serialization: Annotated[bool, typer.Option(help="One order of gradients.")] = True,
    batching: Annotated[bool, typer.Option(help="Join small gradients.")] = True,
    scheduling: Annotated[bool, typer.Option(help="Plan transfers, some for later.")] = True,
    adaptive_depth: Annotated[bool, typer.Option(help="Split large groups.")] = True,
    factors: Annotated[bool, typer.Option(help="Send factors of gradients.")] = True,
    planner: Annotated[
        Planner, typer.Option(help="The fastest by simulation, the rules of the paper, or none.")
    ] = "search",
    in_flight_bytes: Annotated[
        int | None,
        typer.Option(min=0, help="Bytes of groups on their way at a time; 0: one after the other."),
    ] = None,
    pattern: Annotated[str, typer.Option(help="auto, or one pattern for all groups.")] = "auto",
    out: Annotated[Path | None, typer.Option(help="Write the plan to this file, as JSON.")] = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="Say what bounds a step, and what would help.")
    ] = False,
    page: Annotated[
        Path | None, typer.Option(help="Write that to this file, as a page with pictures (HTML).")
    ] = None,
    parameter_servers: Annotated[
        int,
        typer.Option(
            min=0,
            max=_MOST_PLANNED,
            help="How many parameter servers, to plan PSModel: in which order workers receive "
            "parameters. The options from --serialization to --planner, and --pattern, are "
            "ARModel's.",
        ),
    ] = 0,
) -> None:
    """Plan a job from measured facts, without running anything, and print the plan."""
    count = count_of(workers)
    if not 2 <= count <= _MOST_PLANNED:
        raise PlanError(f"--workers is {count}; a plan is for 2 to {_MOST_PLANNED} workers")
    for written in (out, page):
        if written is not None:
            _check_directory(written)
    _show_progress()
    _load("caramel.models.parameter_server")
    from rich.console import Console

    from caramel.cli.user_job import load_job
    from caramel.models.allreduce import ARModel
    from caramel.models.parameter_server import PSModel
    from caramel.report.plan_table import show_plan

    context, console = load_job(module).context, Console()
    # Nothing is run: any addresses will do.
    addresses = [f"worker-{number}:1" for number in range(count)]
    if parameter_servers:
        served = PSModel(
            context,
            addresses,
            [f"server-{number}:1" for number in range(parameter_servers)],
            in_flight_bytes=in_flight_bytes,
            profile=profile,
        )
        order = served.explain()
        order.show(console)
        if page is not None:
            order.save_page(page)
        if out is not None:
            write_whole(out, served.plan.to_json() + "\n")
        return
    model = ARModel(
        context,
        addresses,
        serialization=serialization,
        batching=batching,
        scheduling=scheduling,
        adaptive_depth=adaptive_depth,
        factors=factors,
        planner=planner,
        in_flight_bytes=in_flight_bytes,
        pattern=pattern,
        profile=profile,
    )
    if explain or page is not None:
        explanation = model.explain()
        explanation.show(console)
        if page is not None:
            explanation.save_page(page)
    else:
        show_plan(model.plan, model.windows, console)
    if out is not None:
        write_whole(out, model.plan.to_json() + "\n")


@app.command(short_help="Trace training steps: what every worker did when.")
def trace(
    module: Annotated[
        str,
        typer.Option(
            help="The job: module:function, where the function returns a caramel.Context, or a "
            "pair of it and what one worker is fed."
        ),
    ],
    out: Annotated[
        Path,
        typer.Option(
            help="The file to write, for ui.perfetto.dev or chrome://tracing; a picture if it ends "
            "in .svg, .png or .pdf."
        ),
    ],
    workers: Annotated[
        str | None,
        typer.Option(
            help=f"{WORKERS} By default what TF_CONFIG, Slurm, MPI, torchrun or Kubernetes says."
        ),
    ] = None,
    certificates: Annotated[
        Path | None,
        typer.Option(help="With --workers that are secure: what 'caramel certificates' has made."),
    ] = None,
    steps: Annotated[int, typer.Option(min=1, max=_MOST_STEPS, help="Steps that are traced.")] = 3,
    profile: Annotated[
        Path | None,
        typer.Option(help="What 'caramel profile' wrote; without it nothing is planned."),
    ] = None,
    plan: Annotated[
        Path | None,
        typer.Option(
            help="The plan to carry out, which 'caramel plan --out' wrote. One of a PlacedModel "
            "(its plan.to_json()) spreads the only replica over the workers."
        ),
    ] = None,
    figure: Annotated[
        Path | None, typer.Option(help="Draw a picture too: a file .svg, .png or .pdf.")
    ] = None,
) -> None:
    """Trace training steps on a cluster: what every worker did when, by one clock."""
    from caramel.report.drawing import check_drawable
    from caramel.report.saved import NOT_DRAWN, save_timelines

    files = [out] if figure is None else [out, figure]
    for file in files:
        _check_directory(file)
        if file is figure or file.suffix.lower() not in NOT_DRAWN:
            check_drawable(file)
    keep_memory()
    _show_progress()
    _load("caramel.cli.trace")
    from rich.console import Console

    from caramel.cli.trace import show_traced, trace_job
    from caramel.cli.user_job import check_fed, load_job

    job = load_job(module)
    check_fed(job, module)
    with workers_of(workers, certificates) as cluster:
        traced = trace_job(job, cluster, steps=steps, profile=profile, plan=plan)
    console = Console()
    show_traced(traced, console)
    for file in files:
        save_timelines(file, traced.timelines, traced.predicted, deferred=traced.deferred)
        console.print(f"written to {file}", soft_wrap=True, highlight=False)


@app.command(short_help="Predict how a job scales, from a profile.")
def simulate(
    profile: Annotated[
        Path, typer.Option(help="What 'caramel profile --module' wrote; the job is in it.")
    ],
    workers: Annotated[
        str | None,
        typer.Option(
            help='How many workers: "2,4,6", or "2..256" for 2, 4, 8, ..., 256; or those of one '
            'cluster, of which only the number counts: "local:4", "host:port,host:port". By '
            "default 2..256, and all hosts with --hosts."
        ),
    ] = None,
    bandwidth: Annotated[
        str | None,
        typer.Option(help="Rates of all links. By default 200mbit,1gbit,10gbit."),
    ] = None,
    latency: Annotated[str, typer.Option(help="Latencies of the network, one way.")] = "0.1ms,30ms",
    pattern: Annotated[
        str, typer.Option(help='auto, or the patterns that may be used: "ring,shuffle".')
    ] = "auto",
    hosts: Annotated[
        Path | None,
        typer.Option(
            help='Workers that differ, as JSON: [{"send": "1gbit", "receive": "1gbit", '
            '"slowdown": 1.5}, ...]. A rate that is left out is that of --bandwidth; a slowdown '
            "says how many times more slowly a host computes than the machine that was profiled."
        ),
    ] = None,
    parameter_servers: Annotated[
        str | None,
        typer.Option(
            help='How many parameter servers, to compare PSModel with ARModel: "1,2,4", or "1..8" '
            "for 1, 2, 4, 8."
        ),
    ] = None,
    server_bandwidth: Annotated[
        str | None,
        typer.Option(help="Rate of the servers' links. By default that of --bandwidth."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Write all numbers to this file, as JSON.")
    ] = None,
    figure: Annotated[
        Path | None, typer.Option(help="Draw the curves of ARModel: a file .svg, .png or .pdf.")
    ] = None,
) -> None:
    """Predict how a job scales, from a profile, without running anything."""
    from rich.console import Console

    from caramel.cli.simulate import progress_bar, simulated_curves
    from caramel.core.profile import Profile
    from caramel.report.curves import draw_curves, show_curves
    from caramel.report.drawing import check_drawable

    for path in (out, figure):
        if path is not None:
            _check_directory(path)
    if figure is not None:
        check_drawable(figure)
    with progress_bar() as progress:
        curves = simulated_curves(
            Profile.load(profile),
            workers=workers,
            bandwidth=bandwidth,
            latency=latency,
            pattern=pattern,
            hosts=hosts,
            parameter_servers=parameter_servers,
            server_bandwidth=server_bandwidth,
            progress=progress,
        )
    console = Console()
    show_curves(curves.points, console, curves.served)
    if curves.served and curves.left_out:
        console.print(
            f"What travels of {', '.join(curves.left_out)} counts nothing: nobody knows how many "
            "rows a batch needs.",
            soft_wrap=True,
            highlight=False,
        )
    if out is not None:
        write_whole(out, curves.to_json())
    if figure is not None:
        draw_curves(curves.points, figure)
    for path in (out, figure):
        if path is not None:
            console.print(f"written to {path}", soft_wrap=True, highlight=False)


def _show_progress() -> None:
    """On a terminal, say what takes long."""
    if sys.stdout.isatty():
        from caramel.report.progress import show_progress

        show_progress()


def _load(module: str) -> None:
    """Import TensorFlow without its messages, and a module that needs it; both take seconds."""
    with quiet_start():
        import tensorflow  # noqa: F401
    with working("loading Caramel"), held_back():
        importlib.import_module(module)


def _check_directory(path: Path) -> None:
    if not path.parent.is_dir():
        raise FileError(f"cannot write {path}: there is no directory '{path.parent}'")
    if path.is_dir():
        raise FileError(f"cannot write {path}: it is a directory")
