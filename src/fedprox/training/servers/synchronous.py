"""The synchronous server: it plans a round, asks its devices and waits until the round is over."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from fedprox.core.errors import RunError
from fedprox.engines import Broadcast, Engine, RoundRequest, Shares
from fedprox.methods.mu import current_mu
from fedprox.participation.sampling import Losses
from fedprox.training.merge_step import MergeStep
from fedprox.training.plan import RoundPlan, plan_round, settle
from fedprox.training.run_parts import RunParts
from fedprox.training.servers.settled_round import SettledRound
from fedprox.training.tasks import build_tasks, gradient_tasks

__all__ = ["SynchronousServer"]


class SynchronousServer:
    """Runs the devices of a round on the engine, and repeats a round that had too few replies."""

    def __init__(
        self, parts: RunParts, engine: Engine, merge_step: MergeStep, save: Callable[[], None], losses: Losses
    ) -> None:
        self._losses = losses
        self._parts, self._engine, self._merge_step, self._save = parts, engine, merge_step, save
        self._config, self._method, self._state = parts.config, parts.method, parts.state

    def next_round(self) -> SettledRound:
        """Let the devices of the next round work."""
        repeated: list[dict[str, str]] = []
        while True:
            planned = self._plan()
            outcome = self._engine.solve(self._request(planned))
            if outcome.shortfall is None:
                plan = settle(planned, self._config, self._method, outcome.replied, outcome.cut_off)
                return SettledRound(plan, outcome, repeated)
            repeated.append({str(device): problem for device, problem in outcome.problems.items()})
            self._check_repeats(outcome.shortfall, repeated)

    def resume(self) -> None:
        """Continue: a round depends on nothing but the state."""

    def _plan(self) -> RoundPlan:
        return plan_round(
            self._config,
            self._parts.population,
            self._method,
            self._state.round + 1,
            clock=self._parts.clock,
            now=self._state.simulated_seconds,
            known=self._state.known,
            cohort_seed=secrets.randbits(64) if self._parts.secret_cohorts else None,
            choices=self._parts.own_choices,
            max_weight=self._parts.max_weight,
            losses=self._losses,
        )

    def _request(self, plan: RoundPlan) -> RoundRequest:
        """Return what the devices of a round are to do; methods that need gradients at w^t gather them here."""
        state, method, samples = self._state, self._method, len(self._parts.population.train)
        tasks = build_tasks(plan, samples, state.devices)
        mean_gradient, centre = None, method.centre(state.server, state.params)
        if method.needs_gradients:
            mean_gradient = self._engine.mean_gradient(gradient_tasks(plan, tasks, samples), centre)
        sent = method.send(state.server, mean_gradient)
        used_mu = method.subproblem_mu(current_mu(state.controller))
        broadcast = Broadcast(plan.round, centre, sent, used_mu, self._merge_step.wants_drift)

        def shares(replied: NDArray[np.bool_], cut_off: NDArray[np.bool_]) -> Shares:
            settled = settle(plan, self._config, method, replied, cut_off)
            return Shares(settled.work.straggler, settled.kept, settled.weights)

        return RoundRequest(
            tasks,
            broadcast,
            shares,
            gammas=self._config.measure.gamma,
            every_reply=self._merge_step.needs_every_reply,
            merge=self._merge_step.merged,
        )

    def _check_repeats(self, shortfall: str, repeated: Sequence[Mapping[str, str]]) -> None:
        """End the run, resumable, if a round has been repeated often enough."""
        if len(repeated) > self._config.deploy.repeats:
            self._save()
            last = ", ".join(f"device {device}: {problem}" for device, problem in repeated[-1].items())
            raise RunError(
                f"{shortfall}; it had fewer {len(repeated)} times ({last}); a larger `deploy.grace` gives late devices "
                "more time"
            )
