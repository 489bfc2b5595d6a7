"""A report on runs: one HTML file that opens anywhere, with a verdict in words, curves, fairness and configs."""

from __future__ import annotations

import html
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedprox.core.errors import RunFolderError
from fedprox.core.files import write_atomically
from fedprox.report.experiment_line import experiment_line
from fedprox.report.figures import Figure, axis_figures, curve_figures, fairness_figure, fairness_rows, time_figure
from fedprox.report.page import card, grid, page, table
from fedprox.report.participation import participation
from fedprox.report.reached_devices_section import reach_figure, reach_section, reached
from fedprox.report.target_section import target_section
from fedprox.report.timeline import timeline_figures
from fedprox.report.verdict import verdict
from fedprox.runs.columns import columns_needed
from fedprox.runs.reader import SavedRun, find_runs
from fedprox.runs.seed_groups import Group, differing, flat_settings, group_runs, setting_text

__all__ = ["report", "verdict", "write_report", "write_report_on"]


def write_report(paths: Sequence[str | Path], out: str | Path, title: str = "") -> Path:
    """Write the report on the runs in `paths` (run folders, or folders that hold them) to the file `out`."""
    runs = [run for run in find_runs(paths) if len(run.history)]
    if not runs:
        raise RunFolderError(f"{paths[0]} holds no measured round yet, so there is nothing to report")
    with columns_needed(", ".join(map(str, paths))):
        return write_report_on(runs, out, title or _title(paths))


def write_report_on(runs: Sequence[SavedRun], out: str | Path, title: str) -> Path:
    """Write the report on runs that have been read, or were never written, to the file `out`."""
    out = Path(out)
    text = report(group_runs(runs), title)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(out, text.encode("utf-8", "backslashreplace"))  # names of folders may be any bytes
    except OSError as error:
        raise RunFolderError(f"report {out} cannot be written: {error.strerror}") from None
    return out


def report(groups: Sequence[Group], title: str) -> str:
    """Return the report on groups of runs as a page of HTML."""
    curves = curve_figures(groups)
    fairness, times = fairness_figure(groups), time_figure(groups)
    over, reaches, timelines = axis_figures(groups), reached(groups), timeline_figures(groups)
    reach = reach_figure(reaches)
    work = participation(groups)
    sections = [
        f'<p class="note">{html.escape(experiment_line(groups))}</p>',
        '<div class="verdict">' + "".join(f"<p>{html.escape(text)}</p>" for text in verdict(groups)) + "</div>",
        _curves_section(curves, bands=any(len(group.runs) > 1 for group in groups)),
        _over_section(over),
        target_section(groups),
        _timeline_section(timelines),
        _participation_section(work),
        reach_section(reaches, grid(card(reach, wide=True)) if reach else ""),
        _fairness_section(fairness, groups),
        "<h2>Time</h2>" + grid(card(times, wide=True)),
        "<h2>Runs</h2>" + _runs_table(groups),
        _config_section(groups),
    ]
    figures = [*curves, *over, *timelines, *(figure for figure in (reach, fairness) if figure), times]
    return page(title, sections, {"figures": figures, "participation": work})


def _title(paths: Sequence[str | Path]) -> str:
    names = [Path(os.path.abspath(path)).name for path in paths]
    return "fedprox report: " + ", ".join(names[:4]) + (" and others" if len(names) > 4 else "")


def _curves_section(curves: list[Figure], bands: bool) -> str:
    note = '<p class="note">Bands: one standard deviation over seeds on either side of the mean.</p>' if bands else ""
    return "<h2>Over the rounds</h2>" + note + grid(*(card(figure) for figure in curves))


def _over_section(figures: list[Figure]) -> str:
    if not figures:
        return ""
    names = {"over_seconds": "simulated time", "over_bytes": "bytes sent", "over_wasted": "lost work"}
    over = [words for name, words in names.items() if any(figure["name"].endswith(name) for figure in figures)]
    return f"<h2>Over {' and '.join(over)}</h2>" + grid(*(card(figure) for figure in figures))


def _timeline_section(figures: list[Figure]) -> str:
    if not figures:
        return ""
    note = (
        '<p class="note">A line is a device at work, from the request to its reply; the colour of its end is the '
        "version of the model that it was given. The beginning of the first seed's run is drawn.</p>"
    )
    return "<h2>Who worked when, on which version</h2>" + note + grid(*(card(figure, wide=True) for figure in figures))


def _participation_section(work: list[dict[str, Any]]) -> str:
    choices = "".join(f'<option value="{index}">{html.escape(run["label"])}</option>' for index, run in enumerate(work))
    every = work[0]["every"]
    thinned = f" Every {every}th round is drawn." if every > 1 else ""
    return (
        "<h2>Who took part, and how much each device did</h2>"
        f'<p class="note">Each point is a device in a round; its colour is the number of epochs it did.{thinned}</p>'
        f'<p><label>Run <select id="choose-run">{choices}</select></label></p>'
        + grid('<div class="card wide"><div class="plot" id="plot-participation"></div></div>')
    )


def _fairness_section(figure: Figure | None, groups: Sequence[Group]) -> str:
    if figure is None:
        return ""
    rows = [
        [
            row["label"],
            str(row["devices"]),
            f"{100 * row['mean']:.1f}%",
            f"{100 * row['worst_tenth']:.1f}%",
            f"{row['variance']:.4f}",
        ]
        for row in fairness_rows(groups)
    ]
    headings = ["method", "devices", "mean", "worst 10%", "variance"]
    note = (
        '<p class="note">Each device counts once here, whatever its size; the test accuracy above pools examples.</p>'
    )
    return "<h2>Fairness: accuracy per device</h2>" + note + table(headings, rows) + "<br>" + grid(card(figure, True))


def _runs_table(groups: Sequence[Group]) -> str:
    rows = []
    for group in groups:
        for run in group.runs:
            summary = run.summary or {}
            last = run.last
            rows.append(
                [
                    str(run.path),
                    group.label,
                    str(run.seed),
                    summary.get("ended", "not ended"),
                    f"{last['round']} of {run.config.rounds}",
                    _text(last["train_loss"], ".4f"),
                    _text(last["test_accuracy"], ".1%"),
                    _text(summary.get("diverged_round"), "d"),
                    _text(summary.get("exploded_round"), "d"),
                    _text(summary.get("seconds"), ".1f"),
                ]
            )
    headings = [
        "folder",
        "method",
        "seed",
        "ended",
        "round",
        "train loss",
        "test acc",
        "diverged at",
        "exploded at",
        "seconds",
    ]
    return table(headings, rows)


def _config_section(groups: Sequence[Group]) -> str:
    flat = [flat_settings(group.runs[0].config, group.runs[0].replaced) for group in groups]
    changed = set(differing(flat))
    keys = list(dict.fromkeys(key for settings in flat for key in settings))
    rows = [[key, *(setting_text(settings.get(key, "-")) for settings in flat)] for key in keys]
    headings = ["setting", *(group.label for group in groups)]
    different = [row for row in rows if row[0] in changed]
    whole = table(headings, rows, [row[0] in changed for row in rows])
    first = "<h2>Config</h2>"
    if len(groups) > 1:
        first += "<h3>What differs</h3>" + (table(headings, different) if different else "<p>Nothing but the seed.</p>")
    return first + f"<details><summary>All settings</summary>{whole}</details>"


def _text(value: Any, form: str) -> str:
    return "-" if value is None else format(value, form)
