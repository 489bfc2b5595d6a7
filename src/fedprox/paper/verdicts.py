"""What comes of a claim: the rule, decided before any result was seen, that turns evidence into a verdict.

- holds: no comparison speaks against it, and at least half of them speak for it;
- holds partly: some comparisons speak for it, but fewer than half, or some speak against it;
- does not hold here: no comparison speaks for it;
- not tested at this scale: it was not run, or with one seed only, or the scale shows no results.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fedprox.paper.evidence import Evidence
from fedprox.paper.intervals import combined

__all__ = ["FAILS", "HOLDS", "NOT_TESTED", "PARTLY", "Judgement", "judged", "untested"]

HOLDS = "holds"
PARTLY = "holds partly"
FAILS = "does not hold here"
NOT_TESTED = "not tested at this scale"


@dataclass(frozen=True)
class Judgement:
    """A verdict, our number with its interval, the reason in words and the evidence behind it."""

    verdict: str
    number: str
    why: str
    evidence: tuple[Evidence, ...] = ()
    factor: float = 1.0  # by which differences are multiplied where they are shown


def judged(found: Sequence[Evidence | None], unit: str, *, factor: float = 1.0, form: str = "+.3f") -> Judgement:
    """Apply the rule to evidence; comparisons that were not run are left out, and said to be.

    Args:
      unit: what the mean difference is a difference of.
      factor: 100 for accuracies, which are shown in points.
    """
    evidence = [each for each in found if each is not None]
    if not evidence:
        return untested("no run of it is there")
    yes, no, undecided = (sum(each.says == answer for each in evidence) for answer in ("yes", "no", "open"))
    mean = combined([each.difference for each in evidence])
    number = f"{mean.text(form, factor)} {unit}"
    if all(each.difference.low is None for each in evidence):
        return Judgement(NOT_TESTED, number, "one seed allows no interval", tuple(evidence), factor)
    shown = HOLDS if no == 0 and 2 * yes >= len(evidence) else PARTLY
    verdict = shown if yes else FAILS
    parts = [f"{yes} of {len(evidence)} comparisons show it"]
    if no:
        against = ", ".join(each.label for each in evidence if each.says == "no")
        parts.append(f"{no} show{'s' if no == 1 else ''} the opposite ({against})")
    if undecided:
        parts.append(f"{undecided} cannot be told apart with these seeds")
    if len(found) > len(evidence):
        parts.append(f"{len(found) - len(evidence)} were not run")
    return Judgement(verdict, number, "; ".join(parts), tuple(evidence), factor)


def untested(why: str) -> Judgement:
    """Return the judgement on a claim that was not tested."""
    return Judgement(NOT_TESTED, "-", why)
