"""What the paper's theorems say about a run: for every round rho^t of Corollary 9, and which assumption holds or fails.

The run is repeated from its config, and if the records do not hold gamma the chosen devices are solved again:
about twice the time of the run, more where all devices are solved. The constants are B(w^t) and ||grad f(w^t)|| over
all devices, the largest gamma_k^t, and L and L_minus as an upper bound over devices. The theorems are about
expectations: the decrease of a single round is shown next to the predicted one and not judged.

Corollary 9 takes gamma^t over the chosen devices, but its proof bounds means over all devices: one that diverges makes
the expectation arbitrarily large, even in rounds that happen not to draw it. The result is therefore a certificate only
where gamma was measured on every device that could have been drawn and the bounds on curvature hold for every w (convex
models with a known bound). Anything else is an estimate.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from fedprox import data
from fedprox.config import Config
from fedprox.core.errors import ConfigError, FedProxError
from fedprox.core.trees import is_finite
from fedprox.models import Model
from fedprox.models.initial_model import initial_params
from fedprox.population import Population
from fedprox.runs.folder import read_history
from fedprox.runs.history import History
from fedprox.runs.identity import read_config
from fedprox.runs.replaced import Replaced, check_present, check_replaced, describe_parts, part_label
from fedprox.solvers import Solver
from fedprox.theory.admissible import failing
from fedprox.theory.choices import Choice, best_mu, smallest_mu
from fedprox.theory.decrease import rho
from fedprox.theory.estimates import Smoothness, dissimilarity_along, smoothness
from fedprox.theory.expectation import FEWEST, Expectation, check_decrease, uncovered
from fedprox.theory.replay import Devices, largest
from fedprox.theory.trajectory import Round, Trajectory, again, check_same
from fedprox.training.train import train

__all__ = ["Certificate", "NotCoveredError", "certify"]


class NotCoveredError(FedProxError):
    """A run that the paper's theorems do not cover."""

    exit_code = 2


GammaOver = Literal["every device", "the chosen devices"]


@dataclass(frozen=True)
class Certificate:
    """The theorems applied to a run."""

    run: str
    smoothness: Smoothness
    K: int
    B_epsilon: float  # the largest B(w^t) where ||grad f(w^t)||^2 > epsilon
    epsilon: float
    rounds: tuple[Round, ...]
    assumptions: tuple[str, ...]
    smallest_mu: Choice  # for the largest gamma and B of the run
    best_mu: Choice
    gamma_over: GammaOver
    expectation: Expectation | None

    @property
    def is_proof(self) -> bool:
        """Whether the constants are known, not estimated: curvature bounded for every w, gamma of every device."""
        return self.smoothness.is_bound and self.gamma_over == "every device"

    @property
    def positive(self) -> int:
        """In how many rounds rho^t is positive."""
        return sum(row.rho is not None and row.rho > 0 for row in self.rounds)

    @property
    def guaranteed(self) -> int:
        """In how many rounds a decrease is certain in expectation; 0 where the constants are estimates."""
        return self.positive if self.is_proof else 0

    @property
    def kind(self) -> str:
        """The kind of result: "certificate", "no certificate" or "estimate, not certificate"."""
        if not self.is_proof:
            return "estimate, not certificate"
        return "certificate" if self.guaranteed else "no certificate"


_GIVEN_AGAIN = ("data", "model", "solver")  # parts from Python without which the run cannot be repeated
_LEAVE_THE_ROUNDS_ALONE = ("metrics", "stopping", "engine")


