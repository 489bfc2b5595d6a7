"""The server's half of a round: from the devices' iterates w_k to the next model.

Partial work is averaged like any other (Algorithm 2); a method that drops stragglers drops those that the deadline cut
off. Sums run along the tree over the positions of the round's list, as in a simulation: equal replies give equal bits.
With `[privacy]` every update counts 1/K and the server adds the noise that the devices have not added. Where the noise
is the server's, so is the clipping: it need not trust a device to have done it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedprox.config import Config
from fedprox.core.trees import Tree, difference, flatten_names, quiet, scale, squared_distance, unflatten_names
from fedprox.deploy.messages import Named, Work
from fedprox.engines import RoundSum
from fedprox.methods import Method, Solution
from fedprox.methods.mu import Signals
from fedprox.participation.sampling import merge_weights
from fedprox.participation.stragglers import Workload
from fedprox.privacy import Normals, build_mechanism, clip, equal_weights, system_normals
from fedprox.solvers import Solver
from fedprox.training.plan import RoundPlan
from fedprox.training.state import State

__all__ = ["Merged", "linear_terms", "merge"]


@dataclass(frozen=True)
class Merged:
    """What a round came to; arrays in the order of its list."""

    params: Tree
    server: Tree
    remembered: dict[int, Tree]  # by device
    straggler: NDArray[np.bool_]
    kept: NDArray[np.bool_]
    weights: NDArray[np.float64]
    signals: Signals

    def record(self) -> dict[str, Any]:
        """Return who was merged with which weight, as fields of `devices.jsonl`."""
        return {
            "straggler": self.straggler.tolist(),
            "kept": self.kept.tolist(),
            "weight": self.weights.tolist(),
        }


def linear_terms(method: Method, state: State, devices: list[int]) -> dict[int, Named | None]:
    """Return c_k for each device, None where there is none."""
    sent = method.send(state.server, None)
    terms = {device: method.linear(sent, _remembered(method, state, device), None) for device in devices}
    return {device: None if term is None else flatten_names(term) for device, term in terms.items()}


@quiet
def merge(
    config: Config,
    method: Method,
    solver_for: Callable[[int], Solver],
    state: State,
    plan: RoundPlan,
    masses: NDArray[np.float64],
    work: Mapping[int, Work],
    normals: Normals = system_normals,
) -> Merged:
    """Merge the checked replies of a round; `work` has those that may be merged, by device."""
    mechanism = build_mechanism(config)
    devices = plan.cohort.devices.tolist()
    replied = np.array([device in work for device in devices], bool)
    given = Workload(plan.work.straggler | _cut_off(plan, work), plan.work.epochs, plan.work.budget)
    kept = method.kept(given) & ~plan.failed & replied
    if mechanism is None:
        weights = merge_weights(config.devices.sampling, plan.cohort, kept)
    else:
        weights = equal_weights(mechanism.per_round, kept)
    weight_of = dict(zip(devices, weights.tolist(), strict=True))
    iterates = {
        device: unflatten_names(work[device].params, like=state.params)
        for device, keep in zip(devices, kept, strict=True)
        if keep
    }
    replies = {
        device: method.reply(
            Solution(
                anchor=state.params,
                params=iterate,
                steps=work[device].steps,
                learning_rate=config.solver.learning_rate,
                mu=method.subproblem_mu(state.controller.mu),
                solver=solver_for(device),
                sent=method.send(state.server, None),
                state=_remembered(method, state, device),
            )
        )
        for device, iterate in iterates.items()
    }
    params, server = state.params, state.server
    if mechanism is not None:
        updates = {device: difference(iterate, params) for device, iterate in iterates.items()}
        if not mechanism.on_devices:
            updates = {device: clip(update, mechanism.clip) for device, update in updates.items()}
        mean = _sum(devices, updates, lambda device, update: scale(update, weight_of[device]))
        private = mechanism.model(params, mean, len(updates), normals)
        params, server = method.merge(state.server, state.params, private, None)
    elif kept.any():
        averaged = _sum(devices, replies, lambda device, reply: scale(reply.averaged, weight_of[device]))
        summed = _sum(devices, replies, lambda device, reply: scale(reply.summed, float(masses[device])))
        params, server = method.merge(state.server, state.params, averaged, summed)
    return Merged(
        params,
        server,
        {device: reply.state for device, reply in replies.items() if reply.state is not None},
        given.straggler,
        kept,
        weights,
        Signals(
            None,
            tuple(weights[kept].tolist()),
            tuple(squared_distance(iterates[device], state.params) for device in devices if device in iterates),
            squared_distance(params, state.params),
        ),
    )


def _cut_off(plan: RoundPlan, work: Mapping[int, Work]) -> NDArray[np.bool_]:
    """Mark the devices that the deadline stopped before their budget was spent."""
    steps = [work[device].steps if device in work else 0 for device in plan.cohort.devices.tolist()]
    timed = [device in work and work[device].stopped_by_time for device in plan.cohort.devices.tolist()]
    return np.array(timed, bool) & (np.array(steps) < plan.work.budget)


def _remembered(method: Method, state: State, device: int) -> Tree:
    remembered = state.devices.get(device)
    return method.start_device(state.params) if remembered is None else remembered


def _sum(devices: list[int], replies: Mapping[int, Any], part: Callable[[int, Any], Tree]) -> Tree:
    """Add up a part of the replies along the tree over all positions; a device without one adds nothing at its own."""
    total = RoundSum(len(devices))
    for position, device in enumerate(devices):
        if device in replies:
            total.add(position, part(device, replies[device]))
    return total.result()
