"""The subproblem in its general form: anchor and start of the device's own, mu by device and group of parameters."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import jax
import numpy as np
import optax
import pytest

import fedprox
from conftest import population_of
from fedprox import solvers
from fedprox.adapters.scipy import scipy_solver
from fedprox.core.errors import ConfigError, RunError
from fedprox.core.trees import difference, scale, to_numpy, total
from fedprox.methods import DeviceView, Method, Reply, Solution
from fedprox.models import Model, linear_regression
from fedprox.population import Samples
from fedprox.population.loaded_samples import LoadedSamples, to_backend
from fedprox.solvers import LocalProblem
from fedprox.solvers.inexactness import inexactness
from fedprox.solvers.subproblem import Subproblem, place_mu
from in_process_ray import cluster_of

# F(w, b) = ((w - 1)^2 + (b - 2)^2) / 2: the mean of (w x + b - y)^2 / 2 over the two samples.
X, Y = np.array([[1.0], [-1.0]], np.float32), np.array([3.0, 1.0], np.float32)
ANCHOR = {"bias": np.array([-1.0], np.float32), "weight": np.array([3.0], np.float32)}
START = {"bias": np.array([5.0], np.float32), "weight": np.array([0.5], np.float32)}
LINEAR = {"bias": np.array([0.2], np.float32), "weight": np.array([-0.4], np.float32)}
MU = {"bias": 0.5, "weight": 2.0}
EXACT = {
    name: (own - LINEAR[name] + MU[name] * ANCHOR[name]) / (1 + MU[name]) for name, own in (("bias", 2), ("weight", 1))
}


def descend(params, x, y, subproblem, budget, key):
    """Gradient steps by hand; a model's own gradient, and the terms as the view has them."""
    for _ in range(budget):
        residual = x[:, 0] * params["weight"] + params["bias"] - y
        own = {"weight": np.mean(residual * x[:, 0]), "bias": np.mean(residual)}
        for name in params:
            proximal = subproblem.mu[name] * (params[name] - subproblem.anchor[name])
            params[name] = params[name] - 0.2 * (own[name] + subproblem.linear[name] + proximal)
    return params, budget