def certify(
    run: str | Path,
    *,
    population: Population | None = None,
    model: Model | None = None,
    solver: Solver | None = None,
    epsilon: float = 0.0,
    resample: int = 0,
    round: int = 1,
    most_devices: int = 100,
) -> Certificate:
    """Apply the theorems to a run folder; raises `NotCoveredError` if they do not cover it.

    Args:
      run: the run folder.
      population, model, solver: the object that was given to `train`, if one was.
      epsilon: only rounds with ||grad f(w^t)||^2 > epsilon count for B_epsilon.
      resample: how many sets of devices to draw to test the expectation; 0 for no test.
      round: the round to test.
      most_devices: up to how many devices gamma is measured on every one of them, which a certificate needs; beyond
        that on the chosen ones. Also how many devices' curvature is estimated, for a model without a known bound.
    """
    config, replaced = read_config(run)
    metrics, recorded = read_history(run), read_history(run, "devices")
    _check_arguments(len(recorded), resample, round, epsilon, most_devices)
    _refuse(config, replaced, recorded, resample)
    replaced = {part: record for part, record in replaced.items() if part in _GIVEN_AGAIN}
    given: dict[str, Any] = {"data": population, "model": model, "solver": solver}
    check_present(run, replaced, given)
    population = population or data.load(config)
    model = model or data.model_for(config, population)
    described = describe_parts({part: given[part] for part in replaced}, initial_params(config, model))
    check_replaced(run, replaced, described)
    devices = Devices(config, population, model, solver)
    try:
        gamma_over: GammaOver = "every device"
        if population.devices > most_devices or config.systems.model == "clock":
            gamma_over = "the chosen devices"  # on a clock the work of a device depends on when it is asked
        everyone = range(population.devices) if gamma_over == "every device" else ()
        seen = Trajectory(devices, recorded, at=round - 1 if resample else -1, everyone=everyone)
        train(again(config, len(recorded)), population=given["data"], model=model, solver=solver, callbacks=[seen])
        if config.measure.devices == 0:  # otherwise the record has the losses of a sample of the devices
            check_same(run, metrics, seen.losses)
        points = [params for params in (seen.first, seen.last) if is_finite(params)]
        smooth = smoothness(population, model, points, most_devices=most_devices)
        is_proof = smooth.is_bound and gamma_over == "every device"
        rows = tuple(_judged(row, config.devices.per_round, smooth, is_proof) for row in seen.rows)
        expectation = None
        if resample:
            expectation = check_decrease(
                devices,
                population,
                smooth,
                round=round,
                params=seen.kept,
                mu=rows[round - 1].mu,
                K=config.devices.per_round,
                sets=resample,
                seed=config.seed,
            )
    finally:
        devices.close()
    return _certificate(run, config, smooth, rows, epsilon, gamma_over, expectation)


def _check_arguments(rounds: int, resample: int, round: int, epsilon: float, most_devices: int) -> None:
    if resample != 0 and resample < FEWEST:
        raise ConfigError(f"`--resample` must be 0 or an integer >= {FEWEST}; got {resample}")
    if resample and not 1 <= round <= rounds:
        raise ConfigError(f"`--round` must be an integer from 1 to {rounds}, the run's rounds; got {round}")
    if not (epsilon >= 0 and math.isfinite(epsilon)):
        raise ConfigError(f"`--epsilon` must be a finite number >= 0; got {epsilon}")
    if most_devices < 1:
        raise ConfigError(f"`--devices` must be an integer >= 1; got {most_devices}")


def _refuse(config: Config, replaced: Replaced, recorded: History, resample: int) -> None:
    reasons = []
    if others := [part for part in replaced if part not in (*_GIVEN_AGAIN, *_LEAVE_THE_ROUNDS_ALONE)]:
        reasons.append(f"its {others[0]} was given from Python ({part_label(replaced[others[0]])})")
    if config.method.name != "fedprox":
        reasons.append(f"`method.name` must be 'fedprox'; it is {config.method.name!r}")
    if config.devices.sampling != "proportional":
        reasons.append(
            "`devices.sampling` must be 'proportional' (K independent draws with p_k, Algorithm 2); "
            f"it is {config.devices.sampling!r}"
        )
    if config.systems.runs_on_events:
        reasons.append(f"`systems.server` must wait for every reply to w^t; it is {config.systems.server!r}")
    if dropped := [row["round"] for row in recorded if not all(row["kept"])]:
        reasons.append(f"no device may be dropped; round {dropped[0]} dropped some")
    if away := [row["round"] for row in recorded if row.get("away", 0) > 0]:
        reasons.append(f"every device must be available; in round {away[0]} some were away, so draws were not by p_k")
    if config.measure.devices and not isinstance(config.method.mu, float):
        reasons.append(f"`measure.devices` must be 0 where mu follows the loss; it is {config.measure.devices}")
    if resample and config.devices.stragglers > 0:
        reasons.append(
            "an expectation over devices needs `devices.stragglers` = 0, since otherwise the work of a device depends "
            f"on who else is drawn; it is {config.devices.stragglers}"
        )
    if resample and config.systems.model == "clock":
        reasons.append("an expectation over devices needs all of E epochs from each, and `systems.model` is 'clock'")
    if reasons:
        raise NotCoveredError("the theorems do not cover this run: " + "; ".join(reasons))
    if not len(recorded):
        raise NotCoveredError("the theorems are about rounds, and this run has none yet")


