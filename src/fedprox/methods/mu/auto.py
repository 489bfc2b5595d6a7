"""mu without tuning, from the loss of every round and the updates that the server receives.

A mu that is too small lets the devices drift apart: then the averaged model jumps about with the devices that happen
to be chosen, and the training loss often rises. A mu that is too large only slows a loss that falls all the time. So
the rule steers the share of rounds in which the loss rises to `SHARE`, on a logarithmic scale, because the best mu
differs by factors between data sets:

    log mu  +=  step                                           where the loss rose
    log mu  -=  step (SHARE / (1 - SHARE) + 2 max(q, 0))       where it did not

At a share of exactly `SHARE` the steps cancel. q is the agreement of the devices' updates (`Signals.agreement`):
devices that agree need no restraint, so mu then falls at once, by up to a factor 3 in a round, not over many.

step = STEP / (1 + turns / SETTLE), where `turns` counts how often rising and falling took turns (the rule of Kesten
for the gain of a stochastic approximation). A mu that is far off moves the loss one way only, and the step stays
large; near the right one the loss goes up and down with the choice of devices, and mu settles.

A step of SGD moves w by the fraction lr mu towards w^t, so that 1 / (lr mu) is the number of steps that a device can
go its own way, and lr mu, not mu, means the same on all data. It starts at a hundred steps. It stays between one
step, beyond which SGD overshoots, and a hundred thousand, where the term no longer matters.

Without sampling (K = N) the loss hardly ever rises, however far the devices drift, and mu sinks: there the rule fails.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar

from fedprox.config import Config
from fedprox.methods.mu.controller import Signals

__all__ = ["AutoMu", "warn_of_full_participation"]

STEP = 0.5
SHARE = 0.25
SETTLE = 7
FIRST, SMALLEST, LARGEST = 1e-2, 1e-5, 1.0  # of lr mu


@dataclass(frozen=True)
class AutoMu:
    """mu steered by rises of the loss and by the agreement of the devices.

    It needs the loss of every round. A loss that is not finite counts as a rise, and the loss after it has nothing to
    be compared with.

    >>> rule = AutoMu.start(learning_rate=0.01)
    >>> rule.mu
    1.0
    >>> for loss in (2.0, 2.5):
    ...     rule = rule.after(Signals(loss))
    >>> round(rule.mu, 4)  # e^0.5
    1.6487
    """

    needs_every_loss: ClassVar[bool] = True

    mu: float
    learning_rate: float
    previous: float | None = None
    rose: bool | None = None
    turns: int = 0

    @classmethod
    def start(cls, learning_rate: float) -> AutoMu:
        """Return the rule before the first round."""
        return cls(FIRST / learning_rate, learning_rate)

    def after(self, signals: Signals) -> AutoMu:
        """Apply the rule to one more round."""
        loss = signals.loss
        if loss is None:
            return self
        is_finite = math.isfinite(loss)
        if is_finite and self.previous is None:
            return replace(self, previous=loss)
        rose = not is_finite or self.previous is None or loss > self.previous
        turns = self.turns + (self.rose is not None and rose != self.rose)
        step = STEP / (1 + turns / SETTLE)
        if not rose:
            agreement = min(max(signals.agreement or 0.0, 0.0), 1.0)
            step *= -(SHARE / (1 - SHARE) + 2 * agreement)
        fraction = min(max(self.learning_rate * self.mu * math.exp(step), SMALLEST), LARGEST)
        mu = fraction / self.learning_rate
        return replace(self, mu=mu, previous=loss if is_finite else None, rose=rose, turns=turns)

    def state(self) -> dict[str, Any]:
        """Return the fields."""
        return asdict(self)


def warn_of_full_participation(config: Config, devices: int) -> None:
    """Warn where the rule is known to fail: every device takes part in every round."""
    chosen = config.devices
    if config.method.mu == "auto" and chosen.sampling == "uniform" and chosen.per_round == devices:
        warnings.warn(
            f"`method.mu` = 'auto' follows rises of the loss, which are rare when all {devices} devices take part in "
            "every round, and then sets mu too low (docs/choosing-mu.md); compare it with constants such as 0.1 and 1",
            stacklevel=3,
        )
