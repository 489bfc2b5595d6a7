"""The page of results: figures, the headline, Table 1 and a verdict on each claim, written from run folders alone."""

from __future__ import annotations

from dataclasses import replace

from fedprox.core.student_t import LEVEL
from fedprox.paper.claims import CLAIMS, Claim
from fedprox.paper.experiments import EXPERIMENTS
from fedprox.paper.headline import headline, headline_lines
from fedprox.paper.provenance import commit, machine
from fedprox.paper.results import Results
from fedprox.paper.tables import table1, table1_lines
from fedprox.paper.verdicts import FAILS, HOLDS, NOT_TESTED, PARTLY, Judgement

__all__ = ["judge_all", "results_page"]


def judge_all(results: Results) -> dict[str, Judgement]:
    """Judge every claim; at a scale that shows no results the numbers stay and the verdicts go."""
    found = {name: claim.judge(results) for name, claim in CLAIMS.items()}
    if results.setting.scale.shows_results:
        return found
    why = f"the scale {results.setting.scale.name} shows that everything works, and no result"
    return {name: replace(each, verdict=NOT_TESTED, why=why) for name, each in found.items()}


def results_page(results: Results, figures: str = ".") -> str:
    """Return the page as Markdown.

    Args:
      figures: where the figures lie, as seen from the page.
    """
    judgements = judge_all(results)
    setting = results.setting
    counts = {verdict: sum(each.verdict == verdict for each in judgements.values()) for verdict in _VERDICTS}
    told = ", ".join(f"{verdict} {count}" for verdict, count in counts.items() if count)
    where = machine()
    sections = [
        "# Results",
        f"<!-- Written by `fedprox paper all --scale {setting.scale.name}`; do not edit. -->",
        f"What the paper claims about its experiments, and what became of it here, at the scale *{setting.scale.name}* "
        f"({setting.scale.about}). Verdicts on {len(CLAIMS)} claims: {told}.",
        f"Commit {commit() or 'unknown'}, on {where['processor']}, {where['cores']} cores. The config hash of every "
        "run lies beside each figure as JSON, its numbers as CSV.",
        _reductions(results),
        "## Claims",
        _HOW_JUDGED,
        _overview(judgements),
        *(_claim(CLAIMS[name], judgement) for name, judgement in judgements.items()),
        "## The headline",
        "\n".join(f"- {line}" for line in headline_lines(headline(results))) or "Not run.",
        "## Table 1",
        "\n".join(table1_lines(table1())),
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


def _reductions(results: Results) -> str:
    if not results.reductions:
        return "All sizes are the paper's."
    return "Smaller than in the paper: " + " ".join(results.reductions.values())


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
