"""What a merge rule is, and the reference rule: the weighted mean.

    w = sum_k weight_k w_k,        sum_k weight_k = 1

What a method sums with the masses p_k (SCAFFOLD's control variate, FedDyn's dual) follows the same rule: the sum
over the devices S of a round is their total mass times the merged value,

    sum over S of p_k x_k  =  (sum over S of p_k) * merge(x_k, p_k / sum over S of p_k)

which for the mean is the sum itself.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import jax
import numpy as np
from numpy.typing import NDArray

from fedprox.config import PrivacyConfig
from fedprox.core.declared_fields import DeclaredFields
from fedprox.core.errors import ConfigError
from fedprox.core.own_code import is_library_code
from fedprox.core.own_results import fitted
from fedprox.core.own_signatures import check_signatures
from fedprox.core.trees import Tree, scale, total
from fedprox.methods.method import Method, Received

__all__ = ["MergeRule", "check_merging", "mean", "merge_received"]


@dataclass(frozen=True)
class MergeRule(DeclaredFields):
    """How replies are combined. This one is the weighted mean; others override `merge`.

    The fields that a rule adds are its keys in `[merge]`.

    Attributes:
      name: its name in configs and records.
      needs_every_reply: whether the rule sees all replies at once; the mean is a sum and keeps none of them.
      compares_replies: whether the rule measures distances between complete replies, or their norms.
    """

    not_keys: ClassVar[frozenset[str]] = frozenset({"name", "needs_every_reply", "compares_replies"})

    name: str = "mean"
    needs_every_reply: bool = False
    compares_replies: bool = False

    def merge(self, replies: Sequence[Tree], weights: NDArray[np.float64]) -> Tree:
        """Return one tree for the replies, of which there is at least one; the weights are > 0 and sum to 1.

        >>> MergeRule().merge([np.float32(1), np.float32(5)], np.array([0.75, 0.25]))
        np.float32(2.0)
        """
        merged = scale(replies[0], float(weights[0]))
        for reply, weight in zip(replies[1:], weights[1:].tolist(), strict=True):
            merged = total(merged, scale(reply, weight))
        return merged

    def merge_around(self, centre: Tree, replies: Sequence[Tree], weights: NDArray[np.float64]) -> Tree:
        """Return one tree for the replies, given where the devices started; most rules do not use it."""
        return self.merge(replies, weights)

    @property
    def least_replies(self) -> int:
        """The smallest number of replies for which the rule is meaningful."""
        return 1

    def survives(self, replies: int) -> int | None:
        """Return how many attackers of a round's replies the rule withstands; None where nothing is known."""
        return None


def mean() -> MergeRule:
    """Return the weighted mean.

    >>> mean().needs_every_reply
    False
    """
    return MergeRule()


def merge_received(rule: MergeRule, received: Sequence[Received], centre: Tree = None) -> tuple[Tree, Tree]:
    """Return what `Method.merge` takes, `averaged` and `summed`, from all replies of a round.

    `centre` is what `averaged` would be from a device that did nothing; None: zero.
    """
    weights = np.array([one.weight for one in received], np.float64)
    masses = np.array([one.mass for one in received], np.float64)
    replies = [one.reply.averaged for one in received]
    averaged = _around(rule, _zero(replies) if centre is None else centre, replies, weights / weights.sum())
    summed = [one.reply.summed for one in received]
    if not jax.tree.leaves(summed[0]):  # most methods add up nothing
        return averaged, summed[0]
    merged = _around(rule, _zero(summed), summed, masses / masses.sum())
    return averaged, scale(merged, float(masses.sum()))


def _around(rule: MergeRule, centre: Tree, replies: Sequence[Tree], weights: NDArray[np.float64]) -> Tree:
    merged = rule.merge_around(centre, replies, weights)
    if is_library_code(rule):
        return merged
    return fitted(merged, replies[0], f"merge of the merge rule {rule.name!r}", "a tree", of="the replies")


def _zero(replies: Sequence[Tree]) -> Tree:
    return jax.tree.map(np.zeros_like, replies[0])


def check_merging(rule: MergeRule, method: Method, privacy: PrivacyConfig) -> None:
    """Refuse a rule that the method or privacy does not allow; warn where it changes the method."""
    check_signatures(rule, MergeRule, f"the merge rule {rule.name!r}")
    if privacy.clip > 0 and (rule.needs_every_reply or method.needs_every_reply):
        got = f"merge.rule = {rule.name!r}" if rule.needs_every_reply else f"method.name = {method.name!r}"
        raise ConfigError(
            f"`merge.rule` must be 'mean' with `privacy.clip`, whose noise is for a sum of updates only; got {got}"
        )
    if rule.needs_every_reply and method.needs_every_reply:
        raise ConfigError(
            f"`merge.rule` must be 'mean' with method.name = {method.name!r}, which merges the replies itself; "
            f"got {rule.name!r}"
        )
    if rule.needs_every_reply and method.adds_up_memory:
        warnings.warn(
            f"with merge.rule = {rule.name!r} the server of {method.name} no longer holds the sum of its devices' "
            "states, which its theory needs",
            stacklevel=4,
        )
    if rule.compares_replies and method.sends_numbers:
        warnings.warn(
            f"merge.rule = {rule.name!r} compares whole replies, and those of {method.name} have numbers besides "
            "parameters, which may outweigh them",
            stacklevel=4,
        )
