"""mu without tuning: one of two rules, by how many of the devices take part in a round.

With few of the devices in a round the loss rises now and then where mu is too small, and the paper's rule, which
follows these rises, comes nearest to the best constant. With most of them the loss falls smoothly however far the
devices drift apart, and only their updates show it, which the rule `drift` follows. The limit of one half was chosen
from the first table of docs/choosing-mu.md; the second one has draws that were made afterwards.
"""

from __future__ import annotations

from typing import ClassVar

from fedprox.methods.mu.adaptive import AdaptiveMu
from fedprox.methods.mu.drift import DriftMu

__all__ = ["AutoMu"]

DRIFT_FROM = 0.5  # the share of the devices in a round


class AutoMu:
    """The choice between the two rules.

    >>> AutoMu.start(learning_rate=0.01, share=0.1)
    AdaptiveMu(mu=0.0, step=0.1, patience=5, decreases=0, previous=None)
    >>> AutoMu.start(learning_rate=0.01, share=1.0).mu
    1.0
    """

    needs_every_loss: ClassVar[bool] = True

    @classmethod
    def start(cls, learning_rate: float, share: float) -> AdaptiveMu | DriftMu:
        """Return the rule before the first round, where `share` of the devices take part in each."""
        return DriftMu.start(learning_rate) if share >= DRIFT_FROM else AdaptiveMu.start()
