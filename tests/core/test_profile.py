"""The profile file, what identifies a graph and a machine, and timings that are kept on disk."""

from __future__ import annotations

import io
import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from caramel.cli.profile import show
from caramel.core.calibration import DEFAULT
from caramel.core.errors import FileError, ProfileError
from caramel.core.measurements import AggregationTimes, Measurements, SendTimes
from caramel.core.profile import Profile
from caramel.core.time_facts import Link, NetworkModel, TimingTable, TransferCost
from caramel.core.util import disk_cache as kept
from caramel.core.util.fingerprint import Machine, digest, graph_hash, this_machine
from caramel.core.workload import Gradient, JobOutline, Piece, Update, Workload
from caramel.simulation.network_model import LARGEST_THRESHOLD
from tests.support import forking
from tests.support.commands import ROOT
from tests.support.networks import built_network, perceptron, tf, tf1, tied

TIMING = TimingTable({"a": 0.001, "b/c": 2e-6}, steps=10, error=0.01)


def network(workers):
    return NetworkModel(
        workers,
        {"shuffle": TransferCost(0.001, 1e-8, 0.0, 0.9e-8), "ring": TransferCost(0.002, 2e-8)},
        1.25e8,
        150_000,
        (Link(0, 1, 1.25e8, 0.0003), Link(1, 0, 1.2e8, 0.0004)),
    )


def measurements(workers):
    return Measurements(
        workers,
        (
            AggregationTimes("shuffle", 64, (0.2, 0.1, 0.4)),
            AggregationTimes("shuffle", 64, (0.3,), tensors=4),
        ),
        (0.01, 0.02),
        (SendTimes(0, 1, 64, (0.03,)),),
        (0.005,),
        ("127.0.0.1:1", "127.0.0.1:2"),
    )


WORK = Workload(
    (Piece("a", 0.001, 1, frozenset("p")), Piece("b/c", 2e-6, 1, yields=("p",))),
    (Update("u", 0.5, frozenset("p"), frozenset("p"), frozenset(["p", "slot"])),),
)
OUTLINE = JobOutline(WORK, WORK, (Gradient("p", 12, "float32", stays="it is empty"),))

CALIBRATION = DEFAULT.with_measured({"transfer_s": 0.0003, "in_flight_bytes": 6_000_000})
PROFILE = Profile(
    "2.21.0",
    Machine("a processor", 2, "CPU"),
    "abc",
    TIMING,
    OUTLINE,
    (network(2), network(4)),
    (measurements(2), measurements(4)),
    CALIBRATION,
)


def test_a_profile_comes_back_from_its_file(tmp_path):
    path = tmp_path / "profile.json"
    PROFILE.save(path)
    assert Profile.load(path) == PROFILE
    always_short = replace(network(2), threshold_bytes=LARGEST_THRESHOLD)
    only_network = replace(
        PROFILE, graph=None, timing=None, job=None, networks=(always_short, network(4))
    )
    only_network.save(path)
    assert Profile.load(path) == only_network
    assert [file.name for file in tmp_path.iterdir()] == ["profile.json"]


def test_measured_times_are_summed_up():
    times = measurements(2).aggregations[0]
    assert (times.least_s, times.median_s) == (0.1, 0.2)
    assert measurements(2).patterns == ("shuffle",)
    assert measurements(2).sends[0].median_s == 0.03


@pytest.mark.parametrize(("seconds", "is_told"), [((0.2, 0.1, 0.4), True), ((0.1, 0.11), False)])
def test_a_profile_measured_beside_other_work_is_told(seconds, is_told):
    times = (AggregationTimes("shuffle", 64, seconds),)
    measured = replace(PROFILE.measurements[0], aggregations=times)
    console = Console(file=io.StringIO(), width=80)
    show(replace(PROFILE, networks=(network(2),), measurements=(measured,)), console)
    assert ("took 2.0 times as long as the fastest" in console.file.getvalue()) == is_told


def test_several_tensors_at_a_time_have_a_row_of_their_own():
    console = Console(file=io.StringIO(), width=100)
    show(replace(PROFILE, networks=(network(2),), measurements=(measurements(2),)), console)
    rows = [
        line.split("│")[1:3] for line in console.file.getvalue().splitlines() if "00.00" in line
    ]
    assert [[cell.split() for cell in row] for row in rows] == [
        [["64"], ["100.00", "200.00"]],
        [["4", "x", "16"], ["300.00", "300.00"]],
    ]


