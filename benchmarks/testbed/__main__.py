"""The command: ``python -m benchmarks.testbed --hosts 4 --rate 1gbit -- COMMAND``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated, NoReturn

import typer
from rich.console import Console
from rich.table import Table

from benchmarks.testbed import BedError, Host, Testbed

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def _command(
    command: Annotated[
        list[str],
        typer.Argument(
            help="What to run, after --. In it, {hosts} stands for the hosts' addresses and "
            "{namespaces} for their namespaces, with commas in between."
        ),
    ],
    hosts: Annotated[int, typer.Option(help="How many hosts.")] = 2,
    rate: Annotated[str, typer.Option(help="What each may send, as tc takes it.")] = "1gbit",
    pin: Annotated[bool, typer.Option("--pin", help="Give each host a core of its own.")] = False,
    both_ways: Annotated[
        bool, typer.Option("--both-ways", help="Limit what a host receives, too.")
    ] = False,
    on: Annotated[
        str, typer.Option(help="Where to run COMMAND: a host's number, or root for the machine.")
    ] = "0",
) -> None:
    """Run COMMAND in a bed of hosts; exit as it does."""
    if on != "root" and not on.isdecimal():
        raise BedError(f"--on takes a host's number or root, not {on}")
    bed = Testbed(hosts, rate, pin_cores=pin, both_ways=both_ways, reach_from_root=on == "root")
    with bed:
        for host in bed.hosts:
            core = "" if host.core is None else f" core {host.core}"
            print(f"{host.name} {host.address} {rate}{core} {host.namespace}", file=sys.stderr)
        argv = [_expand(argument, bed.hosts) for argument in command]
        exit_code = bed.popen(None if on == "root" else int(on), argv).wait()
        Console(stderr=True).print(_traffic_table(bed))
    sys.exit(exit_code if exit_code >= 0 else 128 - exit_code)


def _expand(argument: str, hosts: Sequence[Host]) -> str:
    argument = argument.replace("{hosts}", ",".join(host.address for host in hosts))
    return argument.replace("{namespaces}", ",".join(host.namespace for host in hosts))


def _traffic_table(bed: Testbed) -> Table:
    table = Table("host", "address", title="Traffic of each interface")
    for title in ("sent, bytes", "packets", "received, bytes", "packets"):
        table.add_column(title, justify="right")
    for host, sums in zip(bed.hosts, bed.counters(), strict=True):
        values = (sums.tx_bytes, sums.tx_packets, sums.rx_bytes, sums.rx_packets)
        table.add_row(host.name, host.address, *(f"{value:,}" for value in values))
    return table


def main() -> NoReturn:
    """Run the command line and exit as COMMAND does; 2 where there can be no bed."""
    try:
        app(standalone_mode=True)
    except (BedError, OSError) as error:
        print(f"testbed: error: {error}", file=sys.stderr)
        sys.exit(2)
    sys.exit(0)


if __name__ == "__main__":
    main()
