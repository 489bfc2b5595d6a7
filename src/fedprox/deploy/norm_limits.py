"""How much a reply may add: a number that the config gives, or a multiple of what replies have added lately.

    limit = 50 median of the norms of the last five rounds and of this one

for updates, for what is added to the model and to memories, and for gradients at w^t (FedDANE). Losses, where a method
makes use of those that devices report, have a limit of 10^4 medians, but not below 100: where most devices have fitted
their samples, the loss of another may honestly be thousands of times theirs.

A norm grows and shrinks with the learning rate, the model and the budget, so that no number is right for all runs; but
in one run the norms of honest devices are near each other. On Synthetic(1,1) and its IID variant with 90 % stragglers
the longest update was 14.4 times the median, the largest addition to a memory (SCAFFOLD's c_k) 21.3 times, and the
largest gradient 16.9 times. Fewer than three norms set no limit, but each must be finite. As long as less than half of
the replies are false, the median is between honest norms.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from statistics import median
from typing import Any

__all__ = ["NormLimits"]

_TIMES = 50
_LOSS_TIMES, _SMALL_LOSS = 10_000, 100.0
_ROUNDS = 5
_FEWEST = 3
_WHAT = {
    "update": "||w_k - w^t||",
    "model": "what it adds to the model",
    "server": "what it adds to the server's state",
    "device": "what it adds to the device's state",
    "gradient": "||grad F_k(w^t)||",
    "loss": "the loss F_k(w^t)",
}

Norms = Mapping[int, Mapping[str, float]]
"""For each device of a round, the norms of its reply by their kind."""


class NormLimits:
    """The limits of a run, which follow its rounds.

    Args:
      max_norm: the limit for the model, or "auto"; 0: none at all.
      remembered: how many of the last rounds count; where replies are noted one by one, how many of these.

    >>> limits = NormLimits("auto")
    >>> honest = {device: {"update": 1.0 + 0.1 * device} for device in range(4)}
    >>> limits.worst(honest) is None
    True
    >>> limits.worst({**honest, 7: {"update": 70.0}})
    (7, '||w_k - w^t|| = 70 is beyond the limit of 60, 50 times the median of the last rounds')
    """

    def __init__(self, max_norm: float | str, remembered: int = _ROUNDS) -> None:
        self._max_norm = max_norm
        self._recent: deque[list[dict[str, float]]] = deque(maxlen=remembered)

    def worst(self, norms: Norms) -> tuple[int, str] | None:
        """Return the device whose reply is furthest beyond a limit, and why in words; None where all are within."""
        found: tuple[float, int, str] | None = None
        for kind in sorted({kind for own in norms.values() for kind in own}, reverse=True):
            limit, rule = self._limit(kind, norms)
            for device, own in norms.items():
                norm = own.get(kind, 0.0)
                if math.isfinite(norm) and norm <= limit:
                    continue
                excess = norm / limit if math.isfinite(norm) else math.inf
                said = f"{norm:.4g} is beyond the limit of {limit:.4g}{rule}" if math.isfinite(norm) else "not finite"
                if found is None or excess > found[0]:
                    found = excess, device, f"{_WHAT[kind]} {'= ' if math.isfinite(norm) else 'is '}{said}"
        return None if found is None else (found[1], found[2])

    def take_note(self, norms: Norms) -> None:
        """Remember what the replies of a round have added, which are within the limits."""
        self._recent.append([dict(own) for own in norms.values()])

    def values(self) -> list[Any]:
        """Return what a checkpoint keeps, in plain JSON values."""
        return list(self._recent)

    def restore(self, values: list[Any]) -> None:
        """Restore what `values` returned."""
        self._recent = deque(values, maxlen=self._recent.maxlen)

    def _limit(self, kind: str, norms: Norms) -> tuple[float, str]:
        if self._max_norm == 0:
            return math.inf, ""
        if self._max_norm != "auto" and kind in ("update", "model"):
            return float(self._max_norm), ""
        now = [own[kind] for own in norms.values() if kind in own]
        known = now + [own[kind] for replies in self._recent for own in replies if kind in own]
        middle = median(known) if len(known) >= _FEWEST else 0.0
        times, least = (_LOSS_TIMES, _SMALL_LOSS) if kind == "loss" else (_TIMES, 0.0)
        limit = max(times * middle, least) if 0 < middle < math.inf else math.inf
        return limit, f", {times} times the median of the last rounds" if limit > least else ""
