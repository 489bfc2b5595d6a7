"""mu from how far devices drift apart: by the loss and dissimilarity of every model, and the updates received.

mu should be large where the devices' updates cancel, and small where they add up. Three quantities show which is the
case. Let d_k = w_k - w^t be the updates, r = ||sum_k weight_k d_k||^2 / sum_k weight_k ||d_k||^2 their agreement, s =
sum_k weight_k^2 what r is for independent updates, and B = B(w^t) (Definition 3), so that 1 / B^2 is the agreement of
the gradients of all devices.

1. *The draw of devices.* The step against the chosen devices' mean gradient that minimises the expected loss of a
   quadratic f is shorter, by the factor 1 - n, than the one against grad f: n = V / (V + G^2), with G^2 = ||grad f||^2
   and V the variance of that mean. V / G^2 = v (B^2 - 1), with v = s (1 - coverage). A mu that is too small makes the
   model follow the devices that were drawn, and the loss rises now and then; one that is too large only slows a
   steadily falling loss. So where noise dominates, mu is steered to a share of `SHARE` rises. With all devices in every
   round n = 0, and rises carry no information.
2. *Cancelling.* Proximal steps with a large mu are -grad F_k / mu, so that their agreement is that of the gradients.
   c = B^2 (r - v) / (1 - v) is below 1 where the devices' work cancels more than their gradients do: they run to their
   own optima, and the average stops short of the minimum, however smoothly the loss falls. Then mu rises. The draw of
   devices hides this where n > 1/2.
3. *Agreement.* q = (r - s) / (1 - s) (`Signals.agreement`) is above 0 where updates have more in common than
   independent ones: such devices need no proximal term, and mu falls at once, by up to e^2 in a round.

Together, on a logarithmic scale, because the best mu differs by factors between data sets:

    log mu  +=  step                                                                 where the loss rose
    log mu  +=  step ((1 - 2n)_+ (1 - c)_+^2 - n SHARE / (1 - SHARE) - 4 q_+)        where it did not

step = STEP / (1 + turns / SETTLE), where `turns` counts the changes between rising and falling (Kesten's rule for the
gain of a stochastic approximation): a mu that is far off moves fast, one that is right settles.

A step of SGD moves w by the fraction lr mu towards w^t, so that 1 / (lr mu) is the number of steps after which a device
is held back, and lr mu, not mu, is comparable between data sets. It starts at (1 - 1 / B(w^0)^2) / 100: a hundred steps
where gradients have little in common, many more where they agree. It stays between one step, beyond which SGD
overshoots, and a hundred thousand, where the term no longer matters. Where B is not measured (`measure.dissimilarity`
is false), n is 1, or 0 with all devices, and c is 1.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar

from fedprox.config import Config
from fedprox.methods.mu.controller import Signals

__all__ = ["DriftMu", "warn_of_full_participation"]

STEP = 0.5
SHARE = 0.2
SETTLE = 7
AGREEMENT = 4
DIGITS = 4  # of B: engines add gradients up in other orders, and mu is to be the same for all of them
FIRST, SMALLEST, LARGEST = 1e-2, 1e-5, 1.0  # of lr mu


@dataclass(frozen=True)
class DriftMu:
    """mu steered by rises of the loss, by updates that cancel and by updates that agree.

    It needs the loss of every round. A loss that is not finite counts as a rise, and the loss after it is not compared.

    >>> rule = DriftMu.start(learning_rate=0.01)
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
    dissimilarity: float | None = None  # B of the model that the next round starts from
    rose: bool | None = None
    turns: int = 0

    @classmethod
    def start(cls, learning_rate: float) -> DriftMu:
        """Return the rule before the first round."""
        return cls(FIRST / learning_rate, learning_rate)

    def after(self, signals: Signals) -> DriftMu:
        """Apply the rule to one more round; the signals of the initial model, without devices, set its start."""
        if signals.loss is None:
            return self
        is_finite = math.isfinite(signals.loss)
        b = signals.dissimilarity if signals.dissimilarity is None else float(f"{signals.dissimilarity:.{DIGITS}g}")
        seen = replace(self, previous=signals.loss if is_finite else None, dissimilarity=b)
        if is_finite and self.previous is None:
            apart = 1.0 if signals.weights else 1 - _gradient_agreement(b, otherwise=0.0)
            return replace(seen, mu=self._within(apart * self.mu))
        rose = not is_finite or self.previous is None or signals.loss > self.previous
        turns = self.turns + (self.rose is not None and rose != self.rose)
        change = STEP / (1 + turns / SETTLE) * (1.0 if rose else _fall(signals, self.dissimilarity))
        return replace(seen, mu=self._within(self.mu * math.exp(change)), rose=rose, turns=turns)

    def state(self) -> dict[str, Any]:
        """Return the fields."""
        return asdict(self)

    def _within(self, mu: float) -> float:
        return min(max(self.learning_rate * mu, SMALLEST), LARGEST) / self.learning_rate


def _fall(signals: Signals, b: float | None) -> float:
    """Return by how many steps log mu changes after a round in which the loss did not rise; `b` is B(w^t)."""
    free = sum(weight * weight for weight in signals.weights) * (1 - min(signals.coverage, 1.0))
    apart = 1 / _gradient_agreement(b, otherwise=1.0) - 1  # B^2 - 1
    noise = free * apart / (1 + free * apart) if b is not None and math.isfinite(b) else float(free > 0)
    agreement = min(max(signals.agreement or 0.0, 0.0), 1.0)
    cancelled = 0.0
    if signals.agreement is not None and noise < 0.5 and free < 1:
        cancelled = min(max(1 - (signals.ratio - free) / (1 - free) * (1 + apart), 0.0), 1.0)
    return (1 - 2 * noise) * cancelled**2 - noise * SHARE / (1 - SHARE) - AGREEMENT * agreement


def _gradient_agreement(b: float | None, *, otherwise: float) -> float:
    """Return 1 / B^2, which is at most 1, or `otherwise` where B is not known or not finite."""
    return 1 / max(b, 1.0) ** 2 if b is not None and math.isfinite(b) and b < 1e150 else otherwise


def warn_of_full_participation(config: Config, devices: int) -> None:
    """Warn if the rule lacks what it needs: every device takes part in every round, and B is not measured."""
    chosen = config.devices
    is_full = chosen.sampling == "uniform" and chosen.per_round == devices
    if config.method.mu in ("auto", "drift") and is_full and not config.measure.dissimilarity:
        warnings.warn(
            f"`method.mu` = {config.method.mu!r} with all {devices} devices in every round needs "
            "`measure.dissimilarity` = true, and without it sets mu too low (docs/choosing-mu.md)",
            stacklevel=3,
        )
