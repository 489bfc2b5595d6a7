"""`fedprox doctor`."""

from __future__ import annotations

from dataclasses import asdict

import typer

from fedprox.cli.app import Json, answers_errors, app, output_console, say_json

__all__ = ["doctor"]

_MARKS = {"ok": "[green]ok[/]", "note": "[yellow]note[/]", "wrong": "[red]wrong[/]"}


@app.command()
@answers_errors
def doctor(as_json: Json = False) -> None:
    """Check the installation and say how to fix what is wrong.

    The exit code is 1 when a check fails; missing extras are only noted.

    Example: fedprox doctor
    """
    from rich.markup import escape
    from rich.table import Table

    from fedprox.doctor import examine

    findings = examine()
    wrong = [finding for finding in findings if finding.level == "wrong"]
    if as_json:
        say_json({"findings": [asdict(finding) for finding in findings], "wrong": len(wrong)})
    else:
        table = Table(box=None, pad_edge=False, show_header=False)
        for finding in findings:
            remedy = f"\n-> {finding.remedy}" if finding.remedy else ""
            table.add_row(finding.what, _MARKS[finding.level], escape(finding.text + remedy))
        output_console().print(table)
        problems = f"{len(wrong)} problem{'s' if len(wrong) > 1 else ''} found" if wrong else "no problems found"
        typer.echo(f"\n{problems}")
    raise typer.Exit(1 if wrong else 0)
