"""What is assumed of TensorFlow is checked once, and another TensorFlow is one clear error."""

from __future__ import annotations

import struct
from configparser import ConfigParser
from ctypes import c_char_p, c_int
from pathlib import Path

import pytest

import caramel
from caramel.cluster import grpc_tuning
from caramel.cluster.servers import embedded_servers
from caramel.core.errors import InstallationError
from caramel.core.version import TENSORFLOW
from caramel.native import check, labels, library, session
from caramel.native.session import GraphSession
from caramel.profiling.ops import profile_steps
from tests.support.networks import network, tf1

ADVICE = r'Install exactly .* pip install "tensorflow==2\.21\.\*"'


@pytest.fixture(name="unchecked")
def fixture_unchecked(monkeypatch):
    """Nothing was checked yet in this process, and what the test sets is checked anew after it."""
    cached = (library._loaded, session._library, session._check_strings, check.check_experiments)
    for each in cached:
        each.cache_clear()
    monkeypatch.setattr(check, "_checked", set())
    yield monkeypatch
    for each in cached:
        each.cache_clear()


# The library ------------------------------------------------------------------------------------


def test_the_package_requires_the_version_that_is_checked():
    setup = ConfigParser()
    setup.read(Path(caramel.__file__).parents[1] / "setup.cfg")
    assert f"tensorflow =={TENSORFLOW}.*" in setup["options"]["install_requires"].splitlines()


def test_this_tensorflow_is_as_assumed(unchecked):
    GraphSession(embedded_servers(1).target, tf1.ConfigProto()).close()
    with grpc_tuning.whole_messages():
        pass


def test_the_version_is_looked_at_when_the_library_is_loaded(unchecked):
    unchecked.setattr(check, "TENSORFLOW", "2.1")
    with pytest.raises(InstallationError, match=r"2\.21\.\d+ is installed, Caramel needs 2\.1"):
        library.functions({})


@pytest.mark.parametrize("version", ["2.20.0", "2.210.1", "3.0.0"])
def test_another_version_is_refused(version):
    with pytest.raises(InstallationError, match=f"TensorFlow {version} is installed.*{ADVICE}"):
        check.check_version(version)


def test_a_function_that_is_missing_is_named(unchecked):
    signatures = {"TF_NewBuffer": (None, ()), "TF_Gone": (None, ())}
    with pytest.raises(InstallationError, match=f"has no function 'TF_Gone'.*{ADVICE}"):
        library.functions(signatures)


def test_two_parts_of_caramel_give_a_function_types_of_their_own(unchecked):
    one = library.functions({"TF_DeleteBuffer": (None, (c_int,))})
    other = library.functions({"TF_DeleteBuffer": (None, (c_char_p,))})
    assert one.TF_DeleteBuffer.argtypes == (c_int,)
    assert other.TF_DeleteBuffer.argtypes == (c_char_p,)


def test_a_library_that_cannot_be_loaded_is_one_clear_error(unchecked, tmp_path):
    (tmp_path / "library.so").write_bytes(b"no library")
    unchecked.setattr(library, "path", lambda: str(tmp_path / "library.so"))
    with pytest.raises(InstallationError, match=f"cannot be loaded: .*library.so.*{ADVICE}"):
        library.functions({})


def test_strings_of_another_size_are_refused_when_a_session_opens(unchecked):
    unchecked.setattr(check, "STRING_BYTES", 32)
    target = embedded_servers(1).target
    with pytest.raises(InstallationError, match=f"takes 24 bytes, Caramel expects 32.*{ADVICE}"):
        GraphSession(target, tf1.ConfigProto())


# gRPC -------------------------------------------------------------------------------------------


def test_an_experiment_that_grpc_does_not_know_is_refused_before_a_server_starts(unchecked):
    unchecked.delenv(grpc_tuning._VARIABLE, raising=False)
    unchecked.setattr(grpc_tuning, "_WHOLE_MESSAGES", ("tcp_rcv_lowat", "tcp_rcv_lowwater"))
    with (
        pytest.raises(InstallationError, match=f"no experiment 'tcp_rcv_lowwater'.*{ADVICE}"),
        grpc_tuning.whole_messages(),
    ):
        pass


def test_experiments_that_the_user_chooses_are_not_checked(unchecked):
    unchecked.setenv(grpc_tuning._VARIABLE, "")
    unchecked.setattr(grpc_tuning, "_WHOLE_MESSAGES", ("no such experiment",))
    with grpc_tuning.whole_messages():
        pass


def elf(*sections):
    """An ELF file with named sections; one more has their names."""
    names = b"\0" + b"".join(name + b"\0" for name, _ in sections) + b".names\0"
    contents = [*sections, (b".names", names)]
    body, headers = bytearray(64), []
    for name, content in contents:
        place = names.index(name + b"\0")
        headers.append(struct.pack("<IIQQQQ24x", place, 1, 0, 0, len(body), len(content)))
        body += content
    struct.pack_into("<6s", body, 0, b"\x7fELF\x02\x01")
    struct.pack_into("<Q", body, 0x28, len(body))
    struct.pack_into("<HHH", body, 0x3A, 64, len(contents), len(contents) - 1)
    return bytes(body) + b"".join(headers)


def test_experiments_are_searched_among_the_constants(tmp_path):
    path = tmp_path / "library.so"
    path.write_bytes(elf((b".text", b"elsewhere\0"), (b".rodata", b"one\0another_two\0longer")))
    check.check_experiments(str(path), ("one", "two"))
    for name in ("elsewhere", "long", "longer"):
        with pytest.raises(InstallationError, match=f"no experiment '{name}'"):
            check.check_experiments(str(path), (name,))


