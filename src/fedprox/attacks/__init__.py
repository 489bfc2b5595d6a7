"""Attacks: devices of a simulation that send bad replies, so that merge rules can be tested.

Which devices attack is drawn once for a seed and the same for every method and merge rule.
"""

from __future__ import annotations

from fedprox.attacks.attackers import choose_attackers, warn_of_bounds
from fedprox.attacks.bad_labels import flip_labels, with_flipped_labels
from fedprox.attacks.bad_replies import corrupt

__all__ = ["choose_attackers", "corrupt", "flip_labels", "warn_of_bounds", "with_flipped_labels"]
