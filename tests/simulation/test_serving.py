"""Steps with parameter servers, by hand: two layers of 4000 bytes, links of 1000 bytes/s."""

from __future__ import annotations

import dataclasses

import pytest

from caramel.core.decision import Pull
from caramel.core.workload import Piece, Update, Workload
from caramel.simulation.hardware import Hardware, Host
from caramel.simulation.serving import ServedJob, served_step_s

LAYERS = ("first", "last")
WORK = Workload(
    (
        Piece("forward_first", 1.0, needs=frozenset({"first"})),
        Piece("forward_last", 1.0, needs=frozenset({"last"})),
        Piece("backward_last", 1.0, yields=("last",)),
        Piece("backward_first", 1.0, yields=("first",)),
    ),
    tuple(Update(f"update_{n}", 0.0, frozenset({n}), writes=frozenset({n})) for n in LAYERS),
)
HOST = Host(1000.0, 1000.0)
FREE = Hardware(
    (HOST,), {}, processor_s_per_byte=0.0, reduce_s_per_byte=0.0, handling_s_per_byte=0.0
)
SIZES = dict.fromkeys(LAYERS, 4000)
ON_ONE = dict.fromkeys(LAYERS, 0)
IN_ORDER = (Pull("first"), Pull("last", ("first",)))


def step_s(
    pulls=IN_ORDER, hardware=FREE, *, workers=1, server_of=ON_ONE, servers=(HOST,), work=WORK
):
    hardware = dataclasses.replace(hardware, hosts=hardware.hosts * workers)
    return served_step_s(ServedJob(work, SIZES, server_of, hardware, servers), pulls)


@pytest.mark.parametrize(
    ("ahead", "expected_s"),
    [
        # Received until 8, computed until 11; sent from 10 to 14 and from 14 to 18.
        ("", 18.0),
        # Received until 4, computed until 8; sent from 7 to 11 and from 11 to 15, while the last
        # layer comes back.
        ("last", 15.0),
        # Computed until 4; sent from 3 to 7 and from 7 to 11; they come back until 11 and 15.
        ("first last", 15.0),
    ],
)
def test_both_directions_of_a_link_are_used(ahead, expected_s):
    own = [name for name in LAYERS if name not in ahead]
    pulls = [Pull(name, tuple(own[:n])) for n, name in enumerate(own)]
    pulls += [Pull(name, ahead=True) for name in LAYERS if name in ahead]
    assert step_s(pulls) == pytest.approx(expected_s)


def test_what_begins_together_goes_in_the_order_in_which_it_is_named():
    assert step_s((Pull("first"), Pull("last"))) == pytest.approx(18.0)
    # The first layer is there at 8, so the last raw gradients are complete at 11 and 12.
    assert step_s((Pull("last"), Pull("first"))) == pytest.approx(19.0)


def test_a_server_carries_what_all_workers_receive():
    # Each transfer takes twice as long: received until 16, computed until 19, sent until 34.
    assert step_s(workers=2) == pytest.approx(34.0)
    # With a server for each layer they come beside each other, at 8, and workers' links are full.
    # Gradients are complete at 11 and 12, and take 8 s each, beside each other.
    apart = {"first": 0, "last": 1}
    at_once = (Pull("first"), Pull("last"))
    own_s = step_s(at_once, workers=2, server_of=apart, servers=(HOST, HOST))
    assert own_s == pytest.approx(20.0)
    # A server's link that is twice as fast makes up for two workers.
    assert step_s(workers=2, servers=(Host(2000.0, 2000.0),)) == pytest.approx(18.0)


def test_one_worker_stands_for_all_that_are_alike():
    nearly = dataclasses.replace(FREE, hosts=(HOST, dataclasses.replace(HOST, slowdown=1 + 1e-9)))
    assert step_s(hardware=nearly) == pytest.approx(step_s(workers=2))


def test_the_processor_of_a_server_computes_more_slowly_while_it_transfers():
    first, last = WORK.updates
    updates = (dataclasses.replace(first, seconds=1.0), dataclasses.replace(last, seconds=3.0))
    work = dataclasses.replace(WORK, updates=updates)
    # The last layer is updated from 14 to 17, the first one from 18 on.
    assert step_s(work=work) == pytest.approx(19.0)
    # Until 18 at half the speed: 2 s of it are done then.
    beside = dataclasses.replace(FREE, cores=1, processor_s_per_byte=0.5e-3)
    assert step_s(work=work, hardware=beside) == pytest.approx(20.0)
    # With two workers gradients arrive at 30 and 34 (`lead`). 2 s of the last layer's update are
    # done until then, and the other second takes 1.5 s, as the first layer's: what the server
    # transfers with the other worker counts all the time.
    assert step_s(work=work, hardware=beside, workers=2) == pytest.approx(37.0)


def test_what_comes_back_waits_for_the_last_worker():
    ahead = tuple(Pull(name, ahead=True) for name in LAYERS)
    # Gradients are ready at 3 and 4. With equal shares they would arrive at 11 and 19, and all
    # would be back at 27. The last worker's first half takes 12 s, and the other one 4: both are
    # there at 15 and 19, and back at 23 and 31.
    assert step_s(ahead, workers=2) == pytest.approx(31.0)
    # Where the server's link is as fast as those of both workers, they share nothing.
    fast = dataclasses.replace(HOST, send_bytes_per_s=2000.0, receive_bytes_per_s=2000.0)
    assert step_s(ahead, workers=2, servers=(fast,)) == pytest.approx(15.0)


def test_sums_latency_and_messages_count():
    adding = dataclasses.replace(FREE, reduce_s_per_byte=0.25e-3)
    # The other worker's gradient is added in 1 s when the last transfer has come.
    assert step_s(hardware=adding, workers=2) == pytest.approx(35.0)
    # Of two pulls one after the other, and of the last gradient.
    late = dataclasses.replace(FREE, latency_s={"shuffle": 0.1})
    assert step_s(hardware=late) == pytest.approx(18.3)
    # Both pulls cost the link 0.5 s more, and both gradients.
    dear = dataclasses.replace(FREE, message_s=0.5)
    assert step_s(hardware=dear) == pytest.approx(20.0)
