"""Models and solvers of other libraries take part in the same rounds, budgets, measures and records."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any

import equinox as eqx
import flax.linen
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import safetensors.torch
import torch
from flax import nnx
from torch import nn

import fedprox
from fedprox import solvers
from fedprox.adapters.equinox import from_equinox
from fedprox.adapters.flax import from_linen, from_nnx
from fedprox.adapters.scipy import scipy_solver
from fedprox.adapters.torch import from_torch
from fedprox.core.errors import ConfigError, DataError, RunError
from fedprox.core.name_patterns import matches_any
from fedprox.core.trees import map_names, to_numpy
from fedprox.models import Model, linear_regression, mlp, softmax_regression
from fedprox.participation.budget import minibatches, split_batches
from fedprox.population import Population
from fedprox.population.loaded_samples import LoadedSamples, to_backend
from fedprox.solvers import LocalProblem
from fedprox.solvers.subproblem import Subproblem

FEATURES, CLASSES = 5, 3


def population(seed: int = 0) -> Population:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(120, FEATURES)).astype(np.float32)
    y = np.argmax(x @ rng.normal(size=(FEATURES, CLASSES)), axis=1)
    return Population.from_arrays(x, y, np.arange(120) % 4)


def settings(**solver: Any) -> dict[str, Any]:
    return {
        "rounds": 2,
        "devices": {"per_round": 3, "stragglers": 0.4},
        "method": {"mu": 0.5},
        "solver": {"epochs": 3, "learning_rate": 0.1, "batch_size": 8, **solver},
        "measure": {"gamma": True},
    }


def local_problem(model: Model, **changes: Any) -> LocalProblem:
    samples = population().train
    anchor = to_backend(model.init(jax.random.key(0)))
    linear = jax.tree.map(lambda leaf: jnp.full_like(leaf, 0.01), anchor)
    fields = {"device": 1, "round": 2, "seed": 3, "budget": 11, "batch_size": 8, "learning_rate": 0.1} | changes
    return LocalProblem(
        model,
        Subproblem(anchor, to_backend(np.float32(0.5)), linear),
        samples,
        LoadedSamples.of(samples, model),
        **fields,
    )


def softmax_in_torch() -> nn.Module:
    module = nn.Linear(FEATURES, CLASSES)
    nn.init.zeros_(module.weight)
    nn.init.zeros_(module.bias)
    return module


def assert_close(first: Any, second: Any, atol: float = 1e-5) -> None:
    jax.tree.map(lambda a, b: np.testing.assert_allclose(np.asarray(a), np.asarray(b), atol=atol), first, second)


OURS = softmax_regression(FEATURES, CLASSES)


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        (torch.optim.SGD, solvers.sgd()),
        (partial(torch.optim.SGD, momentum=0.9, nesterov=True), solvers.sgd(0.9, nesterov=True)),
        (partial(torch.optim.SGD, momentum=0.9, weight_decay=0.01), solvers.sgd(0.9, weight_decay=0.01)),
        (torch.optim.Adam, solvers.adam()),
    ],
)
@pytest.mark.parametrize("batch_size", [8, 0])
def test_torch_steps_equal_ours(theirs: Any, ours: Any, batch_size: int) -> None:
    model, solver = from_torch(softmax_in_torch(), optimiser=theirs)
    found, steps = solver.solve(local_problem(model, batch_size=batch_size))
    expected, _ = ours.solve(local_problem(OURS, batch_size=batch_size))
    assert steps == 11
    assert_close(found, to_numpy(expected))


def test_a_torch_model_has_our_losses_labels_gradients_and_curvature() -> None:
    model, _ = from_torch(softmax_in_torch())
    rng = np.random.default_rng(0)
    params = {"bias": rng.normal(size=CLASSES), "weight": rng.normal(size=(CLASSES, FEATURES))}
    params = jax.tree.map(lambda leaf: leaf.astype(np.float32), params)
    x, y = (each[:7] for each in (population().train.x, population().train.y))
    weights = np.linspace(0.0, 1.0, 7, dtype=np.float32)
    assert model.predict is not None
    assert model.gradient is not None
    assert_close(jax.jit(model.loss)(params, x, y), OURS.loss(params, x, y))
    assert_close(jax.jit(model.predict)(params, x), OURS.predict(params, x))
    along = jax.tree.map(np.ones_like, params)
    gradients: list[Any] = [model.gradient, OURS.gradient]
    theirs, ours = (jax.jvp(partial(each, x=x, y=y, weights=weights), (params,), (along,)) for each in gradients)
    assert_close(theirs, ours)


def test_a_torch_run_equals_ours_in_every_record() -> None:
    model, solver = from_torch(softmax_in_torch())
    theirs = fedprox.train(settings(), population=population(), model=model, solver=solver)
    ours = fedprox.train(settings(), population=population(), model=OURS)
    for mine, other in zip(ours.history, theirs.history, strict=True):
        for name in ("train_loss", "train_accuracy", "test_accuracy", "gradient_variance", "dissimilarity"):
            assert other[name] == pytest.approx(mine[name], abs=1e-4)
    assert theirs.history[2]["gamma_mean"] == pytest.approx(ours.history[2]["gamma_mean"], abs=1e-3)
    assert [row["steps"] for row in theirs.devices] == [row["steps"] for row in ours.devices]
    assert_close(theirs.params, ours.params)


def test_any_solver_of_ours_trains_a_torch_model() -> None:
    model, _ = from_torch(softmax_in_torch())
    for solver in (solvers.sgd(), solvers.lbfgs(), solvers.newton_cg(), scipy_solver()):
        found, _ = solver.solve(local_problem(model, budget=40))
        expected, _ = solver.solve(local_problem(OURS, budget=40))
        assert_close(found, expected, atol=1e-3)


def test_torch_workers_agree_to_the_bit_also_with_dropout() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(FEATURES, 8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, CLASSES))
    results = []
    for workers in (1, 4):
        model, solver = from_torch(module, optimiser=torch.optim.Adam)
        config = settings(learning_rate=0.01) | {"engine": {"workers": workers}}
        torch.manual_seed(workers)  # what the caller draws has no part in it
        results.append(fedprox.train(config, population=population(), model=model, solver=solver).params)
    jax.tree.map(np.testing.assert_array_equal, *results)


def test_a_torch_model_file_loads_back(tmp_path: Any) -> None:
    module = nn.Sequential(nn.Linear(FEATURES, 4), nn.Tanh(), nn.Linear(4, CLASSES))
    module[0].bias.requires_grad_(False)
    before = module[0].bias.clone()
    model, solver = from_torch(module)
    result = fedprox.train(settings(), population=population(), model=model, solver=solver, out=tmp_path / "run")
    module.load_state_dict(safetensors.torch.load_file(tmp_path / "run" / "model.safetensors"))
    np.testing.assert_array_equal(module[2].weight.detach().numpy(), result.params["2.weight"])
    np.testing.assert_allclose(module[0].bias, before, rtol=1e-6)  # frozen, so only averaged with itself


@pytest.mark.parametrize("search", [None, "strong_wolfe"])
def test_torch_lbfgs_stops_within_its_budget(search: str | None) -> None:
    optimiser = partial(torch.optim.LBFGS, line_search_fn=search)
    model, solver = from_torch(softmax_in_torch(), optimiser=optimiser)
    local = local_problem(model, budget=7, batch_size=0)
    found, steps = solver.solve(local)
    assert steps == 7
    value = solvers.LocalView({}, 0.0, None, 0.0, 0.1, 1, local).value_and_gradient
    assert value(found)[0] < value(to_numpy(local.problem.anchor))[0]


def test_torch_stops_at_gamma_and_without_budget() -> None:
    model, solver = from_torch(softmax_in_torch())
    local = local_problem(model, gamma=0.5, budget=500)
    found, steps = solver.solve(local)
    ours, our_steps = solvers.sgd().solve(local_problem(OURS, gamma=0.5, budget=500))
    assert steps == our_steps < 500
    assert_close(found, to_numpy(ours))
    assert solver.solve(local_problem(model, budget=0))[1] == 0


def normalised() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(FEATURES, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, CLASSES))


def test_running_statistics_of_torch_are_merged_with_the_model(tmp_path: Any) -> None:
    module = normalised()
    model, solver = from_torch(module)
    result = fedprox.train(settings(), population=population(), model=model, solver=solver, out=tmp_path / "run")
    assert set(result.params) == set(module.state_dict()) - {"1.num_batches_tracked"}
    assert not np.allclose(result.params["1.running_mean"], 0.0)
    module.load_state_dict(safetensors.torch.load_file(tmp_path / "run" / "model.safetensors"))
    test = population().test
    with torch.no_grad():
        labels = module.eval()(torch.from_numpy(test.x)).argmax(1).numpy()
    assert result.history[-1]["test_accuracy"] == pytest.approx(float((labels == test.y).mean()))


def test_a_lone_example_is_normalised_with_running_statistics() -> None:
    model, solver = from_torch(normalised())
    found, steps = solver.solve(local_problem(model, batch_size=1, budget=3))
    assert steps == 3
    np.testing.assert_array_equal(found["1.running_mean"], model.init(jax.random.key(0))["1.running_mean"])
    assert not np.array_equal(found["0.weight"], model.init(jax.random.key(0))["0.weight"])


def test_torch_measures_as_a_loop_by_hand() -> None:
    data = population()
    module = normalised()
    for parameter in module.parameters():
        nn.init.normal_(parameter, generator=torch.Generator().manual_seed(1))
    model, solver = from_torch(module)
    row = fedprox.train({**settings(), "rounds": 1}, population=data, model=model, solver=solver).history[0]
    module.eval()
    x, y = torch.from_numpy(data.train.x), torch.from_numpy(data.train.y).long()
    norms2, mean, total = 0.0, 0.0, len(y)
    for k in range(data.devices):
        rows = slice(*data.train.offsets[k : k + 2].tolist())
        loss = nn.functional.cross_entropy(module(x[rows]), y[rows])
        gradient = torch.cat([each.flatten() for each in torch.autograd.grad(loss, list(module.parameters()))])
        share = (rows.stop - rows.start) / total
        norms2, mean = norms2 + share * float(gradient.square().sum()), mean + share * gradient
    with torch.no_grad():
        outputs = module(x)
    assert row["train_loss"] == pytest.approx(float(nn.functional.cross_entropy(outputs, y)), rel=1e-5)
    assert row["train_accuracy"] == pytest.approx(float((outputs.argmax(1) == y).float().mean()))
    assert row["gradient_variance"] == pytest.approx(norms2 - float(torch.as_tensor(mean).square().sum()), rel=1e-4)


def test_torch_sees_images_of_bytes_from_0_to_1() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 256, (24, 1, 4, 4)).astype(np.uint8), rng.integers(0, 2, 24)
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 2))
    runs = []
    for images in (x, x / np.float32(255)):
        model, solver = from_torch(module)
        data = fedprox.Population.from_arrays(images, y, np.arange(24) % 3)
        runs.append(
            fedprox.train({"rounds": 1, "devices": {"per_round": 3}}, population=data, model=model, solver=solver)
        )
    assert runs[0].history[-1]["train_loss"] == pytest.approx(runs[1].history[-1]["train_loss"])
    assert_close(runs[0].params, runs[1].params)


@pytest.mark.parametrize("own_generator", [True, False])
def test_a_transform_is_drawn_for_seed_round_and_device(own_generator: bool) -> None:
    drawn: list[tuple[float, ...]] = []

    def noise(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        more = torch.randn(x.shape, generator=generator)
        drawn.append(tuple(more[0].tolist()))
        return x + more

    def plain_noise(x: torch.Tensor) -> torch.Tensor:
        return x + torch.randn_like(x)

    results = []
    for workers in (1, 2, 1):
        transform = noise if own_generator else plain_noise
        if len(results) == 2:
            model, solver = from_torch(softmax_in_torch())
        else:
            model, solver = from_torch(softmax_in_torch(), transform=transform)
        config = settings() | {"engine": {"workers": workers}}
        results.append(fedprox.train(config, population=population(), model=model, solver=solver))
    assert_close(results[0].params, results[1].params, atol=0.0)
    assert not np.allclose(results[0].params["weight"], results[2].params["weight"])
    if own_generator:
        assert len(set(drawn)) > len(drawn) // 3  # a draw of its own for every batch


def test_wrong_modules_losses_and_types_get_one_sentence() -> None:
    def run(module: nn.Module, *arguments: Any, data: Any = None, **options: Any) -> None:
        model, solver = from_torch(module, *arguments, **options)
        fedprox.train(settings(), population=data or population(), model=model, solver=solver)

    with pytest.raises(ConfigError, match=r"make one of it with `model, solver = fedprox.adapters.torch.from_torch"):
        fedprox.train(settings(), population=population(), model=softmax_in_torch())
    with pytest.raises(ConfigError, match=r"`model` must be a fedprox.Model; got builtins.int"):
        fedprox.train(settings(), population=population(), model=3)
    with pytest.raises(ConfigError, match=r"one number per example \(reduction='none'\), .* it has shape \(\)"):
        run(softmax_in_torch(), nn.CrossEntropyLoss())
    with pytest.raises(ConfigError, match=r"`loss` cannot be computed from outputs .* and labels of int64"):
        run(softmax_in_torch(), nn.BCEWithLogitsLoss(reduction="none"))
    with pytest.raises(ConfigError, match=r"parameters of type float32; 'weight' is torch.float64"):
        run(softmax_in_torch().double())
    with pytest.raises(ConfigError, match=r"`module` must be a torch.nn.Module, not a class; got 3"):
        from_torch(3)
    with pytest.raises(ConfigError, match="`device` must name a device of this machine; got 'nowhere'"):
        from_torch(softmax_in_torch(), device="nowhere")
    with pytest.raises(ConfigError, match="`transform` must take a batch, or a batch and a generator"):
        run(softmax_in_torch(), transform=lambda a, b, c: a)
    with pytest.raises(DataError, match=r"module Linear does not take a batch of shape \(\d+, 5\) and float32"):
        run(nn.Linear(FEATURES + 1, CLASSES))


@pytest.mark.parametrize("method", ["L-BFGS-B", "Newton-CG", "CG", "Nelder-Mead"])
def test_scipy_minimises_h_within_its_budget(method: str) -> None:
    local = local_problem(OURS, budget=400)
    view = solvers.LocalView({}, 0.0, None, 0.0, 0.1, 1, local)
    before = view.value_and_gradient(to_numpy(local.problem.anchor))[0]
    for budget in (400, 4 * local.steps_per_epoch + 1, local.steps_per_epoch - 1):
        found, steps = scipy_solver(method).solve(local_problem(OURS, budget=budget))
        assert steps <= budget
        assert steps % local.steps_per_epoch == 0
        if budget == 400:
            assert view.value_and_gradient(found)[0] < before - 0.001
    assert steps == 0


def test_scipy_stops_at_gamma() -> None:
    local = local_problem(OURS, budget=4000, gamma=0.1)
    view = solvers.LocalView({}, 0.0, None, 0.0, 0.1, 1, local)
    found, steps = scipy_solver().solve(local)
    norms = [
        np.sqrt(sum(np.vdot(leaf, leaf) for leaf in jax.tree.leaves(view.value_and_gradient(at)[1])))
        for at in (found, local.problem.anchor)
    ]
    assert norms[0] <= 0.1 * norms[1]
    assert steps < 400


class LinenMLP(flax.linen.Module):
    @flax.linen.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        hidden = flax.linen.relu(flax.linen.Dense(4)(x))
        return flax.linen.Dense(CLASSES)(hidden)


class NNXMLP(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.hidden = nnx.Linear(FEATURES, 4, rngs=rngs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)
        self.output = nnx.Linear(4, CLASSES, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.output(self.dropout(nnx.relu(self.hidden(x))))


def equinox_mlp(key: jax.Array) -> eqx.Module:
    return eqx.nn.MLP(FEATURES, CLASSES, 4, 1, key=key)


OTHERS = {
    "linen": (
        lambda: from_linen(LinenMLP(), np.zeros((1, FEATURES))),
        lambda p: (p["Dense_0"]["kernel"], p["Dense_0"]["bias"], p["Dense_1"]["kernel"], p["Dense_1"]["bias"]),
    ),
    "nnx": (
        lambda: from_nnx(NNXMLP),
        lambda p: (p["hidden"]["kernel"], p["hidden"]["bias"], p["output"]["kernel"], p["output"]["bias"]),
    ),
    "equinox": (
        lambda: from_equinox(equinox_mlp),
        lambda p: (p.layers[0].weight.T, p.layers[0].bias, p.layers[1].weight.T, p.layers[1].bias),
    ),
}


@pytest.mark.parametrize("library", OTHERS)
def test_models_of_other_libraries_are_used_as_they_are(library: str, tmp_path: Any) -> None:
    make, weights_of = OTHERS[library]
    theirs = make()
    start = theirs.init(jax.random.key(5))
    hidden, bias, output, last = weights_of(start)
    same = {"hidden": {"bias": bias, "weight": hidden}, "output": {"bias": last, "weight": output}}
    ours = mlp(FEATURES, CLASSES, hidden=4)
    x, y = population().test.x, population().test.y
    assert_close(jax.jit(theirs.loss)(start, x, y), jax.jit(ours.loss)(same, x, y))
    assert theirs.predict is not None
    assert_close(jax.jit(theirs.predict)(start, x), jax.jit(ours.predict)(same, x))
    config = settings() | {"checkpoint": {"every": 1}}
    result = fedprox.train(config, population=population(), model=theirs, out=tmp_path / "run")
    assert result.history[-1]["train_loss"] < result.history[0]["train_loss"]
    more = {**config, "rounds": 3}
    again = fedprox.train(more, population=population(), model=theirs, out=tmp_path / "run", resume=True)
    assert len(again.history) == 4
    assert again.history[2]["train_loss"] == result.history[2]["train_loss"]
    assert jax.tree.structure(again.params) == jax.tree.structure(start)


class LinenNormalised(flax.linen.Module):
    """A network that says whether it is trained, as Flax's own examples do."""

    @flax.linen.compact
    def __call__(self, x: Any, train: bool) -> Any:
        x = flax.linen.Dense(6)(x)
        x = flax.linen.BatchNorm(use_running_average=not train, momentum=0.9)(x)
        x = flax.linen.Dropout(0.5, deterministic=not train)(x)
        return flax.linen.Dense(CLASSES)(flax.linen.relu(x))


