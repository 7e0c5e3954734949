"""The headline says what result files say: Caramel beside the best setting of each peer."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest

from benchmarks.results import Row
from benchmarks.step.cells import ALONE, DEFAULT, PLAIN, SEARCHED, System
from benchmarks.step.headline import draw, markdown, standings

FAST, SLOW = (System("horovod", (("fusion_mib", size),)) for size in (4.0, 64.0))


def row(system, seconds, *, invalid=None, predicted_s=None, plain_s=1.2):
    what = {"cell": "toy, batch 4", "network": "toy", "system": str(system)}
    facts = {
        "peer": system.peer,
        "computation_s": 0.5,
        "wire_limit_s": 0.8,
        "rho": 1.6,
        "tx_bytes": [4e6, 6e6] if system == PLAIN else [2e6, 2e6],
        "plain_samples_s": [plain_s] * 6,
        "reported": {"predicted_s": predicted_s} if predicted_s else {},
    }
    return asdict(Row(what, (seconds,) * 6 if seconds else (), facts, invalid))


@pytest.fixture
def file(tmp_path):
    rows = [
        row(ALONE, 0.5),
        row(PLAIN, 1.2),
        row(SEARCHED, 1.0, predicted_s=0.9),
        row(SLOW, 1.5),
        row(FAST, 1.25),
        row(System("torch_ddp"), 0.1, invalid="wrong bytes"),
        row(System("mirrored"), None, invalid="not installed"),
    ]
    path = tmp_path / "step-headline.json"
    cells = [{"network": "toy", "batch": 4}]
    path.write_text(json.dumps({"settings": {"cells": cells}, "rows": rows}))
    return path


def test_each_peer_counts_with_its_best_valid_setting(file):
    (standing,) = standings([file])
    assert standing.title == "toy, batch 4"
    assert {name: each.median_s for name, each in standing.peers.items()} == {
        "plain": 1.2,
        "horovod": 1.25,
    }


def test_caramel_counts_with_the_plan_that_proved_the_fastest(file):
    content = json.loads(file.read_text())
    rows = [*content["rows"], row(DEFAULT, 0.95)]
    file.write_text(json.dumps({**content, "rows": rows}))
    (standing,) = standings([file])
    assert standing.own.median_s == 0.95


def test_the_table_has_what_others_take_over_what_caramel_takes(file):
    lines = markdown([file]).splitlines()
    assert "| Caramel, s | **1.000** |" in lines
    assert "| ÷ max(C, wire limit) | 1.25 |" in lines
    assert "| sent by a worker, MB (plain) | 2 (5) |" in lines
    assert "| plain Caramel | 1.20 (1.20-1.20) |" in lines
    assert "| Horovod | 1.25 (1.25-1.25) |" in lines
    assert "| PyTorch |  |" in lines
    assert "| predicted ÷ measured | 0.90 |" in lines
    assert "| spread of the systems' steps | 0% |" in lines


def test_what_came_in_another_lot_is_compared_by_way_of_the_plain_plan(file):
    """All of that lot was 1.5 times slower, as its plain plan shows."""
    content = json.loads(file.read_text())
    other_lot = row(System("parameter_servers"), 1.65, plain_s=1.8)
    file.write_text(json.dumps({**content, "rows": [*content["rows"], other_lot]}))
    assert "| parameter servers | 1.10 (1.10-1.10) |" in markdown([file]).splitlines()


def test_the_picture_is_drawn(file, tmp_path):
    draw([file], tmp_path / "headline.png")
    assert (tmp_path / "headline.png").stat().st_size > 1000
