"""Every solver on every problem: it reduces h_k, keeps to its budget, meets gamma, and agrees with references."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import scipy.optimize
from jax.flatten_util import ravel_pytree

from fedprox import solvers
from fedprox.config import Config, SolverConfig
from fedprox.core.compilation import is_plain_arithmetic, needs_its_first
from fedprox.core.errors import ConfigError
from fedprox.core.trees import to_numpy
from fedprox.models import linear_regression, mlp, softmax_regression
from fedprox.population import Samples
from fedprox.population.loaded_samples import LoadedSamples, to_backend
from fedprox.solvers import LocalProblem
from fedprox.solvers.stepwise import steps_per_call
from fedprox.solvers.subproblem import Subproblem

SIZES = [37, 1, 64, 8]
MOST = max(SIZES)
FEATURES, CLASSES, BATCH = 6, 3, 5

SOLVERS: dict[str, Any] = {
    "sgd": solvers.sgd(),
    "momentum": solvers.sgd(0.9),
    "nesterov": solvers.sgd(0.9, nesterov=True),
    "adam": solvers.adam(),
    "optax": solvers.from_optax(optax.rmsprop(0.01)),
    "svrg": solvers.svrg(),
    "gradient_descent": solvers.gradient_descent(),
    "lbfgs": solvers.lbfgs(),
    "newton_cg": solvers.newton_cg(),
    "closed_form": solvers.closed_form(),
}
STEPWISE = ["sgd", "momentum", "nesterov", "adam", "optax"]
WHOLE = ["gradient_descent", "lbfgs", "newton_cg"]
PROBLEMS = ["softmax", "least_squares", "mlp"]
TERMS = {"mu = 0": (0.0, False), "mu > 0": (0.5, False), "mu > 0 and linear": (0.5, True)}


@cache
def population(problem: str) -> tuple[Any, Samples, LoadedSamples]:
    rng = np.random.default_rng(1)
    rows = sum(SIZES)
    x = rng.normal(size=(rows, FEATURES)).astype(np.float32)
    if problem == "least_squares":
        model = linear_regression(FEATURES)
        y = (x @ rng.normal(size=FEATURES) + 0.3 * rng.normal(size=rows) + 1.0).astype(np.float32)
    else:
        model = softmax_regression(FEATURES, CLASSES) if problem == "softmax" else mlp(FEATURES, CLASSES, hidden=4)
        y = np.argmax(x @ rng.normal(size=(FEATURES, CLASSES)) + rng.gumbel(size=(rows, CLASSES)), axis=1).astype(
            np.int32
        )
    samples = Samples(x, y, np.concatenate([[0], np.cumsum(SIZES)]))
    return model, samples, LoadedSamples.of(samples, model)


def local_problem(problem: str, mu: float = 0.0, linear: bool = False, **settings: Any) -> LocalProblem:
    model, samples, data = population(problem)
    rng = np.random.default_rng(2)
    anchor = jax.tree.map(
        lambda leaf: leaf + 0.1 * rng.normal(size=leaf.shape).astype(np.float32), model.init(jax.random.key(0))
    )
    # Zeros stand for no linear term, so that both are one compiled program.
    correction = jax.tree.map(
        lambda leaf: np.asarray(0.05 * linear * rng.normal(size=leaf.shape), np.float32), to_numpy(anchor)
    )
    settings = {
        "device": 0,
        "round": 3,
        "seed": 7,
        "budget": 160,
        "batch_size": BATCH,
        "learning_rate": 0.03,
    } | settings
    subproblem = Subproblem(to_backend(anchor), to_backend(np.float32(mu)), to_backend(correction))
    return LocalProblem(model=model, problem=subproblem, samples=samples, loaded=data, **settings)


@cache
def h_and_gradient(model: Any) -> Any:
    """h_k written once more, on a flat vector and whole arrays."""

    def h(w: jax.Array, problem: Subproblem, x: jax.Array, y: jax.Array, weights: jax.Array) -> jax.Array:
        start, unflatten = ravel_pytree(problem.anchor)
        moved = w - start
        linear = ravel_pytree(problem.linear)[0]
        return weights @ model.loss(unflatten(w), x, y) + linear @ w + 0.5 * problem.mu * (moved @ moved)

    return jax.jit(jax.value_and_grad(h))


class Reference:
    """h_k of a local problem."""

    def __init__(self, local: LocalProblem) -> None:
        self.start = flat(local.problem.anchor)
        self.problem = local.problem
        x, y = local.samples.of(local.device)
        self.rows = np.arange(len(x))
        # rows of zeros without a weight, so that any device and mini-batch is one compiled program
        self.x, self.y = (np.pad(each, [(0, MOST - len(x))] + [(0, 0)] * (each.ndim - 1)) for each in (x, y))
        self._h = h_and_gradient(local.model)

    def at(self, w: np.ndarray, rows: np.ndarray | None = None) -> tuple[float, np.ndarray]:
        chosen = self.rows if rows is None else rows
        weights = (np.bincount(chosen, minlength=MOST) / len(chosen)).astype(np.float32)
        value, gradient = self._h(w.astype(np.float32), self.problem, self.x, self.y, weights)
        return float(value), np.asarray(gradient, np.float64)

    def value(self, params: Any) -> float:
        return self.at(flat(params))[0]

    def norm(self, params: Any) -> float:
        return float(np.linalg.norm(self.at(flat(params))[1]))

    def batch_gradient(self, w: np.ndarray, rows: np.ndarray) -> np.ndarray:
        return self.at(w, rows)[1]

    def minimiser(self) -> np.ndarray:
        found = scipy.optimize.minimize(
            self.at,
            self.start,
            jac=True,
            method="L-BFGS-B",
            options={"maxiter": 1000, "ftol": 1e-12, "gtol": 1e-7},
        )
        return found.x


def batches(local: LocalProblem) -> list[np.ndarray]:
    return list(local.batches())


def flat(params: Any) -> np.ndarray:
    return np.asarray(ravel_pytree(params)[0], np.float64)


def suits(solver: str, problem: str) -> bool:
    return solver != "closed_form" or problem == "least_squares"


MATRIX = [(solver, problem) for solver in SOLVERS for problem in PROBLEMS if suits(solver, problem)]


@pytest.mark.parametrize("terms", TERMS)
@pytest.mark.parametrize(("solver", "problem"), MATRIX)
def test_every_solver_reduces_every_problem_within_its_budget(solver: str, problem: str, terms: str) -> None:
    local = local_problem(problem, *TERMS[terms])
    params, steps = SOLVERS[solver].solve(local)
    reference = Reference(local)
    before, after = (reference.value(at) for at in (local.problem.anchor, params))
    assert after < before - 0.01 * abs(before)
    assert jax.tree.structure(params) == jax.tree.structure(local.problem.anchor)
    assert 0 < steps <= local.budget
    if solver in STEPWISE:
        assert steps == local.budget


@pytest.mark.parametrize("solver", SOLVERS)
def test_no_linear_term_is_one_of_zeros(solver: str) -> None:
    local = local_problem("least_squares", mu=0.5, budget=30)
    without = replace(local, problem=local.problem._replace(linear=None))
    found, expected = (flat(SOLVERS[solver].solve(each)[0]) for each in (without, local))
    np.testing.assert_allclose(found, expected, atol=1e-6)


@pytest.mark.parametrize("budget", [0, 1, 7, 8, 9, 15, 16, 17, 40, 41])
@pytest.mark.parametrize("solver", SOLVERS)
def test_budgets_are_exact(solver: str, budget: int) -> None:
    local = local_problem("least_squares", mu=0.5, budget=budget)  # 37 samples in batches of 5: an epoch is 8 steps
    params, steps = SOLVERS[solver].solve(local)
    stayed = np.array_equal(flat(params), flat(local.problem.anchor))
    if solver in STEPWISE:
        assert steps == budget
        assert stayed == (budget == 0)
    elif solver == "closed_form":
        assert steps == (8 if budget >= 8 else 0)
        assert stayed == (budget < 8)
    elif solver == "svrg":
        assert steps in ({0} if budget < 8 else {budget, budget - 1} | ({8} if budget == 8 else set()))
        assert stayed == (budget < 10)
    else:
        assert steps % 8 == 0
        assert steps <= budget
        assert stayed == (budget < 8)
        assert steps >= min(budget // 8, 4) * 8  # nothing is so well solved that a few passes were left over


@pytest.mark.parametrize("problem", PROBLEMS)
@pytest.mark.parametrize("solver", SOLVERS)
def test_gamma_is_met_and_ends_the_work(solver: str, problem: str) -> None:
    if not suits(solver, problem):
        pytest.skip("least squares only")
    rate = 0.01 if solver in ("adam", "optax") else 0.03
    local = local_problem(problem, mu=0.5, gamma=0.3, budget=8000, learning_rate=rate)
    params, steps = SOLVERS[solver].solve(local)
    reference = Reference(local)
    assert reference.norm(params) <= 0.3 * reference.norm(local.problem.anchor) * (1 + 1e-4)
    assert 0 < steps < local.budget
    assert steps % local.steps_per_epoch == 0 or solver == "svrg"


@pytest.mark.parametrize("solver", SOLVERS)
def test_a_target_of_one_needs_no_work(solver: str) -> None:
    local = local_problem("least_squares", mu=0.5, gamma=1.0)
    params, steps = SOLVERS[solver].solve(local)
    if solver == "closed_form":
        assert steps == local.steps_per_epoch
    else:
        assert np.array_equal(flat(params), flat(local.problem.anchor))
        assert steps <= local.steps_per_epoch  # at most the gradient that says so


@pytest.mark.parametrize("problem", PROBLEMS)
@pytest.mark.parametrize("solver", SOLVERS)
def test_a_device_with_one_sample(solver: str, problem: str) -> None:
    if not suits(solver, problem):
        pytest.skip("least squares only")
    local = local_problem(problem, mu=1.0, device=1, budget=20)
    assert local.count == 1
    params, steps = SOLVERS[solver].solve(local)
    assert Reference(local).value(params) < Reference(local).value(local.problem.anchor)
    assert steps <= 20


@pytest.mark.parametrize("solver", SOLVERS)
def test_a_solution_is_not_left(solver: str) -> None:
    """y is exactly what the model says, so the gradient at w^t is zero."""
    model, samples, _ = population("least_squares")
    samples = Samples(samples.x, np.zeros_like(samples.y), samples.offsets)
    anchor = to_backend(model.init(jax.random.key(0)))
    local = LocalProblem(
        model,
        Subproblem(anchor, to_backend(np.float32(0.5))),
        samples,
        LoadedSamples.of(samples, model),
        0,
        1,
        0,
        10,
        BATCH,
        0.1,
    )
    params, _ = SOLVERS[solver].solve(local)
    assert np.array_equal(flat(params), flat(anchor))


@pytest.mark.parametrize("terms", TERMS)
def test_closed_form_is_the_normal_equations(terms: str) -> None:
    mu, linear = TERMS[terms]
    for device in (0, 2) if mu == 0 else (0, 1, 2):  # one sample leaves directions open without mu
        local = local_problem("least_squares", mu, linear, device=device)
        x, y = (each.astype(np.float64) for each in local.samples.of(device))
        a = np.hstack([np.ones((len(x), 1)), x])
        start = flat(local.problem.anchor)
        c = flat(local.problem.linear)
        expected = np.linalg.solve(a.T @ a / len(a) + mu * np.eye(a.shape[1]), a.T @ y / len(a) + mu * start - c)
        params, _ = SOLVERS["closed_form"].solve(local)
        np.testing.assert_allclose(flat(params), expected, atol=1e-5, rtol=1e-5)


def test_closed_form_without_mu_takes_the_nearest_of_many_solutions() -> None:
    local = local_problem("least_squares", device=1)
    x, y = local.samples.of(1)
    params, _ = SOLVERS["closed_form"].solve(local)
    a, start = np.concatenate([[1.0], x[0].astype(np.float64)]), flat(local.problem.anchor)
    np.testing.assert_allclose(flat(params), start + a * (y[0] - a @ start) / (a @ a), atol=1e-5)


def test_closed_form_refuses_another_model() -> None:
    with pytest.raises(ConfigError, match="must be used with the model linear_regression; got softmax_regression"):
        SOLVERS["closed_form"].solve(local_problem("softmax"))


@pytest.mark.parametrize("problem", ["softmax", "least_squares"])
@pytest.mark.parametrize("solver", WHOLE)
def test_whole_data_solvers_reach_the_minimiser(solver: str, problem: str) -> None:
    local = local_problem(problem, mu=0.5, linear=True, budget=8000)
    reference = Reference(local)
    params, _ = SOLVERS[solver].solve(local)
    np.testing.assert_allclose(flat(params), reference.minimiser(), atol=2e-4)
    assert reference.norm(params) < 1e-4 * reference.norm(local.problem.anchor)


@pytest.mark.parametrize("solver", WHOLE)
def test_whole_data_solvers_minimise_without_mu(solver: str) -> None:
    local = local_problem("least_squares", budget=8000)
    x, y = local.samples.of(0)
    exact = np.linalg.lstsq(np.hstack([np.ones((len(x), 1)), x]).astype(float), y.astype(float))[0]
    np.testing.assert_allclose(flat(SOLVERS[solver].solve(local)[0]), exact, atol=1e-4)


def test_newton_cg_solves_a_quadratic_in_one_direction() -> None:
    """The first direction is only half accurate by its rule; the iterations stay few all the same."""
    local = local_problem("least_squares", mu=0.5, gamma=1e-3, budget=8000)
    _, steps = SOLVERS["newton_cg"].solve(local)
    assert steps <= 25 * local.steps_per_epoch


def test_a_budget_for_one_gradient_is_one_plain_step() -> None:
    for solver in WHOLE:
        local = local_problem("softmax", mu=0.5, linear=True, budget=8)
        params, steps = SOLVERS[solver].solve(local)
        expected, _ = solvers.sgd().solve(replace(local, batch_size=0, budget=1))
        np.testing.assert_allclose(flat(params), flat(expected), atol=1e-6)
        assert steps == 8


def numpy_steps(kind: str, local: LocalProblem, rate: float) -> np.ndarray:
    """The textbook loops, over the same mini-batches, in double precision."""
    reference = Reference(local)
    w = flat(local.problem.anchor)
    first, second = np.zeros_like(w), np.zeros_like(w)
    for s, rows in enumerate(batches(local), start=1):
        g = reference.batch_gradient(w, rows)
        if kind == "momentum":
            first = 0.9 * first + g
            w = w - rate * first
        elif kind == "nesterov":
            first = 0.9 * first + g
            w = w - rate * (g + 0.9 * first)
        elif kind == "decay":
            w = w - rate * (g + 0.1 * w)
        elif kind == "adam":
            first, second = 0.9 * first + 0.1 * g, 0.999 * second + 0.001 * g * g
            w = w - rate * (first / (1 - 0.9**s)) / (np.sqrt(second / (1 - 0.999**s)) + 1e-8)
        else:
            w = w - rate * g
    return w


@pytest.mark.parametrize("problem", ["softmax", "mlp"])
@pytest.mark.parametrize("kind", ["sgd", "momentum", "nesterov", "decay", "adam"])
def test_steps_equal_a_numpy_loop_over_the_same_batches(kind: str, problem: str) -> None:
    local = local_problem(problem, mu=0.5, linear=True, budget=19)
    solver = solvers.sgd(weight_decay=0.1) if kind == "decay" else SOLVERS[kind]
    params, _ = solver.solve(local)
    np.testing.assert_allclose(flat(params), numpy_steps(kind, local, 0.03), atol=1e-5)


def test_svrg_equals_a_numpy_loop() -> None:
    local = local_problem("softmax", mu=0.5, linear=True, budget=8 + 16 + 8 + 7)
    reference, orders = Reference(local), iter(batches(local))
    everything = np.arange(local.count)
    w = flat(local.problem.anchor)
    for inner in (8, 3):  # two snapshots; 7 steps are left for inner steps of 2 after the second
        snapshot, exact = w, reference.batch_gradient(w, everything)
        for _ in range(inner):
            rows = next(orders)
            w = w - 0.03 * (reference.batch_gradient(w, rows) - reference.batch_gradient(snapshot, rows) + exact)
    params, steps = SOLVERS["svrg"].solve(local)
    np.testing.assert_allclose(flat(params), w, atol=1e-5)
    assert steps == 8 + 16 + 8 + 6


def test_svrg_converges_where_sgd_keeps_its_noise() -> None:
    local = local_problem("softmax", mu=0.5, budget=6000, learning_rate=0.2)
    reference = Reference(local)
    noise = [reference.norm(SOLVERS[name].solve(local)[0]) for name in ("svrg", "sgd")]
    assert noise[0] < 1e-3 * noise[1]


def test_svrg_with_whole_batches_is_gradient_descent() -> None:
    local = local_problem("softmax", mu=0.5, batch_size=0, budget=5)
    assert np.array_equal(flat(SOLVERS["svrg"].solve(local)[0]), flat(SOLVERS["sgd"].solve(local)[0]))


@pytest.mark.parametrize("given", [optax.adam, "adam", None])
def test_from_optax_takes_a_transformation(given):
    with pytest.raises(ConfigError, match=r"must be an optax transformation, such as optax.adam\(0.001\); got"):
        solvers.from_optax(given)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (solvers.sgd(), optax.sgd(0.03)),
        (solvers.sgd(0.9), optax.sgd(0.03, momentum=0.9)),
        (solvers.sgd(0.9, nesterov=True), optax.sgd(0.03, momentum=0.9, nesterov=True)),
        (solvers.adam(), optax.adam(0.03)),
    ],
)
def test_ours_equals_optax(ours: Any, theirs: Any) -> None:
    local = local_problem("softmax", mu=0.5, linear=True, budget=40)
    ours_found, theirs_found = (flat(each.solve(local)[0]) for each in (ours, solvers.from_optax(theirs)))
    np.testing.assert_allclose(ours_found, theirs_found, atol=1e-5)


def test_a_step_that_cannot_be_one_kernel_still_runs() -> None:
    """Sorting is not possible within a single kernel; the loop is then compiled the common way."""

    def step(params: Any, gradient: Any, state: Any, rate: Any) -> Any:
        def clipped(g: jax.Array) -> jax.Array:
            limit = jnp.sort(jnp.abs(g).ravel())[-1]
            return jnp.clip(g, -limit, limit)

        return jax.tree.map(lambda w, g: w - rate * clipped(g), params, gradient), state

    local = local_problem("softmax", budget=10)
    sorting = solvers.Stepwise("sorting", lambda params: (), step)
    np.testing.assert_allclose(flat(sorting.solve(local)[0]), flat(SOLVERS["sgd"].solve(local)[0]), atol=1e-6)


@pytest.mark.parametrize("batch_size", [0, 2])
def test_a_step_that_does_not_look_at_its_gradient_still_runs(batch_size: int) -> None:
    """In a single kernel the data would be arrays that nobody needs, over which XLA ends the process."""

    def decay(params: Any, gradient: Any, state: Any, rate: Any) -> Any:
        return jax.tree.map(lambda w: w * (1 - rate), params), state

    local = local_problem("softmax", budget=3, batch_size=batch_size)
    found, steps = solvers.Stepwise("decay", lambda params: (), decay).solve(local)
    expected = flat(local.problem.anchor) * (1 - local.learning_rate) ** 3
    assert steps == 3
    np.testing.assert_allclose(flat(found), expected, rtol=1e-6)


def test_what_a_function_needs() -> None:
    assert needs_its_first(lambda pair, other: pair[0] * other + jax.jit(jnp.sin)(pair[1]), (1.0, 2.0), 3.0)
    assert not needs_its_first(lambda pair, other: pair[0] * other, (1.0, 2.0), 3.0)
    assert not needs_its_first(jax.jit(lambda one, other: other), 1.0, 2.0)


@pytest.mark.parametrize("solver", ["sgd", "momentum", "nesterov", "adam", "optax"])
def test_common_steps_are_plain_arithmetic(solver: str) -> None:
    each, params = SOLVERS[solver], softmax_regression(FEATURES, CLASSES).init(jax.random.key(0))
    assert is_plain_arithmetic(each.step, params, params, each.init(params), jnp.float32(0.1))
    assert not is_plain_arithmetic(jnp.sort, jnp.zeros(3))


def test_sizes_and_budgets_do_not_recompile() -> None:
    for solver in SOLVERS.values():
        solver.solve(local_problem("least_squares", mu=0.5, budget=60))
    with jax.log_compiles(False), _counting_compilations() as compiled:
        for solver in SOLVERS.values():
            for device, budget in ((1, 3), (2, 50), (3, 31)):
                solver.solve(local_problem("least_squares", mu=0.1 * device, device=device, budget=budget))
    assert compiled == []


class _counting_compilations:  # noqa: N801 - reads as a sentence
    def __enter__(self) -> list[str]:
        self.seen: list[str] = []
        jax.monitoring.register_event_duration_secs_listener(self._listen)
        return self.seen

    def __exit__(self, *error: object) -> None:
        jax.monitoring.unregister_event_duration_listener(self._listen)

    def _listen(self, event: str, duration: float, **_: Any) -> None:
        if event.endswith("backend_compile_duration"):
            self.seen.append(event)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"name": "lbfgs", "options": {"memroy": 3}}, r"`solver.options.memroy` must be an option of lbfgs \(memory\)"),
        ({"name": "lbfgs", "options": {"memory": 0}}, "`solver.options.memory` must be an integer >= 1; got 0"),
        ({"name": "adam", "options": {"beta1": 1.5}}, r"`solver.options.beta1` must be a number in \[0, 1\); got 1.5"),
        ({"name": "adam", "options": {"beta1": "x"}}, r"`solver.options.beta1` must be a number in \[0, 1\); got 'x'"),
        ({"name": "sgd", "options": {"beta1": 0.9}}, r"must be an option of sgd \(it has none\)"),
        ({"name": "optax", "options": {"name": "admm"}}, "must be one of optax's optimisers.*got 'admm'"),
        ({"name": "optax", "options": {"name": "adam", "b7": 1}}, "`solver.options` must be what optax.adam takes"),
        (
            {"name": "optax", "options": {"name": "adam", "learning_rate": 0.5}},
            "`solver.options.learning_rate` must be left out, since it is `solver.learning_rate`; got 0.5",
        ),
        ({"name": "optax", "options": {"name": "lbfgs"}}, "`solver.options` must be what optax.lbfgs takes"),
        ({"name": "adam", "momentum": 0.9}, "`solver.momentum` must be left out with solver.name = 'adam'"),
        ({"name": "simplex"}, "`solver.name` must be one of sgd, adam"),
        ({"name": "adam", "options": 3}, "`solver.options` must be a table of the solver's own options; got 3"),
    ],
)
def test_bad_settings_are_refused_in_one_sentence(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        solvers.build(Config.from_dict({"solver": settings}).solver)


def test_configs_name_every_solver() -> None:
    built = [solvers.build(SolverConfig(name=name)) for name in ("sgd", "adam", "gradient_descent", "lbfgs")]
    built += [solvers.build(SolverConfig(name=name)) for name in ("newton_cg", "closed_form", "svrg")]
    assert [each.name for each in built] == [
        "sgd", "adam", "gradient_descent", "lbfgs", "newton_cg", "closed_form", "svrg",
    ]  # fmt: skip
    named = SolverConfig(name="optax", learning_rate=0.03, options={"name": "sgd", "momentum": 0.9})
    assert solvers.build(named) is solvers.build(named)  # one object, so that compiled programs are found again
    local = local_problem("softmax", mu=0.5)
    np.testing.assert_allclose(
        flat(solvers.build(named).solve(local)[0]), flat(solvers.sgd(0.9).solve(local)[0]), atol=1e-5
    )


def test_options_survive_a_config_file(tmp_path: Any) -> None:
    config = Config.from_dict({"solver": {"name": "optax", "options": {"name": "adam", "b1": 0.8}}})
    (tmp_path / "config.toml").write_text(config.to_toml())
    assert Config.from_toml(tmp_path / "config.toml") == config


@pytest.mark.parametrize(
    ("parameters", "batch_size", "steps"),
    [
        ([10], 10, 1024),  # a small model: as many as there may be
        ([2**14 // 10], 10, 1024),
        ([2**15, 2**15], 1, 512),  # 2**25 / (1 * 2**16), over all leaves
        ([2**15, 2**15], 4, 128),
        ([10**6], 10, 16),  # a large one: as few as there may be
        ([10**6], 1, 33),
        ([0], 10, 1024),
    ],
)
def test_a_call_takes_fewer_steps_of_a_larger_model(parameters: list[int], batch_size: int, steps: int) -> None:
    model = replace(softmax_regression(2, 2), init=lambda key: [jnp.zeros(size, jnp.float32) for size in parameters])
    assert steps_per_call(model, batch_size) == steps
