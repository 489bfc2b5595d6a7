"""The problem on which a local update is tested, and the correct update.

The model is linear in two layers, prediction = (x @ first) @ second, and a device's loss is least squares,

    F(w) = mean_i (prediction_i - y_i)^2 / 2.

The layers have different sizes, so that a term that is averaged or counted per layer shows. In a second problem, for
functions that take sparse embeddings, x holds integers and prediction = embedding[x] @ second.

The reference takes plain steps w <- w - eta (grad F(w) + mu (w - w^t)) in double precision. Its gradient of F and of
the proximal term comes from finite differences of h itself, so that it shares no derivation with the code under test.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Params", "Problem", "embedding_problem", "layers_problem"]

Array = NDArray[Any]
Params = dict[str, Array]


@dataclass(frozen=True)
class Problem:
    """A device's data, the model w^t it is sent, and how the model predicts."""

    params: Params
    x: Array
    y: Array
    predict: Callable[[Params, Array], Array]

    def loss(self, params: Params) -> float:
        """Return F."""
        return float(np.mean((self.predict(params, self.x) - self.y) ** 2) / 2)

    def subproblem(self, params: Params, mu: float) -> float:
        """Return h(w; w^t) = F(w) + (mu / 2) ||w - w^t||^2, the square summed over all entries of all layers."""
        distance2 = sum(float(np.sum((params[name] - self.params[name]) ** 2)) for name in self.params)
        return self.loss(params) + mu / 2 * distance2

    def gradient(self, params: Params, mu: float) -> Params:
        """Return grad h by central differences."""
        slopes = {}
        for name, array in params.items():
            slope = np.zeros_like(array)
            for index in np.ndindex(array.shape):
                step = 1e-5 * max(1.0, abs(float(array[index])))
                ends = []
                for sign in (1, -1):
                    moved = {**params, name: array.copy()}
                    moved[name][index] += sign * step
                    ends.append(self.subproblem(moved, mu))
                slope[index] = (ends[0] - ends[1]) / (2 * step)
            slopes[name] = slope
        return slopes

    def step(self, params: Params, mu: float, learning_rate: float) -> Params:
        """Return the parameters after one step with all samples."""
        slopes = self.gradient(params, mu)
        return {name: array - learning_rate * slopes[name] for name, array in params.items()}

    def steps(self, count: int, mu: float, learning_rate: float) -> Params:
        """Return the parameters after `count` steps from w^t."""
        params = self.params
        for _ in range(count):
            params = self.step(params, mu, learning_rate)
        return params


def layers_problem(*, samples: int = 6, features: int = 3, equal: bool = False) -> Problem:
    """Return the two-layer problem; with `equal` samples any mini-batch has the gradient of all."""
    random = np.random.default_rng(2020)
    x, y = random.normal(size=(samples, features)), 1.0 + random.normal(size=samples)
    if equal:
        x[:], y[:] = x[0], y[0]
    params = {"first": random.normal(size=(features, 4)), "second": random.normal(size=4)}
    return Problem(params, x, y, lambda params, x: (x @ params["first"]) @ params["second"])


def embedding_problem() -> Problem:
    """Return the problem with embeddings: five rows; one is used twice and two are not used at all."""
    random = np.random.default_rng(2021)
    params = {"embedding": random.normal(size=(5, 3)), "second": random.normal(size=3)}
    x, y = np.array([0, 3, 3, 1]), 1.0 + random.normal(size=4)
    return Problem(params, x, y, lambda params, x: params["embedding"][x] @ params["second"])
