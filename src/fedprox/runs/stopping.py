"""When a run has converged or diverged, as the paper defines it (Appendix C.3.2), or exploded.

Converged at the first round t with |f_t - f_(t-1)| < 0.0001; diverged at the first with f_t - f_(t-10) > 1, or where
the loss is no longer a finite number. The rule for divergence needs ten rounds; exploded is a run at the first round t
with f_t > 10 f_0, or where the loss is no longer finite. A run that has diverged or exploded is not ranked.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Outcome", "has_finished", "is_ranked"]

_CONVERGED_BELOW = 1e-4
_DIVERGED_ABOVE = 1.0
_DIVERGED_WITHIN = 10
_EXPLODED_TIMES = 10


@dataclass
class Outcome:
    """The outcome according to the losses so far.

    >>> outcome = Outcome()
    >>> for round, loss in enumerate([2.0, 1.0, float("nan"), float("nan")]):
    ...     outcome.see(round, loss)
    >>> outcome.converged_round, outcome.diverged_round, outcome.exploded_round, outcome.not_finite_since
    (None, 2, 2, 2)
    """

    converged_round: int | None = None
    diverged_round: int | None = None
    exploded_round: int | None = None
    not_finite_since: int | None = None
    _losses: dict[int, float] = field(default_factory=dict, repr=False)

    def see(self, round: int, loss: float | None) -> None:
        """Record the training loss of a measured round; None stands for one that is not finite."""
        if loss is None or not math.isfinite(loss):
            if self.not_finite_since is None:
                self.not_finite_since = round
            if self.diverged_round is None:
                self.diverged_round = round
            if self.exploded_round is None:
                self.exploded_round = round
            return
        before, long_before = self._losses.get(round - 1), self._losses.get(round - _DIVERGED_WITHIN)
        if self.converged_round is None and before is not None and abs(loss - before) < _CONVERGED_BELOW:
            self.converged_round = round
        if self.diverged_round is None and long_before is not None and loss - long_before > _DIVERGED_ABOVE:
            self.diverged_round = round
        first = self._losses.get(0, 0.0)
        if self.exploded_round is None and first > 0 and loss > _EXPLODED_TIMES * first:
            self.exploded_round = round
        self._losses[round] = loss


def has_finished(summary: Mapping[str, Any], rounds: int) -> bool:
    """Return whether a run has all its rounds, or a rule of `[stop]` has ended it: not a callback or an interrupt.

    >>> has_finished({"ended": "stopped", "rounds": 3}, 10), has_finished({"ended": "converged", "rounds": 3}, 10)
    (False, True)
    """
    has_ruled = summary.get("ended") in ("converged", "diverged") or "stopping_rule" in summary
    return has_ruled or summary.get("rounds", 0) >= rounds


def is_ranked(summary: Mapping[str, Any]) -> bool:
    """Return whether a run takes part in a ranking: it has neither diverged nor exploded.

    >>> is_ranked({"diverged_round": None, "exploded_round": 3})
    False
    """
    return summary.get("diverged_round") is None and summary.get("exploded_round") is None