def _judged(row: Round, K: int, smooth: Smoothness, is_proof: bool) -> Round:
    """Return the row with what the theorem says about it."""
    if reason := uncovered(mu=row.mu, gamma=row.gamma, B=row.B, L_minus=smooth.L_minus):
        return replace(row, says=f"not covered: {reason}")
    value = rho(mu=row.mu, gamma=row.gamma, B=row.B, K=K, L=smooth.L, L_minus=smooth.L_minus)
    if value > 0:
        says = "decrease in expectation" if is_proof else "estimate: decrease in expectation"
        return replace(row, rho=value, predicted=value * row.gradient_norm2, says=says)
    broken = failing(gamma=row.gamma, B=row.B, K=K)
    needed = smallest_mu(gamma=row.gamma, B=row.B, K=K, L=smooth.L, L_minus=smooth.L_minus)
    why = str(broken) if broken is not None else f"mu must be above {needed.value:.4g}"
    return replace(row, rho=value, says=f"no guarantee: {why}")


def _certificate(
    run: str | Path,
    config: Config,
    smooth: Smoothness,
    rows: tuple[Round, ...],
    epsilon: float,
    gamma_over: GammaOver,
    expectation: Expectation | None,
) -> Certificate:
    K = config.devices.per_round
    gamma = largest(row.gamma for row in rows)
    b = dissimilarity_along([(row.gradient_norm2, row.B) for row in rows], epsilon)
    if reason := uncovered(mu=math.inf, gamma=gamma, B=b, L_minus=0.0):
        smallest = best = Choice(None, f"no mu for all rounds: {reason}")
    else:
        known = {"gamma": gamma, "B": b, "K": K, "L": smooth.L, "L_minus": smooth.L_minus}
        smallest, best = smallest_mu(**known), best_mu(**known)
    return Certificate(
        run=str(run),
        smoothness=smooth,
        K=K,
        B_epsilon=b,
        epsilon=epsilon,
        rounds=rows,
        assumptions=_assumptions(rows, K, smooth, gamma_over),
        smallest_mu=smallest,
        best_mu=best,
        gamma_over=gamma_over,
        expectation=expectation,
    )


def _assumptions(rows: tuple[Round, ...], K: int, smooth: Smoothness, gamma_over: GammaOver) -> tuple[str, ...]:
    def counted(name: str, holds: list[bool]) -> str:
        if all(holds):
            return f"holds: {name}"
        first = holds.index(False) + 1
        return f"fails in {holds.count(False)} of {len(holds)} rounds, first in round {first}: {name}"

    known = [row.gamma <= 1 and math.isfinite(row.B) for row in rows]
    sharp = [k and failing(gamma=row.gamma, B=row.B, K=K) is None for k, row in zip(known, rows, strict=True)]
    return (
        "holds: FedProx, K independent draws with p_k, merged with 1/K, no device dropped",
        f"{'holds' if smooth.is_bound else 'estimated'}: F_k are L-smooth with curvature of at least -L_minus",
        counted("mu > L_minus", [row.mu > smooth.L_minus for row in rows]),
        *(["estimated: gamma, which is known of the chosen devices alone"] if gamma_over != "every device" else []),
        counted(f"gamma <= 1 on {gamma_over}", [row.gamma <= 1 for row in rows]),
        counted("B(w^t) is finite", [math.isfinite(row.B) for row in rows]),
        counted("gamma*B + sqrt(2)*B*(1 + gamma)/sqrt(K) < 1 (some mu will do)", sharp),
        counted("rho > 0 (this mu will do)", [row.rho is not None and row.rho > 0 for row in rows]),
    )
