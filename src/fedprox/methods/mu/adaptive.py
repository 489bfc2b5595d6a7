"""The paper's rule for mu (Section 5.3.2, Figures 3 and 11)."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar

from fedprox.methods.mu.controller import Signals

__all__ = ["AdaptiveMu"]


@dataclass(frozen=True)
class AdaptiveMu:
    """mu rises by `step` whenever the loss increases, and falls by `step` after `patience` decreases in a row.

    It is never negative. A change of mu resets the count of decreases, and so does a loss equal to the previous one. A
    loss that is not finite counts as an increase, and the loss after it is not compared.

    >>> rule = AdaptiveMu(mu=0.0)
    >>> for loss in (1.0, 1.5):
    ...     rule = rule.after(Signals(loss))
    >>> rule.mu
    0.1
    """

    needs_every_loss: ClassVar[bool] = True

    mu: float
    step: float = 0.1
    patience: int = 5
    decreases: int = 0
    previous: float | None = None

    @classmethod
    def start(cls, mu_initial: float = 0.0, mu_step: float = 0.1, mu_patience: int = 5) -> AdaptiveMu:
        """Return the rule before the first round, from the settings of `[method]`."""
        return cls(mu_initial, mu_step, mu_patience)

    def after(self, signals: Signals) -> AdaptiveMu:
        """Apply the rule to one more loss."""
        loss = signals.loss
        if loss is None:
            return self
        if not math.isfinite(loss):
            return self._moved(self.step, None)
        if self.previous is None:
            return replace(self, previous=loss)
        if loss > self.previous:
            return self._moved(self.step, loss)
        decreases = self.decreases + 1 if loss < self.previous else 0
        if decreases == self.patience:
            return self._moved(-self.step, loss)
        return replace(self, decreases=decreases, previous=loss)

    def state(self) -> dict[str, Any]:
        """Return the fields."""
        return asdict(self)

    def _moved(self, step: float, loss: float | None) -> AdaptiveMu:
        # Rounded so that 0.1 up and 0.1 down gives the same value again.
        return replace(self, mu=max(round(self.mu + step, 12), 0.0), decreases=0, previous=loss)
