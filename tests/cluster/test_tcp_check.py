"""What is said of TCP's congestion control."""

from __future__ import annotations

import pytest

from caramel.cluster.tcp_check import advice

HOSTS = ("a:2222", "10.0.0.2:2222")


@pytest.fixture
def machine(tmp_path):
    """A machine whose setting is this, as a file."""

    def with_setting(name):
        (tmp_path / "setting").write_text(f"{name}\n")
        return tmp_path / "setting"

    return with_setting


def test_bbr_between_machines_is_named_with_what_to_do(machine):
    said = advice(HOSTS, machine("bbr"))
    assert "BBR" in said
    assert "sysctl -w net.ipv4.tcp_congestion_control=cubic" in said


@pytest.mark.parametrize("name", ["cubic", "reno", "dctcp"])
def test_nothing_is_said_of_others(machine, name):
    assert advice(HOSTS, machine(name)) is None


def test_nothing_is_said_where_all_workers_are_on_this_machine(machine):
    here = ("localhost:1", "127.0.0.1:2", "[::1]:3")
    assert advice(here, machine("bbr")) is None
    assert advice((*here, "a:4"), machine("bbr")) is not None


def test_nothing_is_said_where_the_setting_cannot_be_read(tmp_path):
    assert advice(HOSTS, tmp_path / "none") is None
