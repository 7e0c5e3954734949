"""``caramel certificates``: for workers that strangers do not reach."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from caramel.core.errors import CertificateError
from caramel.protection.certificates import DAYS, make_certificates
from caramel.protection.certificates import revoke as revoke_host


def certificates(
    out: Annotated[Path, typer.Option(help="Where all certificates are, or will be.")],
    hosts: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="HOST",
            help="The name or address by which others reach each host, or several joined by "
            "commas. One that has a certificate gets a new one.",
        ),
    ] = None,
    days: Annotated[float, typer.Option(help="How long they are valid.")] = DAYS,
    revoke: Annotated[
        list[str] | None,
        typer.Option(metavar="HOST", help="Revoke all certificates that this host ever had."),
    ] = None,
) -> None:
    """Make certificates for hosts, with which workers keep strangers outside, or revoke some."""
    if not hosts and not revoke:
        raise CertificateError("nothing to do: name hosts, or one to --revoke")
    for host in revoke or ():
        for file in revoke_host(out, host):
            print(f"revoked {host}: copy {file} to its host")
    for host in hosts or ():
        (made,) = make_certificates(out, [host], days=days)
        print(f"made {made}: copy this directory to its host")