def test_a_profile_of_the_second_format_knows_one_tensor_at_a_time():
    value = json.loads(PROFILE.to_json())
    for network in value["networks"]:
        for cost in network["costs"].values():
            del cost["busy_s_per_byte"]
    for measured in value["measurements"]:
        measured["aggregations"].pop()
        del measured["aggregations"][0]["tensors"]
    profile = Profile.from_json(json.dumps(value | {"format": 2}))
    assert profile.networks[0].costs["shuffle"] == TransferCost(0.001, 1e-8, 0.0)
    assert profile.measurements[0].aggregations == measurements(2).aggregations[:1]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not JSON"),
        ("[1]", "'caramel profile' writes one"),
        ('{"format": 1}', "'caramel profile' writes one"),
        ('{"kind": "caramel profile", "format": 99}', "of format 99.*reads formats 1 to 5"),
        ('{"kind": "caramel profile", "format": 1}', r"keys \['machine', 'tensorflow'\]"),
    ],
)
def test_what_is_no_profile_is_refused(tmp_path, text, message):
    path = tmp_path / "some.json"
    path.write_text(text)
    with pytest.raises(ProfileError, match=f"some.json: .*{message}"):
        Profile.load(path)


def test_a_profile_of_the_first_format_has_no_job():
    value = json.loads(PROFILE.to_json())
    del value["job"]
    profile = Profile.from_json(json.dumps(value | {"format": 1}))
    assert profile == replace(PROFILE, job=None)
    with pytest.raises(ProfileError, match="has no job; make it again with .*--module"):
        _ = profile.outline
    assert PROFILE.outline == OUTLINE


def test_a_profile_of_the_third_format_has_the_default_calibration():
    value = json.loads(PROFILE.to_json())
    del value["calibration"]
    profile = Profile.from_json(json.dumps(value | {"format": 3}))
    assert profile == replace(PROFILE, calibration=DEFAULT)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"transfer_s": 0.0}, "damaged .*transfer_s must be more than 0 and finite, not 0.0"),
        ({"in_flight_bytes": 1.5}, r"damaged .*\$.calibration.in_flight_bytes: expected a int"),
        ({"measured": ["speed"]}, r"damaged .*nothing can have measured \['speed'\]"),
    ],
)
def test_a_damaged_calibration_is_named(changed, message):
    value = json.loads(PROFILE.to_json())
    value["calibration"] |= changed
    with pytest.raises(ProfileError, match=message):
        Profile.from_json(json.dumps(value))


def test_what_was_measured_of_the_machine_is_shown_beside_the_defaults():
    console = Console(file=io.StringIO(), width=100)
    show(PROFILE, console)
    rows = {
        cells[1].strip(): [cells[2].strip(), cells[3].strip()]
        for cells in (line.split("│") for line in console.file.getvalue().splitlines())
        if len(cells) == 5
    }
    assert rows["a transfer of nothing"] == ["0.3 ms", "0.2 ms"]
    assert rows["adding"] == ["", "0.25 ns per byte"]


def test_a_damaged_entry_is_named():
    value = json.loads(PROFILE.to_json())
    value["networks"][1]["costs"]["ring"]["latency_s"] = "fast"
    with pytest.raises(ProfileError, match=r"\$.networks\[1\].costs.ring.latency_s: .*a number"):
        Profile.from_json(json.dumps(value))


def test_files_that_cannot_be_read_or_written_are_named(tmp_path):
    with pytest.raises(ProfileError, match="cannot read .*missing.json: No such file"):
        Profile.load(tmp_path / "missing.json")
    with pytest.raises(FileError, match="cannot write .*No such file"):
        PROFILE.save(tmp_path / "missing" / "profile.json")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ProfileError, match="binary: not a Caramel profile"):
        Profile.load(tmp_path / "binary")


def test_the_timing_of_another_graph_is_refused():
    assert PROFILE.timing_of("abc") == TIMING
    with pytest.raises(ProfileError, match="made for another graph.*'caramel profile' again"):
        PROFILE.timing_of("abd")
    with pytest.raises(ProfileError, match="no times of ops.*--module"):
        replace(PROFILE, graph=None, timing=None, job=None).timing_of("abc")


def test_the_network_of_so_many_workers():
    assert PROFILE.network(4) == network(4)
    with pytest.raises(ProfileError, match=r"no network of 3 workers \(measured: 2, 4\)"):
        PROFILE.network(3)


def test_a_newer_profile_adds_to_an_older_one():
    newer = Profile(
        "2.21.0",
        PROFILE.machine,
        networks=(network(3), network(4)),
        measurements=(measurements(3),),
        calibration=DEFAULT.with_measured({"transfer_s": 0.0001}),
    )
    joined = PROFILE.joined(newer)
    assert (joined.graph, joined.timing, joined.job) == ("abc", TIMING, OUTLINE)
    assert [model.workers for model in joined.networks] == [2, 3, 4]
    assert [each.workers for each in joined.measurements] == [2, 3, 4]
    assert joined.calibration == CALIBRATION.with_measured({"transfer_s": 0.0001})
    other = Profile("2.21.0", PROFILE.machine, "new", TimingTable({}))
    assert (PROFILE.joined(other).graph, PROFILE.joined(other).job) == ("new", None)
    with pytest.raises(ProfileError, match="measured on a processor, 2 cores .*another file"):
        PROFILE.joined(replace(newer, machine=Machine("another", 1, "CPU")))