class LinenUntold(flax.linen.Module):
    """A network whose normalisation is not told whether it is trained."""

    @flax.linen.compact
    def __call__(self, x: Any) -> Any:
        return flax.linen.Dense(CLASSES)(flax.linen.BatchNorm(momentum=0.9)(flax.linen.Dense(6)(x)))


class NnxNormalised(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.first = nnx.Linear(FEATURES, 6, rngs=rngs)
        self.norm = nnx.BatchNorm(6, momentum=0.9, rngs=rngs)
        self.drop = nnx.Dropout(0.5, rngs=rngs)
        self.last = nnx.Linear(6, CLASSES, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        return self.last(nnx.relu(self.drop(self.norm(self.first(x)))))


def plain_linen(module: Any, params: Any, batches: Any, rate: float, **told: Any) -> Any:
    """SGD in plain Flax, on mini-batches of any size; dropout, which the adapters leave out, is not there."""

    def mean_loss(trained: Any, statistics: Any, x: Any, y: Any) -> Any:
        variables = {"params": trained, "batch_stats": statistics}
        outputs, fresh = module.apply(variables, x, **told, mutable=["batch_stats"])
        return optax.softmax_cross_entropy_with_integer_labels(outputs, y).mean(), fresh["batch_stats"]

    @jax.jit
    def step(trained: Any, statistics: Any, x: Any, y: Any) -> Any:
        gradient, statistics = jax.grad(mean_loss, has_aux=True)(trained, statistics, x, y)
        return jax.tree.map(lambda w, g: w - rate * g, trained, gradient), statistics

    trained, statistics = params["params"], params["batch_stats"]
    for x, y in batches:
        trained, statistics = step(trained, statistics, x, y)
    return {"params": trained, "batch_stats": statistics}


def plain_nnx(module: Any, batches: Any, rate: float) -> Any:
    module.eval()
    module.set_attributes(use_running_average=False, raise_if_not_found=False)  # without dropout

    def mean_loss(module: Any, x: Any, y: Any) -> Any:
        return optax.softmax_cross_entropy_with_integer_labels(module(x), y).mean()

    @nnx.jit
    def step(module: Any, x: Any, y: Any) -> None:
        gradient = nnx.grad(mean_loss)(module, x, y)
        trained = nnx.state(module, nnx.Param)
        nnx.update(module, jax.tree.map(lambda w, g: w - rate * g, trained, gradient))

    for x, y in batches:
        step(module, x, y)
    return nnx.to_pure_dict(nnx.state(module, (nnx.Param, nnx.BatchStat)))


def own_batches(budget: int, round: int, device: int) -> list[Any]:
    """The mini-batches of a device in a round: of 7 examples, and a short one at the end of every epoch."""
    x, y = population().train.of(device)
    pieces = minibatches(len(x), 7, budget, seed=0, round=round, device=device, piece=256)
    return [(x[rows], y[rows]) for piece in pieces for rows in split_batches(piece, len(x))]


class Undropped(LinenNormalised):
    @flax.linen.compact
    def __call__(self, x: Any, train: bool) -> Any:
        x = flax.linen.Dense(6)(x)
        x = flax.linen.BatchNorm(use_running_average=not train, momentum=0.9)(x)
        return flax.linen.Dense(CLASSES)(flax.linen.relu(x))


@pytest.mark.parametrize("kind", ["linen", "untold", "nnx"])
def test_batch_statistics_agree_with_plain_flax(kind: str) -> None:
    example = np.zeros((1, FEATURES), np.float32)
    if kind == "linen":
        model, plain = from_linen(LinenNormalised(), example), partial(plain_linen, Undropped(), train=True)
    elif kind == "untold":
        model = from_linen(LinenUntold(), example)

        def plain(params: Any, batches: Any, rate: float) -> Any:  # Flax itself has to be told
            with flax.linen.intercept_methods(_trained):
                return plain_linen(LinenUntold(), params, batches, rate)
    else:
        model = from_nnx(NnxNormalised)

        def plain(params: Any, batches: Any, rate: float) -> Any:
            module = NnxNormalised(nnx.Rngs(0))
            state = nnx.state(module, (nnx.Param, nnx.BatchStat))
            nnx.replace_by_pure_dict(state, jax.tree.map(jnp.asarray, params))
            nnx.update(module, state)
            return plain_nnx(module, batches, rate)

    config = {**settings(batch_size=7), "rounds": 1, "method": {"name": "fedavg"}, "devices": {"per_round": 2}}
    starts: list[Any] = []
    result = fedprox.train(
        config, population=population(), model=model, callbacks=[lambda progress: starts.append(progress.params)]
    )
    row = result.devices[0]
    found = [
        plain(starts[0], own_batches(budget, 1, device), 0.1)
        for device, budget in zip(row["device"], row["budget"], strict=True)
    ]
    assert any(len(x) < 7 for x, _ in own_batches(row["budget"][0], 1, row["device"][0]))
    expected = jax.tree.map(lambda *leaves: np.tensordot(row["weight"], np.stack(leaves), axes=1), *found)
    assert jax.tree.structure(result.params) == jax.tree.structure(to_numpy(expected))
    assert_close(result.params, expected, atol=2e-5)
    personal = fedprox.train(
        {**config, "personal": {"parameters": list(model.statistics)}}, population=population(), model=model
    )
    assert_close(personal.personal[row["device"][0]], _joined(personal.params, found[0], model.statistics))
    changed = jax.tree.map(lambda a, b: not np.allclose(a, b), personal.params, result.params)
    assert sum(jax.tree.leaves(changed)) == 2  # mean and variance stay on the devices


def _joined(params: Any, own: Any, statistics: tuple[str, ...]) -> Any:
    """The parameters of the server with the statistics of a device."""
    return map_names(lambda name, a, b: b if matches_any(name, statistics) else a, params, to_numpy(own))


def _trained(call: Any, args: Any, kwargs: Any, context: Any) -> Any:
    is_norm = isinstance(context.module, flax.linen.BatchNorm) and context.method_name == "__call__"
    return call(*args, **(kwargs | {"use_running_average": False} if is_norm else kwargs))


class Counting(flax.linen.Module):
    @flax.linen.compact
    def __call__(self, x: Any) -> Any:
        self.variable("counts", "calls", lambda: jnp.zeros(()))
        return flax.linen.Dense(CLASSES)(x)


class Calls(nnx.Variable):
    """State that is neither parameters nor statistics."""


class CountingNnx(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.calls = Calls(jnp.zeros(()))


def test_equinox_refuses_state() -> None:
    class Normalised(eqx.Module):
        norm: eqx.nn.BatchNorm

        def __init__(self, key: Any) -> None:
            self.norm = eqx.nn.BatchNorm(FEATURES, axis_name="batch", mode="ema")

    with pytest.raises(ConfigError, match="module Normalised must keep all its state in parameters"):
        from_equinox(Normalised)


def test_flax_refuses_other_state() -> None:
    with pytest.raises(ConfigError, match="must keep all its state in parameters; it also has counts"):
        from_linen(Counting(), np.zeros((1, 3)))
    with pytest.raises(ConfigError, match="must keep all its state in parameters; it also has calls"):
        from_nnx(CountingNnx)


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: from_linen(flax.linen.Dense, np.zeros((1, 3))), "of Linen, not a class; got the class Dense"),
        (lambda: from_linen(nnx.Linear(2, 3, rngs=nnx.Rngs(0)), np.zeros((1, 2))), "got Linear: use `from_nnx`"),
        (
            lambda: from_linen(flax.linen.Dense(3), (1, 2)),
            r"`example` must be an array, .* such as x\[:1\]; got \(1, 2",
        ),
        (lambda: from_nnx(nnx.Linear(2, 3, rngs=nnx.Rngs(0))), "`make` must be a function of `rngs` .* got Linear"),
        (lambda: from_nnx(lambda rngs: 3), "`make` must return a module of NNX; got int"),  # type: ignore[return-value]
        (lambda: from_equinox(eqx.nn.Linear(2, 3, key=jax.random.key(0))), "a function of a key .* got Linear"),
        (
            lambda: from_equinox(lambda key: flax.linen.Dense(3)),  # type: ignore[return-value]
            "`make` must return a module of Equinox; got Dense",
        ),
        (
            lambda: from_linen(flax.linen.Embed(9, 2), np.zeros((1, 3))),
            r"module Embed, called with the example of float64 \(1, 3\), failed with ValueError: Input",
        ),
        (lambda: from_nnx(lambda: 3), "`make`, called with `rngs`, failed with TypeError"),
        (lambda: from_equinox(lambda: 3), "`make`, called with a key, failed with TypeError"),
    ],
)
def test_what_flax_and_equinox_cannot_take_gets_one_sentence(call: Any, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        call()


def test_recurrent_layers_of_nnx() -> None:
    """They have random numbers of their own, with counters, for the state that they begin with."""

    class Recurrent(nnx.Module):
        def __init__(self, rngs: nnx.Rngs) -> None:
            self.layer = nnx.RNN(nnx.LSTMCell(1, 4, rngs=rngs))
            self.output = nnx.Linear(4, CLASSES, rngs=rngs)

        def __call__(self, x: Any) -> Any:
            return self.output(self.layer(x[:, :, None])[:, -1])

    result = fedprox.train(settings(), population=population(), model=from_nnx(Recurrent))
    assert result.history[-1]["train_loss"] < result.history[0]["train_loss"]


@pytest.mark.parametrize("is_flat", [False, True])
def test_targets_that_are_broadcast_are_warned_of(is_flat: bool) -> None:
    x = np.random.default_rng(0).normal(size=(24, FEATURES)).astype(np.float32)
    data = fedprox.Population.from_arrays(x, x[:, 0], np.arange(24) % 4)

    def loss(outputs: Any, y: Any) -> Any:
        outputs = outputs[:, 0] if is_flat else outputs
        return jnp.square(outputs - y) if is_flat else jnp.square(outputs - y).mean(1)

    model = from_linen(flax.linen.Dense(1), x[:1], loss=loss, predict=None)
    config = {"rounds": 1, "devices": {"per_round": 2}}
    if is_flat:
        fedprox.train(config, population=data, model=model)  # warnings are errors here
        return
    with pytest.warns(UserWarning, match="with model Dense it does: are outputs and targets of different shapes"):
        fedprox.train(config, population=data, model=model)


def gradient_steps(params: Any, x: Any, y: Any, subproblem: Any, budget: int, key: int) -> tuple[Any, int]:
    """SGD on softmax regression, in NumPy, as a user might write it."""
    for rows in subproblem.minibatches():
        scores = x[rows] @ params["weight"].T + params["bias"]
        powers = np.exp(scores - scores.max(axis=1, keepdims=True))
        residual = (powers / powers.sum(axis=1, keepdims=True) - np.eye(CLASSES)[y[rows]]) / len(rows)
        gradient = {"bias": residual.sum(axis=0), "weight": residual.T @ x[rows]}
        for name in params:
            proximal = subproblem.mu * (params[name] - subproblem.anchor[name])
            linear = 0.0 if subproblem.linear is None else subproblem.linear[name]
            params[name] = params[name] - subproblem.learning_rate * (gradient[name] + proximal + linear)
    return params, budget


def test_an_opaque_solver_takes_part_in_the_same_run() -> None:
    own = solvers.opaque(gradient_steps)
    assert own.name == "gradient_steps"
    opaque = fedprox.train(settings(), population=population(), model=OURS, solver=own)
    ours = fedprox.train(settings(), population=population(), model=OURS)
    assert_close(opaque.params, ours.params)
    assert opaque.devices.column("steps") == ours.devices.column("steps")


def test_an_opaque_solver_is_seeded_for_round_and_device() -> None:
    seen: dict[tuple[int, int, int], int] = {}

    def note(params: Any, x: Any, y: Any, subproblem: Any, budget: int, key: int) -> tuple[Any, int]:
        local = subproblem.local
        seen[(local.seed, local.round, local.device)] = key
        return params, 0

    for seed, round, device in ((0, 1, 0), (0, 1, 1), (0, 2, 0), (1, 1, 0)):
        solvers.opaque(note).solve(local_problem(OURS, seed=seed, round=round, device=device))
        again = dict(seen)
        solvers.opaque(note).solve(local_problem(OURS, seed=seed, round=round, device=device, budget=1))
        assert seen == again
    assert len(set(seen.values())) == 4
    for key in seen.values():
        np.random.default_rng(key)
        torch.Generator().manual_seed(key)
        jax.random.key(key)


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (lambda params, budget: (params, budget + 1), "must take between 0 and 11 steps, its budget; got 12"),
        (lambda params, budget: (params, -1), "must take between 0 and 11 steps, its budget; got -1"),
        (lambda params, budget: (params, 1.5), "must take between 0 and 11 steps, its budget; got 1.5"),
        (lambda params, budget: params, r"must return \(params, steps\); got dict"),
        (lambda params, budget: ({"bias": params["bias"]}, 1), r"'weight': \(3, 5\)\); got none"),
        (lambda params, budget: ({**params, "bias": np.zeros(2)}, 1), r"'bias': \(3,\)\); got \(2,\)"),
    ],
)
def test_what_an_opaque_solver_returns_is_checked(answer: Any, sentence: str) -> None:
    solver = solvers.opaque(lambda params, x, y, subproblem, budget, key: answer(params, budget), name="mine")
    with pytest.raises(RunError, match="solver mine on device 1 in round 2 " + ".*" + sentence):
        solver.solve(local_problem(OURS))


