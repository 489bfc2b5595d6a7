"""What comes of a claim: the rule, decided before any result was seen, that turns evidence into a verdict.

- holds: no comparison speaks against it, and at least half of them speak for it;
- holds partly: some comparisons speak for it, but fewer than half, or some speak against it;
- does not hold here: no comparison speaks for it;
- not tested at this scale: it was not run, or with one seed only, or the scale shows no results.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from fedprox.paper.evidence import Evidence
from fedprox.paper.headline import Improvement
from fedprox.paper.intervals import combined
from fedprox.paper.results import Histories

__all__ = [
    "FAILS",
    "HOLDS",
    "NOT_TESTED",
    "PARTLY",
    "Divergence",
    "Found",
    "Item",
    "Judge",
    "Judgement",
    "judge_by",
    "judged",
    "untested",
]

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


@dataclass(frozen=True)
class Divergence:
    """The runs with mu = 0 that diverge on a data set, those of them that another mu saves, and where they are."""

    dataset: str
    divergent: int
    saved: int
    where: tuple[str, ...]


Item = Evidence | Divergence | Improvement
"""What a claim is judged by, on one data set."""

Found = Sequence[Item | None]
"""All that a claim is judged by, in the order of the data sets; None for what was not run."""


@dataclass(frozen=True)
class Judge:
    """How a claim is judged: what is gathered from the histories, and what is decided from that."""

    gather: Callable[[Histories], Found]
    decide: Callable[[Found], Judgement]

    def __call__(self, results: Histories) -> Judgement:
        """Return the judgement."""
        return self.decide(self.gather(results))


def judge_by(unit: str, *, factor: float = 1.0, form: str = "+.3f") -> Callable[[Callable[[Histories], Found]], Judge]:
    """Make a judge of a function that gathers evidence."""
    return lambda gather: Judge(gather, partial(judged, unit=unit, factor=factor, form=form))


def judged(found: Found, unit: str, *, factor: float = 1.0, form: str = "+.3f") -> Judgement:
    """Apply the rule to evidence; comparisons that were not run are left out, and said to be.

    Args:
      unit: what the mean difference is a difference of.
      factor: 100 for accuracies, which are shown in points.
    """
    evidence = [each for each in found if isinstance(each, Evidence)]
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
