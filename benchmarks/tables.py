"""Result files of single benchmarks (order, overhead, keras, scale) as Markdown tables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from benchmarks.results import Row

_MB, _GB = 1e6, 1e9
_SHOWN_WORKERS = (2, 8, 64)  # of networks that are not planned


def order(rows: Sequence[Row]) -> list[str]:
    """In how many orders transfers were seen, and how much steps spread."""
    heads = ["network, link", "inter-op threads", "system", "orders / traced steps"]
    heads += ["steps in which workers differ", "median, ms", "p95 - p5, ms", "variation"]
    lines = []
    for row in rows:
        what, facts = row.what, row.facts
        differ = facts.get("steps_with_several_orders")
        is_known = differ is not None and what["system"] != "parameter_server"
        lines.append(
            [
                f"{what['network']}, {what['rate']}",
                str(what["threads"]),
                str(what["system"]).replace("_", " "),
                f"{facts['unique_orders']:,} / {facts['traced_steps']:,}",
                f"{differ:,}" if is_known else "",
                f"{facts['median_s'] * 1e3:.0f}",
                f"{(facts['p95_s'] - facts['p5_s']) * 1e3:.0f}",
                f"{facts['variation']:.1%}",
            ]
        )
    return list(_table(heads, lines))


def overhead(rows: Sequence[Row]) -> list[str]:
    """What a step of the session takes, beside TensorFlow's own."""
    lines = [[str(row.what["system"]), f"{row.median_s * 1e3:.2f}"] for row in rows]
    return list(_table(["way to run the step", "median, ms"], lines))


def keras(rows: Sequence[Row]) -> list[str]:
    """What a step of a Keras model takes, beside the same layers as a graph of v1."""
    lines = [
        [
            f"{row.what['network']}, batch {row.what['batch']}",
            *(str(row.what["system"]), f"{row.median_s * 1e3:.1f}", f"{row.spread:.0%}"),
        ]
        for row in rows
    ]
    return list(_table(["network", "way", "median, ms", "spread"], lines))


def scale(rows: Sequence[Row]) -> list[str]:
    """How graphs grow with the workers; then how planned jobs and their sessions do."""
    plain = [row for row in rows if "simulate_s" not in row.facts]
    heads = ["network", "workers", "nodes", "GraphDef, MB", "build, s", "peak memory, GB"]
    lines = [
        [
            *(str(row.what["network"]), *_graph(row)),
            *(f"{row.facts['build_s']:.1f}", f"{row.facts['built_bytes'] / _GB:.2f}"),
        ]
        for row in plain
        if row.what["workers"] in _SHOWN_WORKERS
    ]
    return [*_table(heads, lines), "", *_planned([row for row in rows if row not in plain])]


def _planned(rows: Sequence[Row]) -> Iterator[str]:
    heads = ["network", "workers", "nodes", "GraphDef, MB", "analyse and plan, s"]
    heads += ["rewrite and audit, s", "session, s", "of the kernel, s", "session again, s"]
    heads += ["its memory, GB", "a second plan, s"]
    lines = []
    for row in rows:
        facts = row.facts
        planning_s = facts["parts_s"]["analyse"] + facts["parts_s"]["plan"]
        seconds = ("open_s", "open_kernel_s", "again_s")
        lines.append(
            [
                *(str(row.what["network"]), *_graph(row)),
                *(f"{planning_s:.1f}", f"{sum(facts['parts_s'].values()) - planning_s:.1f}"),
                *(f"{facts[key]:.1f}" if key in facts else "" for key in seconds),
                f"{facts['opened_bytes'] / _GB:.1f}" if "opened_bytes" in facts else "",
                f"{facts['second_plan_s']:.1f}" if "second_plan_s" in facts else "",
            ]
        )
    return _table(heads, lines)


def _graph(row: Row) -> tuple[str, str, str]:
    nodes, size = row.facts["nodes"], row.facts["graph_bytes"] / _MB
    return str(row.what["workers"]), f"{nodes:,}", f"{size:.1f}"


def _table(heads: Sequence[str], lines: Iterable[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(heads)} |"
    yield "|---" * len(heads) + "|"
    for line in lines:
        yield f"| {' | '.join(line)} |"