def test_numbers_that_are_not_finite_are_recorded() -> None:
    def blow_up(params: Any, *_: Any) -> tuple[Any, int]:
        return {name: np.full_like(leaf, np.nan) for name, leaf in params.items()}, 1

    result = fedprox.train(settings(), population=population(), model=OURS, solver=solvers.opaque(blow_up))
    assert result.summary["not_finite_since"] == 1
    assert result.history[1]["train_loss"] is None


def test_solvers_may_differ_per_device() -> None:
    used: set[int] = set()

    def note(params: Any, x: Any, y: Any, subproblem: Any, budget: int, key: int) -> tuple[Any, int]:
        used.add(subproblem.local.device)
        return params, 0

    stay = solvers.opaque(note)
    config = settings() | {"devices": {"per_round": 4}, "rounds": 1}
    mapping = {0: stay, 1: solvers.sgd(), 2: solvers.lbfgs(), 3: solvers.adam()}
    from_mapping = fedprox.train(config, population=population(), model=OURS, solver=mapping)
    from_function = fedprox.train(config, population=population(), model=OURS, solver=lambda device: mapping[device])
    steps = dict(zip(from_mapping.devices[0]["device"], from_mapping.devices[0]["steps"], strict=True))
    budgets = dict(zip(from_mapping.devices[0]["device"], from_mapping.devices[0]["budget"], strict=True))
    assert used == {0}
    assert steps[0] == 0
    assert (steps[1], steps[3]) == (budgets[1], budgets[3])
    assert 0 < steps[2] <= budgets[2]
    jax.tree.map(np.testing.assert_array_equal, from_mapping.params, from_function.params)


