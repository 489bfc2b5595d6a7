"""The report's section on the devices that a run reached: sentences, a table, a figure, the worst cases."""

from __future__ import annotations

import html
from collections.abc import Sequence

import numpy as np

from fedprox.report.figures import Figure, short, style
from fedprox.report.page import table
from fedprox.report.reached_devices import Lean, Reach, count_reached, leaves_some_out
from fedprox.runs.seed_groups import Group

__all__ = ["Reached", "reach_figure", "reach_section", "reach_sentences", "reached"]

Reached = tuple[int, Group, Reach]  # the place of a group among all, the group, and what its first run reached

_MOST_POINTS = 4000  # devices per group in the picture
_MOST_ROWS = 50  # devices per group in the table


def reached(groups: Sequence[Group]) -> list[Reached]:
    """Return what the first seed of each group reached, for groups that left some devices out and have ended."""
    return [
        (index, group, count_reached(group.runs[0]))
        for index, group in enumerate(groups)
        if leaves_some_out(group.runs[0])
    ]


def reach_sentences(reach: Reach) -> list[str]:
    """Return sentences on the devices that a run did not reach, and how far it leans."""
    sentences = []
    for counts, words in ((reach.asked, "asked"), (reach.merged, "part of the model")):
        never, mass = reach.never(counts)
        sentences.append(
            f"{never} of {reach.devices} devices, with {mass:.1%} of the samples, were never {words}."
            if never
            else f"Every device was {words} at least once."
        )
    if reach.asked_lean is not None and reach.merged_lean is not None:
        sentences.append(f"The asked devices are {_lean(reach.asked_lean)}.")
        sentences.append(f"The devices that became part of the model are {_lean(reach.merged_lean)}.")
    if reach.accuracy is not None:
        never_merged = reach.accuracy.never_merged
        never_words = "" if never_merged is None else f", {never_merged:.1%} for those never part of the model"
        sentences.append(
            f"Test accuracy over the devices: {reach.accuracy.mean:.1%} on average, {reach.accuracy.worst_tenth:.1%} "
            f"for the worst tenth of them{never_words}."
        )
    correlation = reach.speed_correlation()
    if correlation is not None:
        who = "Faster" if correlation > 0 else "Slower"
        sentences.append(
            f"{who} devices finished more often: the correlation of speed (its logarithm) and finishing is "
            f"{correlation:.2f}."
        )
    return sentences


def reach_figure(reaches: Sequence[Reached]) -> Figure | None:
    """Return each device's weight in the model against its share of the samples; on the diagonal there is no bias."""
    if not reaches:
        return None
    largest = max(max(reach.mass.max(), reach.weight.max()) for _, _, reach in reaches)
    diagonal: Figure = {
        "type": "scatter",
        "mode": "lines",
        "x": short([0, largest]),
        "y": short([0, largest]),
        "name": "no bias",
        "line": {"color": "#7F7F7F", "dash": "dot", "width": 1},
        "hoverinfo": "skip",
    }
    traces = [diagonal]
    for index, group, reach in reaches:
        chosen = np.sort(np.argsort(-(reach.mass + reach.weight), kind="stable")[:_MOST_POINTS])
        look = style(index, group.label)
        colour = look.pop("line")["color"]
        tallies = (reach.asked, reach.finished, reach.cut_off)
        about = [
            [int(reach.device[k]), *(int(counts[k]) for counts in tallies), html.escape(reach.kind[k])] for k in chosen
        ]
        hover = (
            "device %{customdata[0]} %{customdata[4]}: asked %{customdata[1]}, finished %{customdata[2]}, cut off "
            "%{customdata[3]} times; %{x:.2%} of the samples, %{y:.2%} of the weight<extra>"
        )
        traces.append(
            {
                **look,
                "mode": "markers",
                "x": short(reach.mass[chosen]),
                "y": short(reach.weight[chosen]),
                "marker": {"color": colour, "size": 7, "opacity": 0.7},
                "customdata": about,
                "hovertemplate": hover + html.escape(group.label) + "</extra>",
            }
        )
    layout = {
        "xaxis": {"title": {"text": "share of the samples, p_k"}, "tickformat": ".1%"},
        "yaxis": {"title": {"text": "share of the weight"}, "tickformat": ".1%"},
        "hovermode": "closest",
    }
    return {"name": "reach", "title": "Each device's weight in the model", "data": traces, "layout": layout}


def reach_section(reaches: Sequence[Reached], card: str) -> str:
    """Return the section as HTML, around the card of the picture; empty where no run left devices out."""
    if not reaches:
        return ""
    parts = [
        "<h2>Who was reached</h2>",
        '<p class="note">Devices that are away are not asked, slow ones do not finish in time, and selection rules '
        "pass some over, so the model leans towards the others. The first seed of each method is shown.</p>",
    ]
    for _, group, reach in reaches:
        sentences = " ".join(reach_sentences(reach))
        parts.append(f"<h3>{html.escape(group.label)}</h3><p>{html.escape(sentences)}</p>" + _classes(reach))
    parts.append("<br>" + card)
    parts += [_devices(group, reach) for _, group, reach in reaches]
    return "".join(parts)


def _lean(lean: Lean) -> str:
    return (
        f"{lean.distance:.1%} away from the sampling scheme's target (total variation; chance alone would give "
        f"{lean.by_chance:.1%})"
    )


def _classes(reach: Reach) -> str:
    headings = ["class", "samples a second", "devices asked", "times asked", "finished", "cut off", "merged"]
    headings += ["share of the samples", "share of the weight"]
    rows = [
        [
            row["class"],
            f"{row['speed']:.4g}",
            str(row["devices"]),
            str(row["asked"]),
            f"{row['finished']:.1%}",
            f"{1 - row['finished']:.1%}",
            f"{row['merged']:.1%}",
            f"{row['mass']:.1%}",
            f"{row['weight']:.1%}",
        ]
        for row in reach.classes()
    ]
    return table(headings, rows)


def _devices(group: Group, reach: Reach) -> str:
    worst = np.argsort(-np.abs(reach.weight - reach.mass), kind="stable")[:_MOST_ROWS]
    rows = [
        [
            str(reach.device[k]),
            reach.kind[k],
            *(str(int(counts[k])) for counts in (reach.asked, reach.finished, reach.cut_off, reach.merged)),
            f"{reach.mass[k]:.2%}",
            f"{reach.weight[k]:.2%}",
        ]
        for k in worst.tolist()
    ]
    headings = ["device", "class", "asked", "finished", "cut off", "merged", "share of the samples", "of the weight"]
    title = f"{group.label}: the asked devices whose weight differs most from their share"
    return f"<details><summary>{html.escape(title)}</summary>{table(headings, rows)}</details>"