def test_a_file_of_another_kind_is_not_searched(tmp_path):
    path = tmp_path / "library.dylib"
    path.write_bytes(b"\xcf\xfa\xed\xfe" + bytes(100))
    check.check_experiments(str(path), ("one",))


# Labels -----------------------------------------------------------------------------------------

ONE, TWO = ["/job:worker/task:0"], ["/job:worker/task:0", "/job:worker/task:1"]
LABEL = (
    "[256B] [4.1Mb/s] edge_3_caramel/check/sent from /job:worker/replica:0/task:1/device:CPU:0 "
    "to /job:worker/replica:0/task:0/device:CPU:0"
)
PRODUCT = ("caramel/check/product", "caramel/check/product = MatMul()")
LOWERED = ("Func/caramel/check/call/then/_0/input/_9", "")
TRANSFER = ("RecvTensor", LABEL)
STREAMS = "/device:GPU:0/stream:all"


def stats(*records, device="/job:worker/replica:0/task:0/device:CPU:0"):
    step_stats = tf1.RunMetadata().step_stats
    traced = step_stats.dev_stats.add(device=device)
    for name, label in records:
        traced.node_stats.add(node_name=name, timeline_label=label)
    return step_stats


def checked(*traces, devices=TWO):
    """Check labels with what calls trace, the last one again and again; returns how many it took"""
    calls = []

    def trace():
        calls.append(None)
        return traces[min(len(calls), len(traces)) - 1]

    check.check_labels(lambda graph_def, op: trace, devices)
    return len(calls)


def test_labels_are_looked_at_once(unchecked):
    assert checked([stats(PRODUCT, LOWERED)], devices=ONE) == 1
    assert checked([stats(PRODUCT, LOWERED)], devices=ONE) == 0
    assert checked([stats(PRODUCT, LOWERED), stats(TRANSFER)]) == 1
    assert checked() == checked(devices=ONE) == 0


@pytest.mark.parametrize(
    ("records", "said"),
    [
        ([("caramel/check/product:MatMul", ""), LOWERED, TRANSFER], "no op 'caramel/check/product"),
        ([PRODUCT, TRANSFER], "no 'Func/caramel/check/call/...' among"),
        ([PRODUCT, ("caramel/check/call/then/_0/input/_9", ""), TRANSFER], "no 'Func/caramel/"),
        ([PRODUCT, ("Func/then/_0/input/_9", ""), TRANSFER], "no 'Func/caramel/check/call"),
        ([PRODUCT, LOWERED, ("Receive", LABEL)], r"no 'RecvTensor' of .*Receive \(\[256B\]"),
        ([PRODUCT, LOWERED, ("RecvTensor", "sent, 256 B")], "labels a transfer 'sent, 256 B'"),
        ([PRODUCT, LOWERED, ("RecvTensor", LABEL.replace("256B", "256 bytes"))], "another form"),
        ([PRODUCT, LOWERED, ("RecvTensor", LABEL.replace("edge", "e"))], "another form"),
        ([PRODUCT, LOWERED], "no 'RecvTensor' of 'caramel/check/sent'"),
    ],
)
def test_names_of_another_form_are_refused(records, said, unchecked):
    with pytest.raises(InstallationError, match=f"{said}.*{ADVICE}"):
        checked([stats(*records)])
    with pytest.raises(InstallationError):  # not once only
        checked([stats(*records)])


def test_a_transfer_that_was_not_recorded_is_asked_for_again(unchecked):
    assert checked([stats(PRODUCT, LOWERED)], [stats(PRODUCT, LOWERED, TRANSFER)]) == 2


@pytest.mark.parametrize(
    "kernel", [("caramel/check/product:MatMul", "gemm"), ("gemm", "gemm@@caramel/check/product")]
)
def test_kernels_lead_to_their_op(kernel, unchecked):
    own = stats(PRODUCT, LOWERED)
    assert checked([own, stats(kernel, device=STREAMS)], devices=ONE) == 1


def test_kernels_that_lead_to_no_op_are_refused(unchecked):
    traces = [stats(PRODUCT, LOWERED), stats(("gemm", "gemm of product"), device=STREAMS)]
    with pytest.raises(InstallationError, match=r"no kernel of '.*' among gemm \(gemm of product"):
        checked(traces, devices=ONE)


def test_the_first_trace_of_a_session_looks_at_the_labels(unchecked):
    unchecked.setattr(labels, "TRANSFER", "ReceivedTensor")
    job = network("momentum")
    with caramel.ARModel(job.context(), 2).session() as own:
        with pytest.raises(InstallationError, match="no 'ReceivedTensor' of 'caramel/check/sent'"):
            own.trace(1, job.feed)
        own.step(job.feed)
        unchecked.setattr(labels, "TRANSFER", "RecvTensor")
        own.trace(1, job.feed)
    assert check._checked == {"any", "transfers"}


def test_profiling_looks_at_the_labels(unchecked):
    job = network("momentum")
    unchecked.setattr(labels, "LOWERED", "Function/")
    with pytest.raises(InstallationError, match="no 'Function/caramel/check/call/"):
        profile_steps(job.context(), feed=job.feed, steps=1, use_cache=False)
    unchecked.setattr(labels, "LOWERED", "Func/")
    profile_steps(job.context(), feed=job.feed, steps=1, use_cache=False)
    assert check._checked == {"any"}