@cache
def torch_parts() -> tuple[Model, Any]:
    """Least squares with parameters of the same names and shapes, and its solver."""
    import torch  # PyTorch takes seconds to import, which other processes of the tests need not spend

    from fedprox.adapters.torch import from_torch

    class Line(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.bias, self.weight = (torch.nn.Parameter(torch.zeros(1)) for _ in range(2))

        def forward(self, x):
            return x @ self.weight + self.bias

    return from_torch(Line(), lambda outputs, y: (outputs - y) ** 2 / 2, predict=None)


SOLVERS: dict[str, Any] = {
    "sgd": solvers.sgd(),
    "momentum": solvers.sgd(0.5),
    "adam": solvers.adam(beta1=0.5, beta2=0.9),
    "optax": solvers.from_optax(optax.sgd(0.1)),
    "svrg": solvers.svrg(),
    "gradient_descent": solvers.gradient_descent(),
    "lbfgs": solvers.lbfgs(),
    "newton_cg": solvers.newton_cg(),
    "closed_form": solvers.closed_form(),
    "python": solvers.opaque(descend),
    "scipy": scipy_solver(),
    "scipy newton": scipy_solver("Newton-CG"),
}


def solve(solver: str, local: LocalProblem) -> tuple[Any, int]:
    return (torch_parts()[1] if solver == "torch" else SOLVERS[solver]).solve(local)


def local_problem(solver: str, **changes: Any) -> LocalProblem:
    samples = Samples(X, Y, np.array([0, 2]))
    model = torch_parts()[0] if solver == "torch" else linear_regression(1)
    problem = Subproblem(to_backend(ANCHOR), place_mu({"b*": 0.5, "*": 2.0}, ANCHOR), to_backend(LINEAR))
    fields = {"device": 0, "round": 1, "seed": 0, "budget": 150, "batch_size": 2, "learning_rate": 0.1} | changes
    loaded = LoadedSamples.of(samples, model)
    return LocalProblem(model, problem, samples, loaded, start_at=to_backend(START), **fields)


def close(found: Any, expected: Any, atol: float = 2e-3) -> None:
    for name in expected:
        np.testing.assert_allclose(np.asarray(found[name]), expected[name], atol=atol)


@pytest.mark.parametrize("solver", [*SOLVERS, "torch"])
def test_every_solver_finds_the_minimiser_worked_by_hand(solver):
    found, _ = solve(solver, local_problem(solver))
    close(found, EXACT, 3e-2 if solver == "adam" else 2e-3)  # Adam's steps do not shrink


@pytest.mark.parametrize("solver", ["sgd", "lbfgs", "torch", "svrg"])
def test_without_a_budget_a_device_stays_at_its_start_and_gamma_counts_from_there(solver):
    found, steps = solve(solver, local_problem(solver, budget=0))
    assert steps == 0
    close(found, START, 0)

    def norm(at):
        slopes = [at[k] - own + LINEAR[k] + MU[k] * (at[k] - ANCHOR[k]) for k, own in (("bias", 2), ("weight", 1))]
        return float(np.linalg.norm(np.concatenate(slopes)))

    local = local_problem(solver, gamma=0.3)
    found, steps = solve(solver, local)
    assert 0 < steps < local.budget
    assert inexactness(norm(to_numpy(found)), norm(START)) <= 0.3 * (1 + 1e-4)


def test_one_step_from_the_start_is_worked_by_hand():
    found, _ = solvers.sgd().solve(local_problem("sgd", budget=1))
    # bias 5: gradient 3 + 0.2 + 0.5 * 6 = 6.2; weight 0.5: gradient -0.5 - 0.4 + 2 * (-2.5) = -5.9
    close(found, {"bias": 5 - 0.62, "weight": 0.5 + 0.59}, 1e-6)


SIZES = [7, 23, 4, 31, 12, 9]
POPULATION = population_of(SIZES)
CONFIG: dict[str, Any] = {
    "rounds": 4,
    "solver": {"epochs": 2, "learning_rate": 0.05},
    "devices": {"per_round": 3, "stragglers": 0.5},
    "measure": {"gamma": True, "dissimilarity": False},
    "checkpoint": {"every": 2},
}


def same(one: Any, other: Any) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True))


@dataclass(frozen=True)
class Explicit(Method):
    """FedProx with everything said that is a default."""

    groups: bool = False

    def anchor(self, sent, state, params):
        return params

    def start_point(self, sent, state, params):
        return jax.tree.map(np.array, params)

    def device_mu(self, mu, sent, state, params):
        return {"*bias": mu, "*": mu} if self.groups else mu


@pytest.mark.parametrize("groups", [False, True])
def test_the_defaults_said_aloud_are_fedprox_bit_for_bit(groups):
    config = {**CONFIG, "method": {"mu": 0.5}}
    plain = fedprox.train(config, population=POPULATION)
    said = fedprox.train(config, population=POPULATION, method=Explicit("fedprox", proximal=True, groups=groups))
    assert same(plain.params, said.params)
    assert [row["gamma"] for row in plain.devices] == [row["gamma"] for row in said.devices]


@dataclass(frozen=True)
class Ditto(Method):
    """A second model on each device, drawn towards w^t; its start is the device's own last one."""

    strength: float = 0.7

    def start_device(self, params):
        return params

    def work(self, device: DeviceView) -> Reply:
        shared = device.solve(mu=0.0)
        own = device.solve(start=device.state, anchor=device.received, mu=self.strength)
        return Reply(shared.params, state=own.params)


@dataclass(frozen=True)
class Dual(Method):
    """An anchor that the device moves, a mu that grows on it, and a dual: the shape of ADMM."""

    def start_device(self, params):
        zeros = jax.tree.map(np.zeros_like, params)
        return {"anchor": params, "dual": zeros, "mu": np.float64(1.0)}

    def anchor(self, sent, state, params):
        return scale(total(state["anchor"], params), 0.5)

    def device_mu(self, mu, sent, state, params):
        return float(state["mu"])

    def linear(self, sent, state, gradient):
        return state["dual"]

    def start_point(self, sent, state, params):
        return state["anchor"]

    def reply(self, solution: Solution) -> Reply:
        moved = scale(difference(solution.params, solution.anchor), solution.mu)
        dual = total(solution.state["dual"], moved)
        state = {"anchor": solution.params, "dual": dual, "mu": solution.state["mu"] * np.float64(1.5)}
        return Reply(solution.params, state=state)