def test_a_mapping_must_know_every_device() -> None:
    config = settings() | {"devices": {"per_round": 4}}
    with pytest.raises(ConfigError, match=r"`solver` must have an entry for every device; device [123] has none"):
        fedprox.train(config, population=population(), model=OURS, solver={0: solvers.sgd()})


@pytest.mark.parametrize("name", ["adam", "optax", "gradient_descent", "lbfgs", "newton_cg", "svrg"])
def test_every_named_solver_runs_from_a_config(name: str) -> None:
    config = settings(name=name, options={"name": "adamw"} if name == "optax" else {}, learning_rate=0.03)
    result = fedprox.train(config, population=population(), model=OURS)
    losses = result.history.column("train_loss")
    assert losses[2] < losses[1] < losses[0]
    for row in result.devices:
        assert all(steps <= budget for steps, budget in zip(row["steps"], row["budget"], strict=True))


def test_closed_form_rounds_solve_a_shared_least_squares_problem() -> None:
    rng = np.random.default_rng(4)
    x, truth = rng.normal(size=(80, 3)), np.array([1.0, -2.0, 0.5])
    shared = Population.from_arrays(x, (x @ truth + 0.7).astype(np.float32), np.arange(80) % 4)
    config = settings(name="closed_form") | {"rounds": 30, "devices": {"per_round": 4}}
    result = fedprox.train(config, population=shared, model=linear_regression(3))
    np.testing.assert_allclose(result.params["weight"], truth, atol=1e-3)
    assert result.history[-1]["train_accuracy"] is None


