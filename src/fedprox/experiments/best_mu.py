"""Methods written with `mu=best`: mu is chosen from a few values by shorter runs before the comparison.

In a config's `[compare]` section `mus` are the values and `mu_rounds` how many rounds the shorter runs take. A value is
judged as `fedprox tune` judges it, by the loss on validation data or, without such data, by the training loss, over the
last tenth of the rounds: test data is not used.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedprox.core.errors import RunError
from fedprox.experiments.compare import collect, plan, variant
from fedprox.experiments.scheduler import Event
from fedprox.experiments.tune import score
from fedprox.experiments.unfinished import run_unfinished
from fedprox.runs.reader import load_run

__all__ = ["BEST", "CHOOSING", "asks_for_best", "choose_mus"]

BEST = "mu=best"
CHOOSING = "choosing-mu"
"""The folder of the shorter runs, below that of the comparison."""


def asks_for_best(text: str) -> bool:
    """Return whether a method is written with `mu=best`.

    >>> asks_for_best("fedprox:mu=best,solver.epochs=5"), asks_for_best("fedprox:mu=1")
    (True, False)
    """
    return BEST in re.split("[:,]", text)


def choose_mus(
    settings: Mapping[str, Any],
    methods: Sequence[str],
    mus: Sequence[float],
    rounds: int,
    *,
    out: Path,
    workers: int = 0,
    records: Path | None = None,
    on_event: Callable[[Event], None] = lambda event: None,
) -> tuple[list[str], dict[str, dict[float, float]]]:
    """Return the methods with mu chosen, and for each chosen one the score of every value.

    Run folders go to `out`/choosing-mu; a second call continues them. Runs are those of the first seed alone.
    """
    open_ = [text for text in methods if asks_for_best(text)]
    candidates = [text.replace(BEST, f"mu={mu:g}") for text in open_ for mu in mus]
    shorter = {**settings, "rounds": rounds}
    jobs = plan(shorter, [variant(text) for text in candidates], 1, out / CHOOSING, resume=True)
    collect(run_unfinished(jobs, workers=workers, on_event=on_event, root=out, records=records))
    scores = iter(score(load_run(job.out)) for job in jobs)
    chosen: dict[str, str] = {}
    found: dict[str, dict[float, float]] = {}
    for text in open_:
        by_mu = {mu: next(scores) for mu in mus}
        best = min(by_mu, key=lambda mu: by_mu[mu])
        if by_mu[best] == float("inf"):
            raise RunError(f"{text}: the runs diverged with every mu that was tried ({', '.join(map(str, mus))})")
        chosen[text] = text.replace(BEST, f"mu={best:g}")
        found[chosen[text]] = by_mu
    return [chosen.get(text, text) for text in methods], found
