"""`fedprox theory`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedprox.cli.app import Json, answers_errors, app, output_console, say_json

if TYPE_CHECKING:
    from rich.table import Table

    from fedprox.theory import Certificate, FamilyCertificate

__all__ = ["theory"]


@app.command()
@answers_errors
def theory(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")],
    resample: Annotated[
        int, typer.Option(metavar="R", help="Test the expectation of one round with R sets of devices.")
    ] = 0,
    round: Annotated[int, typer.Option(metavar="T", help="The round to test.")] = 1,
    epsilon: Annotated[float, typer.Option(help="Only gradients with a squared norm above it count for B.")] = 0.0,
    most_devices: Annotated[
        int,
        typer.Option("--devices", help="The most devices with which gamma is measured on all, as a certificate needs."),
    ] = 100,
    as_json: Json = False,
) -> None:
    """Show what the paper's theorems guarantee for a run.

    For S-DANE, FedExProx and FedADMM it says which conditions of their theorems
    the run meets. A run of FedProx is repeated, and in every round all devices
    are solved (with more than --devices only the chosen ones, which gives an
    estimate).

    Example: fedprox theory runs/example --resample 200 --round 3
    """
    from dataclasses import asdict

    from fedprox.core.errors import ConfigError
    from fedprox.runs.identity import read_config
    from fedprox.theory import certify, certify_family
    from fedprox.theory.family_certificate import FAMILY

    if (method := read_config(run)[0].method.name) in FAMILY:
        if resample:
            raise ConfigError(f"`--resample` must be 0 for {method}, whose theorem is not about draws; got {resample}")
        _say_family(certify_family(run), as_json)
        return
    certificate = certify(run, epsilon=epsilon, resample=resample, round=round, most_devices=most_devices)
    if as_json:
        say_json(
            {
                "kind": certificate.kind,
                "guaranteed": certificate.guaranteed,
                "positive": certificate.positive,
                **asdict(certificate),
            }
        )
        return
    for line in _head(certificate):
        typer.echo(line)
    output_console().print(_table(certificate))
    for line in _foot(certificate):
        typer.echo(line)


def _say_family(certificate: FamilyCertificate, as_json: bool) -> None:
    from dataclasses import asdict

    if as_json:
        say_json({"kind": certificate.kind, **asdict(certificate)})
        return
    typer.echo(f"{certificate.run}, {certificate.method}: {certificate.kind}")
    for each in certificate.conditions:
        typer.echo(str(each))
    typer.echo("guaranteed: " + ("nothing" if certificate.kind == "no certificate" else certificate.guarantee))


def _head(certificate: Certificate) -> list[str]:
    smooth = certificate.smoothness
    return [
        f"{certificate.run}: {certificate.kind}",
        f"rho > 0 in {certificate.positive} of {len(certificate.rounds)} rounds",
        f"L = {smooth.L:.6g}, L_minus = {smooth.L_minus:.6g}: {smooth.source}",
        f"K = {certificate.K}, largest B(w^t) = {certificate.B_epsilon:.6g} "
        f"where ||grad f(w^t)||^2 > {certificate.epsilon:g}",
        *certificate.assumptions,
        "",
    ]


def _foot(certificate: Certificate) -> list[str]:
    needed = "" if certificate.gamma_over == "every device" else "; a certificate needs every device's (--devices)"
    lines = [
        "",
        f"gamma is the largest over {certificate.gamma_over}{needed}",
        "the observed decrease is one draw of the expectation: it is shown, not judged",
    ]
    if certificate.best_mu.value is None:
        lines.append(certificate.best_mu.because)
    else:
        lines.append(
            f"with the largest gamma and B seen, rho > 0 for mu above {certificate.smallest_mu.value:.6g}; best: "
            f"{certificate.best_mu.value:.6g}"
        )
    if (test := certificate.expectation) is not None:
        lines.append(f"round {test.round}, gamma {test.gamma:.4g} over all devices: {test.sentence}")
    return lines


def _table(certificate: Certificate) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("round", "mu", "gamma", "B", "rho", "predicted", "observed"):
        table.add_column(heading, justify="right")
    table.add_column("the theorem says")
    for row in certificate.rounds:
        numbers = (row.mu, row.gamma, row.B, row.rho, row.predicted, row.observed)
        table.add_row(str(row.round), *("-" if number is None else f"{number:.4g}" for number in numbers), row.says)
    return table
