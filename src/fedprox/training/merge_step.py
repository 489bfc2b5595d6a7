"""The step of a round that changes the model: replies are merged into the next model and what the server remembers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from fedprox import attacks
from fedprox.core.randomness import Purpose
from fedprox.core.trees import Tree, difference, scale, total
from fedprox.engines import RoundOutcome
from fedprox.methods import Method, Received, merging, mu
from fedprox.methods.custom_checks import merged_model
from fedprox.privacy import build_mechanism, seeded_normals
from fedprox.training.plan import RoundPlan
from fedprox.training.run_parts import RunParts
from fedprox.training.state import State

__all__ = ["MergeStep"]


class MergeStep:
    """Merges the replies of a round into the state of a run.

    Attributes:
      mechanism: of privacy; None where there is none.
      attackers: which devices attack, over all devices.
    """

    def __init__(self, parts: RunParts) -> None:
        self._parts, self._state, self._method = parts, parts.state, parts.method
        self.mechanism = build_mechanism(parts.config)
        self.attackers = attacks.choose_attackers(parts.config, parts.population.devices)
        self.is_attacked = bool(self.attackers.any())

    @property
    def needs_every_reply(self) -> bool:
        """Whether replies are merged one by one, not from their sums."""
        return self._parts.rule.needs_every_reply or self._method.needs_every_reply or self.is_attacked

    @property
    def wants_drift(self) -> bool:
        """Whether devices report how far they moved."""
        return mu.learns(self._state.controller) or self.mechanism is not None

    def merge(self, plan: RoundPlan, outcome: RoundOutcome) -> None:
        """Merge the replies of a round into the model and what the server remembers."""
        state, method, config = self._state, self._method, self._parts.config
        before = state.params
        averaged, summed = outcome.averaged, outcome.summed
        received = [reply for reply in outcome.replies or () if reply is not None]
        if received and self.is_attacked:
            seeds = {"seed": config.seed, "round": plan.round}
            received = attacks.corrupt(config.attack, received, self.attackers, self._unmoved(), **seeds)
        if received:  # privacy allows no rule or method that asks for them
            state.params, state.server = self.merged(received)
        else:
            if self.mechanism is not None:
                seeded = seeded_normals(config.seed, Purpose.SERVER_NOISE, plan.round)
                normals = self._parts.server_noise or seeded
                averaged = self.mechanism.model(method.shared(state.params), averaged, int(plan.kept.sum()), normals)
            if averaged is not None:
                state.params, state.server = _merged_by(method, method.merge, state, averaged, summed)
        if plan.mixing != 1:
            state.params = total(before, scale(difference(state.params, before), plan.mixing))

    def merged(self, received: Sequence[Received]) -> tuple[Tree, Tree]:
        """Return the model and the server's memory after a merge of replies; unchanged if there are none."""
        state, method = self._state, self._method
        if not received:
            return state.params, state.server
        if method.needs_every_reply:
            return _merged_by(method, method.merge_replies, state, received)
        averaged, summed = merging.merge_received(self._parts.rule, received, self._unmoved())
        return _merged_by(method, method.merge, state, averaged, summed)

    def _unmoved(self) -> Tree:
        """Return what a device sends to be averaged that stays at the model it was sent."""
        return self._method.unmoved(self._method.centre(self._state.server, self._state.params))


def _merged_by(method: Method, merge: Callable[..., Any], state: State, *replies: Any) -> tuple[Tree, Tree]:
    """Return what a method makes of replies; a custom one must return a model of the same names and shapes."""
    merged = merge(state.server, state.params, *replies)
    return merged_model(method, merge.__name__, merged, state.server, state.params)
