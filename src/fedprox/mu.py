"""The proximal coefficient mu over the rounds.

A controller is an immutable value: `mu` is what the next round uses, and `after(signals)` is the controller that has
seen one more round. Its `state` is plain numbers and goes into the checkpoint.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol

from fedprox.config import MethodConfig

__all__ = ["AdaptiveMu", "ConstantMu", "MuController", "Signals", "build", "restore"]


@dataclass(frozen=True)
class Signals:
    """What a controller sees of a round; the initial model is round 0.

    Attributes:
      loss: the training loss f(w^t), None where the round was not measured.
      weights, drift2: for each device kept, its weight in the average and ||w_k - w^t||^2.
      mean_drift2: ||sum_k weight_k (w_k - w^t)||^2.
    """

    loss: float | None
    weights: tuple[float, ...] = ()
    drift2: tuple[float, ...] = ()
    mean_drift2: float = 0.0


class MuController(Protocol):
    """What chooses mu."""

    @property
    def mu(self) -> float:
        """The mu of the next round."""

    def after(self, signals: Signals) -> MuController:
        """Return the controller after one more round, the initial model first."""

    def state(self) -> dict[str, Any]:
        """Return what `restore` needs to continue."""


@dataclass(frozen=True)
class ConstantMu:
    """One mu for all rounds."""

    mu: float

    def after(self, signals: Signals) -> ConstantMu:
        """Return itself: a constant learns nothing."""
        return self

    def state(self) -> dict[str, Any]:
        """Return the fields."""
        return asdict(self)


@dataclass(frozen=True)
class AdaptiveMu:
    """The paper's rule (Section 5.3.2, Figures 3 and 11).

    mu rises by `step` whenever the loss increases, falls by `step` whenever the loss has decreased for `patience`
    rounds in a row, and is never negative. After a change the count of decreases starts again.

    >>> rule = AdaptiveMu(mu=0.0)
    >>> for loss in (1.0, 1.5):
    ...     rule = rule.after(Signals(loss))
    >>> rule.mu
    0.1
    """

    mu: float
    step: float = 0.1
    patience: int = 5
    decreases: int = 0
    previous: float | None = None

    def after(self, signals: Signals) -> AdaptiveMu:
        """Apply the rule to one more loss; a loss that is not a number counts as an increase."""
        if signals.loss is None:
            return self
        loss = signals.loss if math.isfinite(signals.loss) else math.inf
        if self.previous is None:
            return replace(self, previous=loss)
        if loss > self.previous or loss == math.inf:
            return replace(self, mu=round(self.mu + self.step, 12), decreases=0, previous=loss)
        decreases = self.decreases + 1 if loss < self.previous else 0
        if decreases == self.patience:
            return replace(self, mu=max(round(self.mu - self.step, 12), 0.0), decreases=0, previous=loss)
        return replace(self, decreases=decreases, previous=loss)

    def state(self) -> dict[str, Any]:
        """Return the fields."""
        return asdict(self)


def build(config: MethodConfig) -> MuController:
    """Return the controller that the config names."""
    if config.mu == "adaptive":
        return AdaptiveMu(config.mu_initial, config.mu_step, config.mu_patience)
    return ConstantMu(float(config.mu))


def restore(controller: MuController, state: dict[str, Any]) -> MuController:
    """Return the controller as it was when `state` was taken of it."""
    return type(controller)(**state)
