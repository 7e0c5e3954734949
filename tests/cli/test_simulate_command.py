"""`caramel simulate` predicts how a job scales, without TensorFlow."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from caramel.cli.main import app
from caramel.cli.simulate import (
    HostEntry,
    parse_patterns,
    parse_rate,
    parse_time,
    parse_workers,
    read_hosts,
)
from caramel.core.errors import CaramelError
from tests.support.outlines import PROFILE


@pytest.fixture
def profile(tmp_path):
    PROFILE.save(tmp_path / "profile.json")
    return tmp_path / "profile.json"


def simulate(profile, *arguments):
    """Run the command in this process; what it raises is the caller's."""
    runner = CliRunner(env={"COLUMNS": "150"})
    result = runner.invoke(app, ["simulate", "--profile", str(profile), *map(str, arguments)])
    if isinstance(result.exception, CaramelError):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


def test_curves_are_shown_and_written(profile, tmp_path):
    output = simulate(
        profile,
        *("--workers", "2..8", "--bandwidth", "1gbit,10gbit", "--latency", "0.1ms"),
        *("--out", tmp_path / "curves.json"),
    )
    assert "1 Gbit/s, 0.1 ms" in output
    assert "10 Gbit/s, 0.1 ms" in output
    assert "limited by" in output
    curves = json.loads((tmp_path / "curves.json").read_text())
    assert (curves["kind"], curves["format"]) == ("caramel scaling curves", 1)
    assert (curves["parameters"], curves["computation_s"]) == (6, pytest.approx(0.1806))
    points = curves["points"]
    assert [(p["bits_per_s"], p["workers"]) for p in points] == [
        (rate, workers) for rate in (1e9, 1e10) for workers in (2, 4, 8)
    ]
    for point in points:
        assert point["step_s"] == min(point["planned_s"], *point["plain_s"].values())
        assert point["speedup"] == pytest.approx(point["workers"] * point["efficiency"])
        assert set(point["saved_s"]) == {"computation", "wire", "latency", "processor"}
    assert {point["limited_by"] for point in points[:3]} == {"wire"}
    assert {point["limited_by"] for point in points[3:]} == {"computation"}


def test_parameter_servers_are_compared_with_all_reduce(profile, tmp_path):
    output = simulate(
        profile,
        *("--workers", "2,4", "--bandwidth", "1gbit", "--latency", "0.1ms"),
        *("--parameter-servers", "1,2", "--out", tmp_path / "curves.json"),
    )
    assert "steps in s with parameter servers" in output
    (line,) = [line for line in output.splitlines() if "take" in line]
    points = json.loads((tmp_path / "curves.json").read_text())["points"]
    assert [[each["servers"] for each in p["parameter_servers"]] for p in points] == [[1, 2]] * 2
    for point in points:
        for own in point["parameter_servers"]:
            times_s = [own[name] for name in ("unordered_s", "ordered_s", "ahead_s")]
            assert times_s == sorted(times_s, reverse=True)
            assert own["step_s"] == own["ahead_s"]
    ratios = [p["parameter_servers"][1]["step_s"] / p["step_s"] for p in points]
    low, high = (f"{ratio:.2g}" for ratio in sorted(ratios))
    assert line == (
        f"2 to 4 workers: take ARModel, {low} to {high} times as fast as PSModel with 2 servers."
    )
    # Servers on faster links: nothing is sent between workers, and all of it can be ahead.
    line = simulate(
        profile,
        *("--workers", "4", "--bandwidth", "1gbit", "--latency", "0.1ms"),
        *("--parameter-servers", "1", "--server-bandwidth", "10gbit"),
    )
    assert "4 workers: take PSModel with 1 server, 1." in line


def test_a_picture_has_a_curve_for_each_network(profile, tmp_path):
    pytest.importorskip("matplotlib")
    simulate(
        profile,
        *("--workers", "2,4", "--bandwidth", "1gbit", "--latency", "0.1ms,30ms"),
        *("--figure", tmp_path / "curves.svg"),
    )
    ElementTree.parse(tmp_path / "curves.svg")
    text = (tmp_path / "curves.svg").read_text()
    assert "<!-- 1 Gbit/s, 30 ms -->" in text
    assert "<!-- limited by wire -->" in text


