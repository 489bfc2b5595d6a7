"""What the paper's theorems say about a run: for every round rho^t of Corollary 9, and which assumption holds or fails.

The run is taken again from its config, and where the records do not hold gamma the chosen devices are solved once more:
about twice the time of the run. The constants are B(w^t) and ||grad f(w^t)|| over all devices, the largest gamma_k^t
over the chosen devices, and L and L_minus as an upper bound over devices. The result is a certificate where these
bounds hold for every w (convex models that know one), and an estimate elsewhere. The theorems are about expectations:
the decrease of a single round is shown beside the predicted one and not judged.

Corollary 9 takes gamma^t over the chosen devices, as the table does, but its proof bounds means over all devices. The
test of the expectation therefore takes the largest over all of them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path

from fedprox import data
from fedprox.config import Config
from fedprox.core.errors import ConfigError, FedProxError
from fedprox.core.trees import is_finite
from fedprox.models import Model
from fedprox.population import Population
from fedprox.runs.folder import read_history
from fedprox.runs.history import History
from fedprox.solvers import Solver
from fedprox.theory.admissible import failing
from fedprox.theory.choices import Choice, best_mu, smallest_mu
from fedprox.theory.decrease import rho
from fedprox.theory.estimates import Smoothness, dissimilarity_along, smoothness
from fedprox.theory.expectation import FEWEST, Expectation, check_decrease, uncovered
from fedprox.theory.replay import Devices, largest
from fedprox.theory.trajectory import Round, Trajectory, again, check_same
from fedprox.training.loop import train

__all__ = ["Certificate", "NotCoveredError", "certify"]


class NotCoveredError(FedProxError):
    """A run that the paper's theorems are not about."""

    exit_code = 2


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
    expectation: Expectation | None

    @property
    def guaranteed(self) -> int:
        """In how many rounds rho^t is positive."""
        return sum(row.rho is not None and row.rho > 0 for row in self.rounds)

    @property
    def kind(self) -> str:
        """How much it is worth: "certificate", "no certificate" or "estimate, not certificate"."""
        if not self.smoothness.is_bound:
            return "estimate, not certificate"
        return "certificate" if self.guaranteed else "no certificate"


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
    """Apply the theorems to a run folder; raise `NotCoveredError` where they are not about such a run.

    Args:
      run: the run folder.
      population, model, solver: the objects that were given to `train`, if any were.
      epsilon: only rounds with ||grad f(w^t)||^2 > epsilon count for B_epsilon.
      resample: how many sets of devices to draw to test the expectation; 0 for no test.
      round: the round to test.
      most_devices: how many devices' curvature is estimated, for a model without a known bound.
    """
    config = Config.from_toml(Path(run) / "config.toml")
    metrics, recorded = read_history(run), read_history(run, "devices")
    _check_arguments(len(recorded), resample, round, epsilon, most_devices)
    _refuse(config, recorded, resample)
    population = population or data.load(config)
    model = model or data.model_for(config, population)
    devices = Devices(config, population, model, solver)
    try:
        seen = Trajectory(devices, recorded, at=round - 1 if resample else -1)
        train(again(config, len(recorded)), population=population, model=model, solver=solver, callbacks=[seen])
        if config.measure.devices == 0:  # otherwise the record has the losses of a sample of the devices
            check_same(run, metrics, seen.losses)
        points = [params for params in (seen.first, seen.last) if is_finite(params)]
        smooth = smoothness(population, model, points, most_devices=most_devices)
        rows = tuple(_judged(row, config.devices.per_round, smooth) for row in seen.rows)
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
    return _certificate(run, config, smooth, rows, epsilon, expectation)


def _check_arguments(rounds: int, resample: int, round: int, epsilon: float, most_devices: int) -> None:
    if resample != 0 and resample < FEWEST:
        raise ConfigError(f"`--resample` must be 0 or a whole number >= {FEWEST}; got {resample}")
    if resample and not 1 <= round <= rounds:
        raise ConfigError(f"`--round` must be a whole number from 1 to {rounds}, the run's rounds; got {round}")
    if not (epsilon >= 0 and math.isfinite(epsilon)):
        raise ConfigError(f"`--epsilon` must be a finite number >= 0; got {epsilon}")
    if most_devices < 1:
        raise ConfigError(f"`--devices` must be a whole number >= 1; got {most_devices}")


def _refuse(config: Config, recorded: History, resample: int) -> None:
    reasons = []
    if config.method.name != "fedprox":
        reasons.append(f"`method.name` must be 'fedprox'; it is {config.method.name!r}")
    if config.devices.sampling != "proportional":
        reasons.append(
            "`devices.sampling` must be 'proportional' (K independent draws with p_k, Algorithm 2); "
            f"it is {config.devices.sampling!r}"
        )
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


def _judged(row: Round, K: int, smooth: Smoothness) -> Round:
    """Return the row with what the theorem says about it."""
    if reason := uncovered(mu=row.mu, gamma=row.gamma, B=row.B, L_minus=smooth.L_minus):
        return replace(row, says=f"not covered: {reason}")
    value = rho(mu=row.mu, gamma=row.gamma, B=row.B, K=K, L=smooth.L, L_minus=smooth.L_minus)
    if value > 0:
        return replace(row, rho=value, predicted=value * row.gradient_norm2, says="decrease in expectation")
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
        assumptions=_assumptions(rows, K, smooth),
        smallest_mu=smallest,
        best_mu=best,
        expectation=expectation,
    )


def _assumptions(rows: tuple[Round, ...], K: int, smooth: Smoothness) -> tuple[str, ...]:
    def counted(name: str, holds: list[bool]) -> str:
        if all(holds):
            return f"holds: {name}"
        first = holds.index(False) + 1
        return f"fails in {holds.count(False)} of {len(holds)} rounds, first in round {first}: {name}"

    known = [row.gamma <= 1 and math.isfinite(row.B) for row in rows]
    sharp = [k and failing(gamma=row.gamma, B=row.B, K=K) is None for k, row in zip(known, rows, strict=True)]
    return (
        "holds: FedProx, K independent draws with p_k, merged with 1/K, nobody dropped",
        f"{'holds' if smooth.is_bound else 'estimated'}: F_k are L-smooth with curvature of at least -L_minus",
        counted("mu > L_minus", [row.mu > smooth.L_minus for row in rows]),
        counted("gamma <= 1 on every chosen device", [row.gamma <= 1 for row in rows]),
        counted("B(w^t) is finite", [math.isfinite(row.B) for row in rows]),
        counted("gamma*B + sqrt(2)*B*(1 + gamma)/sqrt(K) < 1 (some mu will do)", sharp),
        counted("rho > 0 (this mu will do)", [row.rho is not None and row.rho > 0 for row in rows]),
    )
