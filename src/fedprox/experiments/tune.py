"""Choosing the learning rate and mu as the paper does (Section 5.1 and "Choosing mu" in Section 5.3.2).

1. The learning rate is chosen on FedAvg with E = 1 and without stragglers.
2. With that rate, mu is chosen on the unchanged config, from {0.001, 0.01, 0.1, 1}: for the config's own method if it
has a proximal term, otherwise for FedProx.

A value is judged by the loss on validation data (`data.validation`), without such data by the training loss, averaged
over the last tenth of the measured rounds and over seeds; values with which a run diverges are excluded. Test data is
not used, so that test accuracies remain unbiased. A value given alone is taken without a run.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedprox.config import Config, with_overrides
from fedprox.config.recipes import load_settings
from fedprox.config.resolution import takes_mu
from fedprox.core.errors import RunError
from fedprox.core.extras import needs_extra
from fedprox.experiments.compare import failure
from fedprox.experiments.scheduler import Event
from fedprox.experiments.sweep import Axis, grid, run_grid
from fedprox.runs.reader import SavedRun, load_run
from fedprox.runs.stopping import is_ranked

__all__ = ["MUS", "RATES", "Choice", "Tuning", "tune"]

RATES = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
MUS = (0.001, 0.01, 0.1, 1.0)
_BATCH = 4  # trials suggested at a time; fixed, so that the trials do not depend on the number of cores

OnEvent = Callable[[Event], None]


@dataclass(frozen=True)
class Choice:
    """One setting that was tuned: the value chosen, and the score of each value tried (infinite if excluded).

    Without scores it is the only value that was given.
    """

    key: str
    value: float
    scores: dict[float, float]
    measure: str = "training"  # or validation: the data that the loss is on

    def words(self) -> str:
        """Return what was chosen and how it compares."""
        if not self.scores:
            return f"{self.key} = {self.value:g}, the only value given."
        tried = ", ".join(f"{value:g}: {_loss(score)}" for value, score in sorted(self.scores.items()))
        text = f"{self.key} = {self.value:g}, with the lowest {self.measure} loss ({tried})"
        if len(self.scores) > 1 and self.value in (min(self.scores), max(self.scores)):
            text += "; it is at the end of the range that was tried, so a wider one may hold a better value"
        return text + "."


@dataclass(frozen=True)
class Tuning:
    """Both choices, and the settings with them applied."""

    rate: Choice
    mu: Choice
    config: Config


def tune(
    config: Config | Mapping[str, Any] | str | Path,
    *,
    out: str | Path,
    rates: Sequence[float] = RATES,
    mus: Sequence[float] = MUS,
    trials: int = 0,
    seeds: int = 1,
    workers: int = 0,
    on_event: OnEvent = lambda event: None,
) -> Tuning:
    """Choose `solver.learning_rate`, then `method.mu`, and write the chosen config to `out`/tuned.toml.

    With `trials` > 0 that many values are tried for each, suggested by Optuna on a logarithmic scale within the range
    of `rates` and, ten times wider at each end, of `mus`. Run folders go below `out`; a second call continues them.
    """
    folder, settings = Path(out), load_settings(config)
    plain = Config.from_dict(settings)
    first = plain.seed
    seed_axis = Axis("seed", tuple(str(first + offset) for offset in range(seeds)))

    def score_values(stage: str, base: Mapping[str, Any], key: str, values: Iterable[float]) -> dict[float, float]:
        candidates = list(values)
        axes = [Axis(key, tuple(repr(value) for value in candidates)), seed_axis]
        jobs = grid(base, axes, folder / stage)
        ended = run_grid(jobs, workers=workers, on_event=on_event)
        if ended.failed:
            raise failure(ended.failed, len(jobs))
        runs = [jobs[i * seeds : (i + 1) * seeds] for i in range(len(candidates))]
        return {
            value: statistics.fmean(score(load_run(job.out)) for job in group)
            for value, group in zip(candidates, runs, strict=True)
        }

    base = _undisturbed(settings)
    rate = _choose(
        "solver.learning_rate",
        rates,
        trials,
        (min(rates), max(rates)),
        lambda v: score_values("rate", base, "solver.learning_rate", v),
    )
    base = with_overrides({**settings, "method": _proximal(plain)}, [f"solver.learning_rate={rate.value!r}"])
    mu = _choose(
        "method.mu", mus, trials, (min(mus) / 10, max(mus) * 10), lambda v: score_values("mu", base, "method.mu", v)
    )
    tuned = Config.from_dict(with_overrides(base, [f"method.mu={mu.value!r}"]))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tuned.toml").write_text(tuned.to_toml(), encoding="utf-8")
    if tuned.data.validation:
        rate, mu = (replace(choice, measure="validation") for choice in (rate, mu))
    return Tuning(rate, mu, tuned)


def score(run: SavedRun) -> float:
    """Return the mean training loss of the last tenth of the measured rounds; infinite after a divergence."""
    if run.summary is None or not is_ranked(run.summary):
        return math.inf
    losses = run.history.column("validation_loss" if run.config.data.validation else "train_loss")
    if any(loss is None for loss in losses):
        return math.inf
    return statistics.fmean(losses[-max(1, len(losses) // 10) :])


def _choose(
    key: str,
    values: Sequence[float],
    trials: int,
    limits: tuple[float, float],
    score_values: Callable[[Iterable[float]], dict[float, float]],
) -> Choice:
    if len(values) == 1 and not trials:
        return Choice(key, values[0], {})
    scores = _suggested(key, trials, limits, score_values) if trials else score_values(values)
    best = min(scores, key=lambda value: scores[value])
    if scores[best] == math.inf:
        raise RunError(f"`{key}`: the runs diverged with every value that was tried ({', '.join(map(str, scores))})")
    return Choice(key, best, scores)


def _suggested(
    key: str, trials: int, limits: tuple[float, float], score_values: Callable[[Iterable[float]], dict[float, float]]
) -> dict[float, float]:
    """Let Optuna's sampler suggest values, a few at a time, and report their scores to it."""
    with needs_extra("tune", "`--trials`"):
        import optuna
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    space: dict[str, optuna.distributions.BaseDistribution] = {
        key: optuna.distributions.FloatDistribution(*limits, log=True)
    }
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=0))
    scores: dict[float, float] = {}
    for begin in range(0, trials, _BATCH):
        asked = [study.ask(space) for _ in range(min(_BATCH, trials - begin))]
        values = [float(f"{trial.params[key]:.3g}") for trial in asked]
        scores |= score_values(dict.fromkeys(values))
        for trial, value in zip(asked, values, strict=True):
            study.tell(trial, min(scores[value], 1e9))  # Optuna does not accept infinities
    return scores


def _proximal(config: Config) -> dict[str, Any]:
    """Return the method whose mu is chosen: the config's own where it has a proximal term, or else FedProx."""
    if not takes_mu(config.method.name):
        return {"name": "fedprox"}
    return {key: value for key, value in config.to_dict()["method"].items() if not key.startswith("mu")}


def _undisturbed(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings with FedAvg, E = 1 and no systems heterogeneity: no stragglers, no clock, no failures."""
    devices = {key: value for key, value in settings.get("devices", {}).items() if key not in ("stragglers", "failure")}
    solver = {**settings.get("solver", {}), "epochs": 1}
    rest = {key: value for key, value in settings.items() if key != "systems"}
    return {**rest, "method": {"name": "fedavg"}, "devices": devices, "solver": solver}


def _loss(score: float) -> str:
    return "diverged" if score == math.inf else f"{score:.4f}"
