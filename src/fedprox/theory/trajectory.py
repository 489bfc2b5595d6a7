"""What the theorems need of each round of a run, collected while the config runs again."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedprox.config import Config
from fedprox.core.errors import RunFolderError
from fedprox.core.trees import Tree
from fedprox.runs.history import History
from fedprox.theory.replay import Devices, largest
from fedprox.training.result import Progress

__all__ = ["Round", "Trajectory", "again", "check_same"]


@dataclass(frozen=True)
class Round:
    """What the theorem says about the round from w^t, t = round - 1, to w^(t+1)."""

    round: int
    mu: float
    gamma: float  # the largest over every device, or over the chosen ones (`Certificate.gamma_over`)
    B: float
    gradient_norm2: float  # ||grad f(w^t)||^2
    rho: float | None  # None where the theorem does not apply
    predicted: float | None  # rho ||grad f(w^t)||^2: the decrease that is sure in expectation, where rho > 0
    observed: float  # f(w^t) - f(w^(t+1)), one draw of the expectation
    says: str


class Trajectory:
    """A callback that collects what the theorem needs of every round."""

    def __init__(self, devices: Devices, recorded: History, at: int, everyone: Sequence[int] = ()) -> None:
        self._devices = devices
        self._recorded = recorded
        self._at = at
        self._everyone = everyone  # devices whose gamma is measured beside that of the chosen ones
        self.rows: list[Round] = []
        self.losses: list[float] = []
        self.first: Tree = None
        self.last: Tree = None
        self.kept: Tree = None  # the model after round `at`
        self._norm2 = self._b = math.nan

    def __call__(self, progress: Progress) -> None:
        """See one round."""
        if progress.metrics is None:
            return
        loss = progress.metrics["train_loss"]
        loss = math.nan if loss is None else float(loss)
        if progress.devices is not None:
            mu = float(progress.metrics["mu"])
            gamma = self._gamma(progress.round, progress.devices, mu)
            observed = self.losses[-1] - loss
            self.rows.append(Round(progress.round, mu, gamma, self._b, self._norm2, None, None, observed, ""))
        else:
            self.first = progress.params
        b = progress.metrics["dissimilarity"]
        self._b = math.inf if b is None else float(b)
        self._norm2 = self._devices.gradient_norm2(progress.params)
        self.losses.append(loss)
        self.last = progress.params
        if progress.round == self._at:
            self.kept = progress.params

    def _gamma(self, round: int, chosen: Mapping[str, Any], mu: float) -> float:
        """Return the largest gamma of the chosen devices, as recorded or by solving them again, and of `everyone`."""
        known = self._recorded[round - 1].get("gamma")
        found = [math.inf if gamma is None else float(gamma) for gamma in known or ()]
        work = set() if known is not None else set(zip(chosen["device"], chosen["budget"], strict=True))
        if self._everyone:
            done = {} if known is None else dict(zip(chosen["device"], chosen["budget"], strict=True))
            could = self._devices.budgets_that_could_be(round, self._everyone)
            work |= {(device, budget) for device, budget in could if done.get(device) != budget}
        asked = sorted((int(device), int(budget)) for device, budget in work)
        devices, budgets = [device for device, _ in asked], [budget for _, budget in asked]
        solutions = self._devices.solutions(round, devices, budgets, self.last, mu)
        found += [
            self._devices.inexactness(device, solution, self.last, mu)
            for device, solution in zip(devices, solutions, strict=True)
        ]
        return largest(found)


def again(config: Config, rounds: int) -> Config:
    """Return the config of the replay: the same run, measured every round over all devices."""
    settings = config.to_dict()
    settings["rounds"] = rounds
    settings["measure"] |= {"every": 1, "devices": 0, "dissimilarity": True}
    settings["compat"]["dissimilarity"] = "paper"  # the theorems' B has the masses p_k
    settings["engine"] = {"name": "local", "workers": config.engine.local_workers}
    return Config.from_dict(settings)


def check_same(run: str | Path, metrics: History, losses: Sequence[float]) -> None:
    """Refuse a replay whose losses are not those of the record."""
    for row in metrics:
        if row["round"] >= len(losses):
            continue
        before, now = row["train_loss"], losses[row["round"]]
        same = math.isnan(now) if before is None else math.isclose(before, now, rel_tol=1e-3, abs_tol=1e-6)
        if not same:
            raise RunFolderError(
                f"{run} cannot be replayed: the recorded loss of round {row['round']} is {before}, the new one {now}; "
                "was it made from other data, or from objects given to `train`?"
            )
