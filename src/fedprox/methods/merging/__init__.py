"""Merging: how the replies of a round are combined.

There are two kinds of rules. The mean is a sum, so that replies are added up as they arrive (`RoundSum`) and none is
kept. Every other rule sees all replies of a round at once.
"""

from __future__ import annotations

from fedprox.config import MergeConfig, PrivacyConfig
from fedprox.config.parts import build_part, check_kind
from fedprox.core.errors import ConfigError
from fedprox.methods.merging.centered_clipping import centered_clipping
from fedprox.methods.merging.geometric_median import geometric_median
from fedprox.methods.merging.krum import krum, multi_krum
from fedprox.methods.merging.median import median
from fedprox.methods.merging.rule import MergeRule, check_merging, mean, merge_received
from fedprox.methods.merging.stacked_sums import StackedReplies
from fedprox.methods.merging.sums import ReplySums, RoundSum
from fedprox.methods.merging.trimmed_mean import trimmed_mean
from fedprox.methods.method import Method

__all__ = [
    "MergeRule",
    "ReplySums",
    "RoundSum",
    "StackedReplies",
    "build",
    "centered_clipping",
    "check_merging",
    "geometric_median",
    "krum",
    "mean",
    "median",
    "merge_received",
    "multi_krum",
    "trimmed_mean",
]


def build(
    config: MergeConfig, method: Method, privacy: PrivacyConfig, per_round: int, given: MergeRule | None = None
) -> MergeRule:
    """Return the rule that the config names, or that is given, checked against the rest of the config."""
    rule: MergeRule = build_part("merge", "merge.rule", config) if given is None else given
    check_kind(rule, MergeRule, "a MergeRule", "merge.rule", config.rule if given is None else type(given).__name__)
    check_merging(rule, method, privacy)
    if per_round < rule.least_replies:
        raise ConfigError(
            f"`devices.per_round` must be at least {rule.least_replies} with merge.rule = {rule.name!r}; "
            f"got {per_round}"
        )
    return rule