@pytest.mark.parametrize("name", ["scaffold", "fednova"])
@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        (torch.optim.SGD, solvers.sgd()),
        (partial(torch.optim.SGD, momentum=0.8), solvers.sgd(0.8)),
        (partial(torch.optim.SGD, momentum=0.8, nesterov=True), solvers.sgd(0.8, nesterov=True)),
        (partial(torch.optim.SGD, momentum=0.8, weight_decay=0.1), solvers.sgd(0.8, weight_decay=0.1)),
    ],
)
def test_methods_that_count_gradients_count_those_of_torch(name: str, theirs: Any, ours: Any) -> None:
    random = np.random.default_rng(1)
    x = random.normal(size=(60, 4)).astype(np.float32)
    population = fedprox.Population.from_arrays(x, random.integers(0, 3, 60), np.arange(60) % 4)
    module = nn.Linear(4, 3)
    nn.init.zeros_(module.weight)
    nn.init.zeros_(module.bias)
    config = {
        "rounds": 3,
        "method": {"name": name},
        "devices": {"per_round": 3, "stragglers": 0.5},
        "solver": {"epochs": 2, "learning_rate": 0.05},
    }
    model, solver = from_torch(module, optimiser=theirs)
    found = fedprox.train(config, population=population, model=model, solver=solver)
    expected = fedprox.train(config, population=population, model=softmax_regression(4, 3), solver=ours)
    np.testing.assert_allclose(found.params["weight"], expected.params["weight"], atol=2e-6)
    assert found.history.column("train_loss") == pytest.approx(expected.history.column("train_loss"), abs=1e-6)


