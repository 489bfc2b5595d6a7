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
    """Look whether everything is in place, and say how to put right what is not.

    The exit code is 1 when something is wrong; extras that are not installed are only noted.

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
        typer.echo("\neverything needed is in place" if not wrong else f"\n{len(wrong)} things are wrong")
    raise typer.Exit(1 if wrong else 0)
