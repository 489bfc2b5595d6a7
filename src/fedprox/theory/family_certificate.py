"""What is guaranteed for a run of S-DANE, FedExProx or exact ADMM (`fedprox.theory.family`), from its records and data.

The guarantees cover convex losses with every device in every round and one mu. Convexity and L come from the model's
known bound; delta of S-DANE is L, since the Hessians lie between 0 and L, and exact for least squares, whose Hessians
are constant. Devices solve exactly with the closed form. For S-DANE recorded gammas serve as well: with
||grad h_k(w_k)|| = gamma_k ||g^t|| and, as grad h_k is (L + mu)-Lipschitz, ||w_k - v^t|| >= (1 - gamma_k) ||g^t|| /
(L + mu), the condition of a round holds where

    (L + mu)^2 sum_k p_k gamma_k^2  <=  mu (mu - delta) sum_k p_k (1 - gamma_k)^2        and all gamma_k <= 1

No run is repeated. The distance to a minimiser is not known, so bounds are given as multiples of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedprox import data
from fedprox.config import Config
from fedprox.models import Model
from fedprox.population import Population
from fedprox.runs.folder import read_history
from fedprox.runs.history import History
from fedprox.runs.identity import read_config
from fedprox.runs.replaced import check_present
from fedprox.theory.certificate import NotCoveredError
from fedprox.theory.estimates import Smoothness, smoothness
from fedprox.theory.family import fedexprox_largest_step

__all__ = ["FAMILY", "FamilyCertificate", "certify_family"]

FAMILY = ("sdane", "fedexprox", "fedadmm")


@dataclass(frozen=True)
class Checked:
    """A condition of a theorem, and whether it holds; None: it cannot be checked, and the guarantee assumes it."""

    holds: bool | None
    what: str

    def __str__(self) -> str:
        return f"{'assumed' if self.holds is None else 'holds' if self.holds else 'fails'}: {self.what}"


@dataclass(frozen=True)
class FamilyCertificate:
    """A theorem of `fedprox.theory.family` applied to a run."""

    run: str
    method: str
    conditions: tuple[Checked, ...]
    guarantee: str  # what the theorem says where all conditions hold

    @property
    def kind(self) -> str:
        """The kind of result: "certificate", "certificate under an assumption" or "no certificate"."""
        if any(each.holds is False for each in self.conditions):
            return "no certificate"
        assumed = any(each.holds is None for each in self.conditions)
        return "certificate under an assumption" if assumed else "certificate"


@dataclass(frozen=True)
class _Case:
    """A run with one mu, and what is known about its problem."""

    config: Config
    recorded: History
    population: Population
    model: Model
    smooth: Smoothness

    @property
    def mu(self) -> float:
        return float(self.recorded[0]["mu"])

    @property
    def rounds(self) -> int:
        return len(self.recorded)


def certify_family(
    run: str | Path, *, population: Population | None = None, model: Model | None = None
) -> FamilyCertificate:
    """Check the conditions of the theorem about a run's method; raise `NotCoveredError` where there is none.

    Args:
      run: the run folder.
      population, model: the object that was given to `train`, if one was.
    """
    config, replaced = read_config(run)
    if config.method.name not in FAMILY:
        raise NotCoveredError(f"fedprox has no theorem on `method.name` = {config.method.name!r}")
    recorded = read_history(run, "devices")
    if not len(recorded):
        raise NotCoveredError("the theorems are about rounds, and this run has none yet")
    given = {"data": population, "model": model}
    check_present(run, {part: record for part, record in replaced.items() if part in given}, given)
    population = population or data.load(config)
    model = model or data.model_for(config, population)
    conditions = list(_common(config, recorded, population, model))
    if not conditions[0].holds or not isinstance(config.method.mu, float):
        return FamilyCertificate(str(run), config.method.name, tuple(conditions), "nothing")
    case = _Case(config, recorded, population, model, smoothness(population, model))
    judge = {"sdane": _sdane, "fedexprox": _fedexprox, "fedadmm": _fedadmm}[config.method.name]
    more, guarantee = judge(case)
    return FamilyCertificate(str(run), config.method.name, (*conditions, *more), guarantee)


def _common(config: Config, recorded: History, population: Population, model: Model) -> Iterator[Checked]:
    yield Checked(model.curvature_bound is not None, f"the loss is convex, with a bound on its curvature: {model.name}")
    yield Checked(isinstance(config.method.mu, float), f"`method.mu` is one number; it is {config.method.mu!r}")
    away = [row["round"] for row in recorded if len(row["device"]) < population.devices or not all(row["kept"])]
    uniform = config.devices.sampling == "uniform" and not config.systems.runs_on_events
    found = f"; not in {len(away)} of {len(recorded)} rounds" if away else ""
    yield Checked(uniform and not away, f"every device takes part in every round, with weight p_k{found}")
    plain = config.merge.rule == "mean" and config.attack.share == 0 and config.privacy.clip == 0
    yield Checked(plain, "replies are averaged as they are: no other merge rule, attack or privacy")
    personal = config.personal.parameters + config.personal.frozen
    yield Checked(not personal, "all parameters are shared")


def _is_exact(config: Config, recorded: History) -> Checked:
    worked = all(steps > 0 for row in recorded for steps in row["steps"])
    holds = config.solver.name == "closed_form" and worked
    return Checked(holds, f"devices solve exactly (`solver.name` = 'closed_form'); it is {config.solver.name!r}")


def _sdane(case: _Case) -> tuple[list[Checked], str]:
    mu, rounds = case.mu, case.rounds
    delta = _least_squares_delta(case.population) if case.model.name == "linear_regression" else case.smooth.L
    checked = [Checked(mu > delta, f"mu > delta, how far second derivatives differ: {mu:.6g} against {delta:.6g}")]
    exact = _is_exact(case.config, case.recorded)
    if exact.holds:
        checked.append(exact)
    elif not all("gamma" in row for row in case.recorded):
        checked.append(Checked(False, "the accuracy of the devices is known (`measure.gamma` = true)"))
    else:
        failed = [row["round"] for row in case.recorded if not _accurate(row, mu, delta, case.smooth.L)]
        where = f"; not in {len(failed)} of {rounds} rounds, first in round {failed[0]}" if failed else ""
        checked.append(Checked(not failed, f"devices are accurate enough, by their gamma{where}"))
    bound = mu / (2 * rounds)
    return checked, f"the mean of f(w^t) - f(x*) over rounds 1 to {rounds} is at most {bound:.6g} ||w^0 - x*||^2"


def _accurate(row: dict[str, Any], mu: float, delta: float, L: float) -> bool:
    gammas = np.array([np.inf if gamma is None else gamma for gamma in row["gamma"]])
    weights = np.array(row["weight"])
    if not (gammas <= 1).all():
        return False
    return bool((L + mu) ** 2 * (weights @ gammas**2) <= mu * (mu - delta) * (weights @ (1 - gammas) ** 2))


def _least_squares_delta(population: Population) -> float:
    """Return the largest ||A_k - A|| of the Hessians A_k = X_k' X_k / n_k, with a column of ones for the bias."""
    hessians = []
    for device in range(population.devices):
        x = population.train.of(device)[0]
        rows = np.hstack([np.ones((len(x), 1)), x.reshape(len(x), -1)]).astype(np.float64)
        hessians.append(rows.T @ rows / len(rows))
    mean = sum(mass * each for mass, each in zip(population.masses, hessians, strict=True))
    return max(float(np.linalg.norm(each - mean, 2)) for each in hessians)