def gradient(params, x, y):
    """Of softmax regression, in double precision."""
    z = x @ params["weight"].T + params["bias"]
    p = np.exp(z - z.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    p[np.arange(len(y)), y] -= 1
    return {"bias": p.mean(axis=0), "weight": p.T @ x / len(x)}


def descend_exactly(steps, rate, start, x, y, mu, anchor, linear=None):
    params = {name: leaf.astype(np.float64) for name, leaf in start.items()}
    for _ in range(steps):
        slope = gradient(params, x, y)
        more = {name: 0.0 if linear is None else linear[name] for name in slope}
        params = {
            name: leaf - rate * (slope[name] + more[name] + mu * (leaf - anchor[name])) for name, leaf in params.items()
        }
    return params


@pytest.mark.parametrize("kind", [Ditto, Dual])
def test_methods_with_anchors_of_their_own_agree_with_numpy(kind):
    config = {**CONFIG, "solver": {"epochs": 3, "batch_size": 0, "learning_rate": 0.05}}
    seen = []
    result = fedprox.train(
        config, population=POPULATION, method=kind("own"), callbacks=[lambda progress: seen.append(progress.params)]
    )
    start = {name: np.asarray(leaf, np.float64) for name, leaf in seen[0].items()}
    zero = {name: np.zeros_like(leaf) for name, leaf in start.items()}
    w, own, dual, mus = start, {}, {}, {}
    for row in result.devices:
        mean = zero
        for device, budget, weight in zip(row["device"], row["budget"], row["weight"], strict=True):
            x, y = POPULATION.train.of(device)
            before = own.get(device, w)  # a device begins to remember when it first takes part
            if kind is Ditto:
                found = descend_exactly(budget, 0.05, w, x, y, 0.0, w)
                own[device] = descend_exactly(budget, 0.05, before, x, y, 0.7, w)
            else:
                mu, c = mus.get(device, 1.0), dual.get(device, zero)
                anchor = {name: (before[name] + w[name]) / 2 for name in w}
                found = own[device] = descend_exactly(budget, 0.05, before, x, y, mu, anchor, c)
                dual[device] = {name: c[name] + mu * (found[name] - anchor[name]) for name in w}
                mus[device] = 1.5 * mu
            mean = {name: mean[name] + weight * found[name] for name in w}
        w = mean
    close(result.params, w, 2e-5)


@pytest.mark.parametrize("kind", [Ditto, Dual])
def test_workers_a_cluster_and_a_resumed_run_give_the_same_bits(kind, tmp_path, monkeypatch):
    whole = fedprox.train(CONFIG, population=POPULATION, method=kind("own"))
    for workers in (1, 2):
        config = {**CONFIG, "engine": {"workers": workers}}
        assert same(whole.params, fedprox.train(config, population=POPULATION, method=kind("own")).params)
    cluster = cluster_of(2, ())
    monkeypatch.setattr("fedprox.engines.ray.Cluster", lambda address, workers: cluster)
    config = {**CONFIG, "engine": {"name": "ray"}}
    assert same(whole.params, fedprox.train(config, population=POPULATION, method=kind("own")).params)
    for rounds, resume in ((2, False), (4, True)):
        config = {**CONFIG, "rounds": rounds}
        resumed = fedprox.train(config, population=POPULATION, method=kind("own"), out=tmp_path, resume=resume)
    assert same(whole.params, resumed.params)
    if kind is Ditto:  # both solves count
        assert all(s == 2 * b for row in whole.devices for s, b in zip(row["steps"], row["budget"], strict=True))


def test_a_mapping_that_leaves_a_parameter_out_is_refused():
    with pytest.raises(ConfigError, match=r"mu must have a number for every parameter; 'weight' is matched by none"):
        place_mu({"bias": 1.0}, ANCHOR)


def test_a_method_that_solves_nothing_is_refused():
    class Idle(Method):
        def work(self, device):
            return Reply(device.received)

    with pytest.raises(RunError, match="method idle must have every device solve a subproblem"):
        fedprox.train(CONFIG, population=POPULATION, method=Idle("idle"))