def test_torch_sgd_whose_gradients_are_not_counted_is_refused() -> None:
    _, solver = from_torch(softmax_in_torch(), optimiser=partial(torch.optim.SGD, momentum=0.9, dampening=0.5))
    for other in (solver, from_torch(softmax_in_torch(), optimiser=torch.optim.Adam)[1]):
        with pytest.raises(ConfigError, match=r"must be sgd with method.name = 'scaffold'.*got 'torch"):
            fedprox.train({"rounds": 1, "method": {"name": "scaffold"}}, solver=other)


def test_a_loss_that_is_a_mean_is_refused_in_one_sentence() -> None:
    random = np.random.default_rng(1)
    population = fedprox.Population.from_arrays(random.normal(size=(20, 4)), np.arange(20) % 3, np.arange(20) % 2)
    config = {"rounds": 1, "devices": {"per_round": 2}}
    own = softmax_regression(4, 3)
    mean = dataclasses.replace(own, loss=lambda params, x, y: own.loss(params, x, y).mean(), gradient=None)
    with pytest.raises(ConfigError, match=r"must be one number per example, of shape \(examples,\), .* has shape \(\)"):
        fedprox.train(config, population=population, model=mean)
    model, solver = from_torch(nn.Linear(4, 3), nn.CrossEntropyLoss())
    for given in ({"solver": solver}, {}):
        with pytest.raises(ConfigError, match=r"one number per example .* for 2 examples it has shape \(\)"):
            fedprox.train(config, population=population, model=model, **given)
