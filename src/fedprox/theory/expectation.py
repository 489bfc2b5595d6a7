"""A test of the expectation of Theorem 4 at one round.

    E[f(w^(t+1))] <= f(w^t) - rho ||grad f(w^t)||^2

The expectation is over the K devices, drawn with probabilities p_k. All devices are solved once from w^t; then many
sets are drawn, merged and measured, which gives the mean of f(w^(t+1)) with a confidence interval. gamma is the largest
over all devices: every one may be drawn.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import jax
import numpy as np
from numpy.typing import NDArray

from fedprox.core.randomness import Purpose, words
from fedprox.core.trees import Tree
from fedprox.participation.sampling import owners
from fedprox.population import Population
from fedprox.theory.decrease import rho
from fedprox.theory.estimates import Smoothness
from fedprox.theory.replay import Devices, largest

__all__ = ["FEWEST", "Expectation", "check_decrease", "uncovered"]

FEWEST = 30  # sets for which the mean is near enough to normal
_QUANTILE = 1.959964  # of the standard normal distribution, for 95%

Verdict = Literal["holds", "violated", "undecided", "no guarantee", "not covered"]


@dataclass(frozen=True)
class Expectation:
    """The outcome at one round."""

    round: int  # the round that leads from w^t, t = round - 1, to w^(t+1)
    sets: int
    gamma: float  # the largest over all devices
    B: float
    rho: float | None
    loss: float  # f(w^t)
    bound: float | None  # f(w^t) - rho ||grad f(w^t)||^2
    mean: float | None  # of f(w^(t+1)) over the sets
    low: float | None  # 95% confidence interval of the expectation
    high: float | None
    verdict: Verdict
    sentence: str


def check_decrease(
    devices: Devices,
    population: Population,
    smooth: Smoothness,
    *,
    round: int,
    params: Tree,
    mu: float,
    K: int,
    sets: int,
    seed: int,
) -> Expectation:
    """Draw `sets` sets of K devices for the round that starts from `params` = w^t, and compare with the theorem."""
    everyone = range(population.devices)
    solutions = devices.solutions(round, everyone, [devices.full_budget(k) for k in everyone], params, mu)
    gamma = largest(devices.inexactness(k, solutions[k], params, mu) for k in everyone)
    b, loss = devices.dissimilarity(params), devices.loss(params)
    if reason := uncovered(mu=mu, gamma=gamma, B=b, L_minus=smooth.L_minus):
        return Expectation(
            round, 0, gamma, b, None, loss, None, None, None, None, "not covered", f"not covered: {reason}"
        )
    decrease = rho(mu=mu, gamma=gamma, B=b, K=K, L=smooth.L, L_minus=smooth.L_minus)
    bound = loss - decrease * devices.gradient_norm2(params)
    losses = [devices.loss(_merged(solutions, counts)) for counts in _sets(population, K, sets, seed, round)]
    mean = float(np.mean(losses))
    half = _QUANTILE * float(np.std(losses, ddof=1)) / math.sqrt(sets)
    verdict = _verdict(decrease, bound, mean - half, mean + half)
    allowed = f"rho = {decrease:.4g}, and the theorem says nothing where it is not positive"
    if decrease > 0:
        allowed = f"the theorem allows at most {bound:.8g}"
    sentence = (
        f"E[f(w^(t+1))] is {mean:.8g}, 95% interval {mean - half:.8g} to {mean + half:.8g} over {sets} sets; "
        f"{allowed}: {verdict}"
    )
    return Expectation(round, sets, gamma, b, decrease, loss, bound, mean, mean - half, mean + half, verdict, sentence)


def uncovered(*, mu: float, gamma: float, B: float, L_minus: float) -> str | None:
    """Return why the theorems do not cover a round, or None if they do.

    >>> uncovered(mu=1.0, gamma=1.3, B=1.1, L_minus=0.0)
    'a measured gamma is 1.3, and Definition 2 requires at most 1'
    """
    if not gamma <= 1:  # also where it is not a number
        return f"a measured gamma is {gamma:.4g}, and Definition 2 requires at most 1"
    if not math.isfinite(B):
        return "grad f(w^t) is 0 and the devices' gradients are not, so that B(w^t) is infinite"
    if not mu > L_minus:
        return f"mu must be above L_minus = {L_minus:.4g}; it is {mu:.4g}"
    return None


def _verdict(decrease: float, bound: float, low: float, high: float) -> Verdict:
    if decrease <= 0:
        return "no guarantee"
    if high <= bound:
        return "holds"
    return "violated" if low > bound else "undecided"


def _sets(population: Population, K: int, sets: int, seed: int, round: int) -> list[NDArray[np.int64]]:
    """Return how often each device is drawn, for each set: K draws with probabilities n_k / n."""
    offsets = population.train.offsets
    drawn = []
    for number in range(sets):
        random = words(K, seed, Purpose.RESAMPLED_DEVICES, round, number)
        drawn.append(np.bincount(owners(random, offsets), minlength=population.devices))
    return drawn


def _merged(solutions: list[Tree], counts: NDArray[np.int64]) -> Tree:
    weights = counts / counts.sum()
    chosen = np.flatnonzero(counts)

    def mean(*leaves: NDArray[np.float32]) -> NDArray[np.float32]:
        total = sum(weight * leaf.astype(np.float64) for weight, leaf in zip(weights[chosen], leaves, strict=True))
        return np.asarray(total, leaves[0].dtype)

    return jax.tree.map(mean, *(solutions[k] for k in chosen))