def test_a_profile_that_contradicts_itself_is_refused():
    with pytest.raises(ProfileError, match="both a graph and its timing"):
        Profile("2.21.0", PROFILE.machine, "abc")
    with pytest.raises(ProfileError, match="outline of a job only beside its timing"):
        replace(PROFILE, graph=None, timing=None)
    with pytest.raises(ProfileError, match="two networks of as many workers"):
        replace(PROFILE, networks=(network(2), network(2)))


# Fingerprints -----------------------------------------------------------------------------------


def test_where_parts_end_counts():
    assert digest("ab", "c") != digest("a", "bc")
    assert digest("ab") == digest(b"ab")


def test_the_machine_is_described():
    machine = this_machine("Some GPU")
    assert machine.cores >= 1
    assert machine.processor
    assert str(replace(machine, processor="P", cores=1)) == "P, 1 core, Some GPU"


def built_hashes() -> list[str]:
    """Of four networks, and of the same four built again, the last one first."""

    def doubled_unless_positive(row):
        return tf.cond(row[0] > 0, lambda: row, lambda: row * 2)

    def with_functions(model, factor):
        def called(x):
            f = tf.function(lambda a: a * 2)
            g = tf.function(lambda a: a * factor)
            outputs = tf.map_fn(doubled_unless_positive, model(g(f(x))))
            return tf.function(lambda a: f(a) * 4)(outputs)

        return called

    models = [perceptron, tied, with_functions(perceptron, 3), with_functions(perceptron, 4)]
    return [
        graph_hash(built_network("adam", model=model).context().graph_def)
        for model in models + models[::-1]
    ]


def test_the_hash_of_a_graph_is_the_same_in_every_process_and_whenever_it_is_built():
    program = "import sys; sys.path.insert(0, sys.argv[1]); import tests.core.test_profile as t; "
    other = forking.run(
        [sys.executable, "-c", program + "print(*t.built_hashes())", str(ROOT)],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    found = built_hashes()
    assert found == other
    assert found[:4] == found[:3:-1], "built again, the same"
    assert len(set(found)) == 4


@pytest.mark.parametrize(("node", "alike"), [("call_f_{}", False), ("call", True)])
def test_nodes_count_by_their_names_and_functions_do_not(node, alike):
    """Facts are known by names of nodes: where these differ, they do not fit."""

    def graph(number):
        found = tf1.GraphDef()
        call = found.node.add(name=node.format(number), op="PartitionedCall")
        call.attr["f"].func.name = f"f_{number}"
        found.library.function.add().signature.name = f"f_{number}"
        return found

    assert (graph_hash(graph(9)) == graph_hash(graph(10))) == alike


# Timings on disk --------------------------------------------------------------------------------


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv(kept.VARIABLE, str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_a_kept_timing_comes_back(cache):
    assert kept.kept_timing("k") is None
    kept.keep_timing("k", TIMING)
    assert kept.kept_timing("k") == TIMING
    assert kept.kept_timing("other") is None
    assert [file.name for file in cache.iterdir()] == ["timing-k.json"]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"seconds": {"a": "b"}}', '{"seconds": 3}'])
def test_a_damaged_file_is_as_good_as_none(cache, text):
    kept.keep_timing("k", TIMING)
    (cache / "timing-k.json").write_text(text)
    assert kept.kept_timing("k") is None
    kept.keep_timing("k", TIMING)
    assert kept.kept_timing("k") == TIMING


def test_a_directory_that_cannot_be_made_does_no_harm(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(kept.VARIABLE, str(tmp_path / "file"))
    kept.keep_timing("k", TIMING)
    assert kept.kept_timing("k") is None


def test_where_timings_are_kept(monkeypatch):
    monkeypatch.setenv(kept.VARIABLE, "/somewhere")
    assert kept.cache_directory() == Path("/somewhere")
    monkeypatch.delenv(kept.VARIABLE)
    monkeypatch.setenv("XDG_CACHE_HOME", "/cache")
    assert kept.cache_directory() == Path("/cache/caramel")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/somebody")
    assert kept.cache_directory() == Path("/home/somebody/.cache/caramel")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"step_s": null', '"step_s": NaN', "NaN is no number of JSON"),
        ('"step_s": null', '"step_s": 1e999', "1e999 is no number of JSON"),
        ('"step_s": null', '"step_s": -1', r"\$\.timing\.step_s is -1, which cannot have been"),
        ('"cores": null', '"cores": 0', "that no core has computed"),
        ('"bytes_per_s": 120000000.0', '"bytes_per_s": 0', "carry 0 bytes per second"),
        ('"dtype": "float32"', '"dtype": "flat"', "of dtype 'flat', whose elements have no size"),
    ],
)
def test_numbers_that_cannot_have_been_measured_are_refused(old, new, message):
    text = PROFILE.to_json()
    assert old in text
    with pytest.raises(ProfileError, match=message):
        Profile.from_json(text.replace(old, new, 1))
