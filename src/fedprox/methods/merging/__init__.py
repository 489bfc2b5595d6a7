"""Merging: how the replies of a round become one.

There are two kinds of rules. The mean is a sum, so that replies are added up as they arrive (`RoundSum`) and none is
kept. Every other rule sees all replies of a round at once.
"""

from __future__ import annotations

from fedprox.config import MergeConfig, PrivacyConfig
from fedprox.config.parts import build_part, check_kind
from fedprox.methods.merging.median import median
from fedprox.methods.merging.rule import MergeRule, check_merging, mean, merge_received
from fedprox.methods.merging.sums import ReplySums, RoundSum
from fedprox.methods.method import Method

__all__ = [
    "MergeRule",
    "ReplySums",
    "RoundSum",
    "build",
    "check_merging",
    "mean",
    "median",
    "merge_received",
]


def build(config: MergeConfig, method: Method, privacy: PrivacyConfig, given: MergeRule | None = None) -> MergeRule:
    """Return the rule that the config names, or that is given, checked against what the method and privacy allow."""
    rule: MergeRule = build_part("merge", "merge.rule", config) if given is None else given
    check_kind(rule, MergeRule, "a MergeRule", "merge.rule", config.rule if given is None else type(given).__name__)
    check_merging(rule, method, privacy)
    return rule