def test_tensorflow_is_not_imported(profile):
    code = f"""
import sys
from caramel.cli.main import app
app(["simulate", "--profile", {str(profile)!r}, "--workers", "2", "--latency", "1ms"],
    standalone_mode=False)
assert "tensorflow" not in sys.modules
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert "200 Mbit/s, 1 ms" in result.stdout


def test_hosts_from_a_file(profile, tmp_path):
    hosts = tmp_path / "hosts.json"
    hosts.write_text('[{"slowdown": 1.5}, {"send": "100mbit", "receive": "1gbit"}, {}, {}]')
    assert read_hosts(hosts) == (
        HostEntry(slowdown=1.5),
        HostEntry("100mbit", "1gbit"),
        HostEntry(),
        HostEntry(),
    )
    options = ("--bandwidth", "10gbit", "--latency", "1ms", "--out", tmp_path / "curves.json")
    simulate(profile, "--hosts", hosts, *options)
    (slow,) = json.loads((tmp_path / "curves.json").read_text())["points"]
    assert (slow["workers"], slow["limited_by"]) == (4, "wire")
    simulate(profile, "--workers", "4", *options)
    (alike,) = json.loads((tmp_path / "curves.json").read_text())["points"]
    assert slow["step_s"] > 5 * alike["step_s"]
    assert slow["alone_s"] == alike["alone_s"]


def test_hosts_that_all_have_rates_need_no_bandwidth(profile, tmp_path):
    hosts = tmp_path / "hosts.json"
    hosts.write_text(json.dumps([{"send": "1gbit", "receive": "1gbit"}] * 4))
    output = simulate(profile, "--hosts", hosts, "--workers", "2,4", "--latency", "1ms")
    assert "rates of the hosts, 1 ms" in output
    with pytest.raises(CaramelError, match="--bandwidth has no effect"):
        simulate(profile, "--hosts", hosts, "--bandwidth", "1gbit")
    with pytest.raises(CaramelError, match="--parameter-servers needs --server-bandwidth"):
        simulate(profile, "--hosts", hosts, "--parameter-servers", "1")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "hosts.json is not JSON"),
        ("{}", r"hosts.json: \$: expected a list"),
        ("[{}]", "describes 1 hosts; two are the least"),
        ('[{}, {"speed": 1}]', r"\$\[1\]: unknown keys \['speed'\]"),
        ('[{}, {"slowdown": "twice"}]', r"\$\[1\].slowdown: expected a number"),
        ('[{}, {"slowdown": 0}]', r"\$\[1\]: a host's slowdown must be more than 0"),
        ('[{}, {"slowdown": Infinity}]', "is not JSON: Infinity is no number of JSON"),
        ('[{"send": "fast"}, {}]', r"\$\[0\]: 'fast' is no rate of a link"),
    ],
)
def test_what_is_no_file_of_hosts_is_refused(tmp_path, text, message):
    (tmp_path / "hosts.json").write_text(text)
    with pytest.raises(CaramelError, match=message):
        read_hosts(tmp_path / "hosts.json")


def test_a_file_of_hosts_that_is_not_there_is_named(tmp_path):
    with pytest.raises(CaramelError, match="cannot read .*hosts.json: No such file"):
        read_hosts(tmp_path / "hosts.json")


def test_a_profile_without_a_job_is_refused(profile):
    replace(PROFILE, job=None).save(profile)
    with pytest.raises(CaramelError, match="has no job; make it again with .*--module"):
        simulate(profile)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--workers", "1"), "'1' is not within 2 to 512"),
        (("--workers", "8..2"), "'8..2' ends before it begins; write 2..8"),
        (("--workers", "two"), "'two' is no number such as 4, nor a range as 2..256"),
        (("--bandwidth", "fast"), "--bandwidth: 'fast' is no rate of a link"),
        (("--bandwidth", "0gbit"), "'0gbit' is no rate"),
        (("--latency", "30"), "--latency: '30' is no time; expected one such as 50us"),
        (("--pattern", "star"), "unknown pattern 'star'"),
        (("--parameter-servers", "0"), "--parameter-servers: '0' is not within 1 to 512"),
        (("--parameter-servers", "7"), "--parameter-servers 7: the job has 6 parameters"),
        (("--server-bandwidth", "1gbit"), "no effect without --parameter-servers"),
        (("--figure", "curves.txt"), "name of a picture ends in"),
        (("--out", "missing/curves.json"), "no directory 'missing'"),
    ],
)
def test_a_mistake_is_named(profile, arguments, message):
    with pytest.raises(CaramelError, match=message):
        simulate(profile, *arguments)


def test_more_workers_than_hosts_are_refused(profile, tmp_path):
    (tmp_path / "hosts.json").write_text('[{"slowdown": 2}, {}]')
    with pytest.raises(CaramelError, match="--workers 4: --hosts describes 2 hosts only"):
        simulate(profile, "--hosts", tmp_path / "hosts.json", "--workers", "2,4")
    entries = [{"slowdown": 1 + number} for number in range(33)]
    (tmp_path / "hosts.json").write_text(json.dumps(entries))
    with pytest.raises(CaramelError, match="33 hosts that differ .* at most 32 can"):
        simulate(profile, "--hosts", tmp_path / "hosts.json")
    (tmp_path / "hosts.json").write_text(json.dumps([{}] * 600))
    with pytest.raises(CaramelError, match="--hosts describes 600 hosts; at most 512 can be"):
        simulate(profile, "--hosts", tmp_path / "hosts.json")


def test_a_mistake_is_one_line_on_the_terminal(tmp_path):
    result = subprocess.run(
        [sys.executable, "-m", "caramel", "simulate", "--profile", str(tmp_path / "none.json")],
        env={**os.environ, "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 2
    (line,) = result.stderr.splitlines()
    assert line.startswith("caramel: error: cannot read ")


def test_numbers_of_workers():
    assert parse_workers("2..256") == [2, 4, 8, 16, 32, 64, 128, 256]
    assert parse_workers("8, 3..20") == [3, 6, 8, 12, 20]


def test_rates_and_times():
    assert [parse_rate(text) for text in ("200mbit", "1 Gbit", "2.5gbit", "64kbit", "8bit")] == [
        *(2e8, 1e9, 2.5e9, 64e3, 8.0)
    ]
    times = [parse_time(text) for text in ("0.1ms", "30ms", "50us", "1s", "0ms")]
    assert times == pytest.approx([1e-4, 0.03, 5e-5, 1.0, 0.0])


def test_patterns():
    assert parse_patterns("auto") == ("shuffle", "ring", "halving_doubling", "exchange")
    assert parse_patterns("ring, shuffle,ring") == ("ring", "shuffle")