def _fedexprox(case: _Case) -> tuple[list[Checked], str]:
    mu, rounds = case.mu, case.rounds
    step: float | str = getattr(case.config.method, "extrapolation", "auto")
    checked = [Checked(mu > 0, f"mu > 0; it is {mu:.6g}"), _is_exact(case.config, case.recorded)]
    if mu > 0 and not isinstance(step, str):
        most = fedexprox_largest_step(mu=mu, L=case.smooth.L)
        checked.append(Checked(step <= most, f"the extrapolation is at most 1 + mu / L = {most:.6g}; it is {step:g}"))
    checked.append(Checked(None, "one x* minimises every F_k (interpolation)"))
    if isinstance(step, str):
        return checked, "||w^t - x*||^2 falls in every round, by at least the step times the mean of ||w_k - w^t||^2"
    bound = mu / (2 * step * rounds)
    return checked, f"the mean of the Moreau envelopes is within {bound:.6g} ||w^0 - x*||^2 of its minimum"


def _fedadmm(case: _Case) -> tuple[list[Checked], str]:
    mu, rounds = case.mu, case.rounds
    factor = float(getattr(case.config.method, "penalty_factor", 2.0))
    checked = [
        Checked(factor == 1, f"the penalty is fixed (`method.penalty_factor` = 1); it is {factor:g}"),
        _is_exact(case.config, case.recorded),
    ]
    terms = f"{mu / (2 * rounds):.6g} ||w^0 - x*||^2 + {1 / (2 * mu * rounds):.6g} sum_k p_k ||grad F_k(x*)||^2"
    distance = "sum_k p_k (F_k(u_k) - F_k(x*) - <grad F_k(x*), u_k - x*>)"
    return checked, f"the mean over rounds 1 to {rounds} of {distance} is at most {terms}"
