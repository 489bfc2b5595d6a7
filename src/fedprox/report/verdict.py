"""What a set of runs shows, in words with numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from fedprox.runs.seed_groups import Group
from fedprox.runs.stopping import is_ranked

__all__ = ["verdict"]


def verdict(groups: Sequence[Group]) -> list[str]:
    """Return sentences: which group ended best and by how much, which diverged and when, which are not finished.

    Private groups get a sentence on epsilon. A group in which a seed has diverged or exploded is never best.
    """
    outcomes = [*_outcome(groups, "diverged"), *_outcome(groups, "exploded")]
    return [*_best(groups), *outcomes, *_unfinished(groups), *_privacy(groups)]


def _best(groups: Sequence[Group]) -> list[str]:
    has_test = any(not math.isnan(value) for group in groups for value in group.finals("test_accuracy"))
    measure, words, sign = ("test_accuracy", "highest test accuracy", -1) if has_test else ("train_loss", "", 1)
    finite = [group for group in groups if not math.isnan(group.final(measure)[0])]
    finite.sort(key=lambda group: sign * group.final(measure)[0])
    sound = [group for group in finite if all(is_ranked(run.summary or {}) for run in group.runs)]
    if not finite:
        return ["No method ended with a finite loss."]
    if not sound:
        return ["Every method diverged or exploded, so none is best."]
    best, others = sound[0], finite[finite.index(sound[0]) + 1 :]
    words = words or "lowest training loss"
    ends = "ends" if all(run.summary for group in groups for run in group.runs) else "is ahead"
    first = f"{best.label} {ends} with the {words}, {_value(best, measure)}"
    if len(groups) == 1:
        first = f"{best.label}: {_value(best, measure)} {words.split(' ', 1)[1]} at round {best.runs[0].last['round']}"
    tied = [other for other in sound[1:] if _is_tied(best, other, measure)]
    if tied:
        names = [best.label, *(other.label for other in tied)]
        verb = "end tied" if ends == "ends" else "are tied"
        first = f"{', '.join(names[:-1])} and {names[-1]} {verb} at the {words}, {_value(best, measure)}"
    behind = [other for other in others if other not in tied]
    if behind:
        first += ": " + "; ".join(_ahead(best, other, measure) for other in behind)
    sentences = [first + "."]
    losses = [group for group in sound if not math.isnan(group.final("train_loss")[0])]
    if has_test and losses:
        lowest = min(losses, key=lambda group: group.final("train_loss")[0])
        if any(group is not lowest and _is_tied(lowest, group, "train_loss") for group in losses):
            return sentences
        verb = "also has" if lowest is best and not tied else "has"
        lead = f"{lowest.label} {verb} the lowest training loss" if len(groups) > 1 else "The training loss is"
        sentences.append(f"{lead}{',' if len(groups) > 1 else ''} {_value(lowest, 'train_loss')}.")
    return sentences


def _is_tied(best: Group, other: Group, measure: str) -> bool:
    """Return whether two means are the same in the digits that are shown."""
    form = ".1f" if measure == "test_accuracy" else ".4f"
    factor = 100 if measure == "test_accuracy" else 1
    mine, its = (format(factor * group.final(measure)[0], form) for group in (best, other))
    return mine == its


def _ahead(best: Group, other: Group, measure: str) -> str:
    """Return by how much `best` is ahead, and in how many of the common seeds."""
    difference = abs(best.final(measure)[0] - other.final(measure)[0])
    text = f"{100 * difference:.1f} points" if measure == "test_accuracy" else f"{difference:.4f}"
    text += f" ahead of {other.label} ({_value(other, measure)})"
    theirs = dict(zip((run.seed for run in other.runs), other.finals(measure), strict=True))
    pairs = [
        (mine, theirs[run.seed])
        for run, mine in zip(best.runs, best.finals(measure), strict=True)
        if run.seed in theirs
    ]
    if len(pairs) > 1:
        wins = sum(mine > its if measure == "test_accuracy" else mine < its for mine, its in pairs)
        text += f", in {wins} of {len(pairs)} seeds"
    return text


def _value(group: Group, measure: str) -> str:
    mean, deviation = group.final(measure)
    factor, form, unit = (100, ".1f", "%") if measure == "test_accuracy" else (1, ".4f", "")
    spread = "" if deviation is None else f" ± {format(factor * deviation, form)}"
    return f"{format(factor * mean, form)}{unit}{spread}"


def _outcome(groups: Sequence[Group], outcome: str) -> list[str]:
    """Return which groups have diverged or exploded, and when."""
    sentences = []
    for group in groups:
        found = [run.summary.get(f"{outcome}_round") for run in group.runs if run.summary]
        rounds = [round for round in found if round is not None]
        if rounds:
            where = f"in {len(rounds)} of {len(group.runs)} seeds, first at" if len(group.runs) > 1 else "at"
            sentences.append(f"{group.label} {outcome} {where} round {min(rounds)}.")
    return sentences


def _unfinished(groups: Sequence[Group]) -> list[str]:
    sentences = []
    for group in groups:
        open_runs = [run for run in group.runs if _is_open(run.summary)]
        if open_runs:
            reached = ", ".join(str(run.last["round"]) for run in open_runs)
            sentences.append(
                f"{group.label} has not finished: {len(open_runs)} of {len(group.runs)} runs stand at round {reached} "
                f"of {open_runs[0].config.rounds}."
            )
    return sentences


def _is_open(summary: Mapping[str, Any] | None) -> bool:
    """Return whether a run has not ended, or ended before it was done."""
    return summary is None or (summary["ended"] in ("stopped", "interrupted") and "stopping_rule" not in summary)


def _privacy(groups: Sequence[Group]) -> list[str]:
    """Return the epsilon that each private group has reached, the largest of its seeds, and what it covers."""
    sentences = []
    for group in groups:
        last = [run.last for run in group.runs if "epsilon" in run.last]
        if not last:
            continue
        delta = group.runs[0].config.privacy.delta
        epsilons = [row["epsilon"] for row in last]
        if None in epsilons:
            sentences.append(f"{group.label} clips updates without noise, which promises no privacy.")
        else:
            sentences.append(
                f"{group.label}: the models of {max(row['round'] for row in last)} rounds have epsilon = "
                f"{max(epsilons):.3g} at delta = {delta:g} for replacing one device's data; the measurements in this "
                "report are not covered."
            )
    return sentences
