"""The page of results: figures, the headline, Table 1, where the numbers come from, and a verdict on each claim."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedprox.core.student_t import LEVEL
from fedprox.paper.claims import CLAIMS, Claim
from fedprox.paper.experiments import EXPERIMENTS
from fedprox.paper.gathered import Gathered, judge_all
from fedprox.paper.headline import headline_lines
from fedprox.paper.protocol import DATASETS
from fedprox.paper.scales import SCALES
from fedprox.paper.sources import Source
from fedprox.paper.tables import table1_lines
from fedprox.paper.verdicts import FAILS, HOLDS, NOT_TESTED, PARTLY, Judgement

__all__ = ["results_page"]


def results_page(gathered: Gathered, table: Sequence[Mapping[str, Any]], figures: str = ".") -> str:
    """Return the page as Markdown.

    Args:
      table: the rows of Table 1.
      figures: where the figures lie, as seen from the page.
    """
    judgements = judge_all(gathered)
    counts = {verdict: sum(each.verdict == verdict for each in judgements.values()) for verdict in _VERDICTS}
    told = ", ".join(f"{verdict} {count}" for verdict, count in counts.items() if count)
    sources = gathered.sources
    sections = [
        "# Results",
        "<!-- Written by `fedprox paper all`; do not edit. -->",
        f"What the paper claims about its experiments, and what became of it here. Verdicts on {len(CLAIMS)} claims: "
        f"{told}.",
        _scales(sources),
        _origins(sources),
        "The config hash of every run lies beside each figure as JSON, its numbers as CSV.",
        _reductions(sources),
        *(DATASETS[name].unlike_paper for name in DATASETS if name in sources),
        "## Claims",
        _HOW_JUDGED,
        _overview(judgements),
        *(_claim(CLAIMS[name], judgement) for name, judgement in judgements.items()),
        "## The headline",
        "\n".join(f"- {line}" for line in headline_lines(gathered.improvements)) or "Not run.",
        "## Table 1",
        "\n".join(table1_lines(table)),
        "## Figures",
        *(_figure(name, figures) for name in EXPERIMENTS),
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


_VERDICTS = (HOLDS, PARTLY, FAILS, NOT_TESTED)
_HOW_JUDGED = (
    "Differences are taken seed by seed, on the same devices, stragglers and mini-batch orders; numbers are means over "
    f"the comparisons, with intervals of {LEVEL:.0%} (Student's t over seeds; the data are the same for all). A "
    "comparison shows a claim where its interval lies on the claim's side of zero, or within the margin that the claim "
    "names. A claim holds where no comparison shows the opposite and at least half show it; it holds partly where some "
    "do; it does not hold here where none does. *Final* is the mean over the last fifth of the rounds, *roughness* the "
    "mean change from round to round in the second half. These rules were written down before any "
    "result of this scale was looked at."
)


def _scales(sources: Mapping[str, Source]) -> str:
    """Return which scales the numbers are from."""
    names = dict.fromkeys(sources[name].scale for name in DATASETS if name in sources)
    told = "; ".join(f"*{name}*: {SCALES[name].about}" if name in SCALES else f"*{name}*" for name in names)
    return f"Scales: {told}."


def _origins(sources: Mapping[str, Source]) -> str:
    """Return a table of where the numbers of each data set come from."""
    lines = [
        "| data set | scale | devices | rounds | seeds | commit | machine | date |",
        "|---|---|--:|--:|--:|---|---|---|",
    ]
    for name in (name for name in DATASETS if name in sources):
        each = sources[name]
        sizes = " | ".join("-" if size is None else f"{size:,}" for size in (each.devices, each.rounds, each.seeds))
        where = f"{each.machine['processor']}, {each.machine['cores']} cores"
        code = (each.commit or "unknown")[:12]
        lines.append(f"| {DATASETS[name].title} | {each.scale} | {sizes} | {code} | {where} | {each.date[:10]} |")
    return "\n".join(lines)


def _reductions(sources: Mapping[str, Source]) -> str:
    found = [sources[name].reduction for name in DATASETS if name in sources and sources[name].reduction]
    return "Smaller than in the paper: " + " ".join(found) if found else "All sizes are the paper's."


def _overview(judgements: dict[str, Judgement]) -> str:
    rows = [
        f"| [{name}](#{name}) | {judgement.number} | {judgement.verdict} |" for name, judgement in judgements.items()
    ]
    return "\n".join(["| claim | number | verdict |", "|---|---|---|", *rows])


def _claim(claim: Claim, judgement: Judgement) -> str:
    lines = [
        f"### {claim.name}",
        f"> {claim.sentence} ({claim.where})",
        f"**{judgement.verdict[0].upper()}{judgement.verdict[1:]}**: {judgement.number}. {_sentence(judgement.why)}",
        f"Judged by: {claim.rule}",
    ]
    if claim.caveat and judgement.verdict in (PARTLY, FAILS):
        lines.append(f"To know: {claim.caveat}")
    if judgement.evidence:
        lines.append(_evidence(judgement))
    return "\n\n".join(lines)


def _evidence(judgement: Judgement) -> str:
    evidence, factor = judgement.evidence, judgement.factor
    rows = [f"| {each.label} | {each.difference.text('+.3g', factor)} | {each.says} |" for each in evidence]
    table = "\n".join(["| comparison | difference | shows it |", "|---|--:|---|", *rows])
    return f'<details markdown="1">\n<summary>{len(evidence)} comparisons</summary>\n\n{table}\n\n</details>'


def _figure(name: str, figures: str) -> str:
    about = EXPERIMENTS[name].about
    path = name if figures == "." else f"{figures}/{name}"
    files = ", ".join(f"[{ending.upper()}]({path}.{ending})" for ending in ("pdf", "csv", "json"))
    return f"**{name.replace('figure', 'Figure ')}**: {about} ({files}).\n\n![{about}]({path}.png)"


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."
