from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedprox.config import Config
from fedprox.config.parts import builtin_names, find_part
from fedprox.config.resolution import keys_of_section, takes_mu
from fedprox.core.errors import ConfigError
from fedprox.core.files import read_tensors
from fedprox.methods import Solution, build, fedadam, fedadmm, feddyn, scaffnew, scaffold
from fedprox.methods.gradient_count import gradient_count
from fedprox.methods.scaffnew import shared_steps
from fedprox.models import Model
from fedprox.models import build as build_model
from fedprox.population import Population
from fedprox.runs.checkpoint import devices_folder
from fedprox.runs.device_segments import Segment, SegmentReader
from fedprox.solvers import Stepwise, sgd
from fedprox.training.train import train
from reference_methods import DROPS_STRAGGLERS, final_models, steps_of_round

METHODS = builtin_names("methods")
SETTINGS = {
    "fedprox": {"mu": 0.5},
    "feddane": {"mu": 0.5},
    "fednova": {"mu": 0.5},
    "feddyn": {"alpha": 0.5},
    "fedexp": {"epsilon": 1e-4},
    "fedexprox": {"mu": 0.5},
    "ditto": {"mu": 0.5, "personal_mu": 0.2},
    "qffl": {"q": 0.7},
    "sdane": {"mu": 2.0},
    "fedadmm": {"mu": 0.5, "convexity": 0.2, "balance": 1.5, "penalty_factor": 2.0},
    "scaffnew": {"probability": 0.2},
    "agnostic": {"mu": 0.5, "mixture_step": 0.8},
    "pfedme": {"personal_mu": 0.5, "server_learning_rate": 0.8},
    "fedavgm": {"momentum": 0.5, "server_learning_rate": 0.7},
    "fedadam": {"server_learning_rate": 0.1, "beta1": 0.8, "beta2": 0.9, "tau": 0.01},
    "fedyogi": {"server_learning_rate": 0.1, "beta1": 0.8, "beta2": 0.9, "tau": 0.01},
}
pytestmark = pytest.mark.filterwarnings("ignore:the theory of scaffnew needs every device in every round")
SOLVES = {"ditto": 2}  # subproblems of a device in a round; 1 for the others
SIZES = (5, 40, 12, 23, 9, 31, 17, 8)
RATE, BATCH, SEED = 0.1, 7, 3


def small_population(sizes=SIZES, seed=0):
    random = np.random.default_rng(seed)
    device = np.repeat(np.arange(len(sizes)), sizes)
    x = random.normal(size=(len(device), 6)) + 0.3 * random.normal(size=(len(sizes), 6))[device]
    y = np.argmax(x @ random.normal(size=(6, 3)) + random.gumbel(size=(len(device), 3)), axis=1)
    x, y = x.astype(np.float32), y.astype(np.int32)
    return Population.from_arrays(x, y, device, test=np.zeros(len(device), bool))


POPULATION = small_population()
MODEL = build_model("softmax_regression", POPULATION.shape, POPULATION.classes)  # one object: compiled once


def run(name, population=POPULATION, model=MODEL, settings=None, out=None, resume=False, **sections):
    config = {
        "seed": SEED,
        "rounds": sections.pop("rounds", 2),
        "method": {"name": name, **(SETTINGS.get(name, {}) if settings is None else settings)},
        "solver": {"learning_rate": RATE, "batch_size": BATCH, "epochs": 3, **sections.pop("solver", {})},
        "devices": {"per_round": 5, **sections.pop("devices", {})},
        "engine": {"workers": sections.pop("workers", 1)},
        "measure": {"dissimilarity": False},
        **sections,
    }
    return train(config, population=population, model=model, out=out, resume=resume)


def matrix(params):
    return np.column_stack([params["weight"], params["bias"]])


# every method against plain NumPy


def check_against_reference(name, settings, solver_momentum=0.0, **devices):
    result = run(name, settings=settings, devices=devices, solver={"momentum": solver_momentum})
    personal = {}
    expected = final_models(
        name,
        POPULATION,
        result.devices,
        rate=RATE,
        batch_size=BATCH,
        seed=SEED,
        proportional=devices.get("sampling") == "proportional",
        solver_momentum=solver_momentum,
        personal=personal,
        **settings,
    )
    assert set(result.personal) == set(personal)
    for device, model in result.personal.items():
        np.testing.assert_allclose(matrix(model), personal[device], rtol=2e-4, atol=2e-5)
    assert len(expected) == 2
    assert np.abs(expected[-1]).max() > 0.05  # it has moved
    np.testing.assert_allclose(matrix(result.params), expected[-1], rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("sampling", ["uniform", "proportional"])
def test_the_first_two_rounds_agree_with_plain_numpy(name, sampling):
    check_against_reference(name, SETTINGS.get(name, {}), sampling=sampling, stragglers=0.4, failure=0.2)


def test_feddane_with_a_second_draw_agrees_with_plain_numpy():
    check_against_reference("feddane", {"mu": 0.5, "second_draw": True}, stragglers=0.4)


@pytest.mark.parametrize("mu", [0.0, 0.5])
def test_fednova_with_momentum_agrees_with_plain_numpy(mu):
    check_against_reference("fednova", {"mu": mu}, solver_momentum=0.5, stragglers=0.4)


@pytest.mark.parametrize(("extrapolated", "plain", "mu"), [("fedexp", "fedavg", 0), ("fedexprox", "fedprox", 0.5)])
def test_a_step_held_at_one_is_the_mean_bit_for_bit(extrapolated, plain, mu):
    shared = {"mu": mu} if mu else {}
    held = run(extrapolated, settings={**shared, "extrapolation": 1.0}, devices={"stragglers": 0.4})
    mean = run(plain, settings=shared, devices={"stragglers": 0.4})
    assert all(np.array_equal(held.params[key], mean.params[key]) for key in mean.params)
    longer = run(extrapolated, settings={**shared, "extrapolation": 1.5}, devices={"stragglers": 0.4})
    assert not np.array_equal(held.params["weight"], longer.params["weight"])


@pytest.mark.parametrize(
    ("fair", "key", "plain", "shared"),
    [("qffl", "q", "fedavg", {}), ("agnostic", "mixture_step", "fedprox", {"mu": 0.5})],
)
def test_a_fair_method_without_its_fairness_is_the_mean_bit_for_bit(fair, key, plain, shared):
    without = run(fair, settings={**shared, key: 0.0}, devices={"stragglers": 0.4})
    mean = run(plain, settings=shared, devices={"stragglers": 0.4})
    assert all(np.array_equal(without.params[name], mean.params[name]) for name in mean.params)
    assert without.history.column("bytes") == mean.history.column("bytes")
    fairer = run(fair, settings={**shared, key: 2.0}, devices={"stragglers": 0.4}, rounds=4)
    assert not np.array_equal(fairer.params["weight"], mean.params["weight"])
    with pytest.raises(ConfigError, match=rf"`method.{key}` must be a number >= 0; got -1.0"):
        run(fair, settings={key: -1.0})
    with pytest.raises(ConfigError, match=rf"`method.{key}` must be a number >= 0; got -1.0"):
        find_part("methods", fair, "method.name")(**{key: -1.0})


@pytest.mark.parametrize(("name", "settings"), [("qffl", {"q": 5.0}), ("agnostic", {"mixture_step": 0.3})])
def test_fair_methods_lower_the_worst_loss(name, settings):
    """Two devices that want 0 and 1, the first with three times the samples: the mean sits nearer to the first."""
    device = np.repeat([0, 1], (30, 10))
    x = np.ones((40, 1), np.float32)
    population = Population.from_arrays(x, device.astype(np.float32), device, test=np.zeros(40, bool))
    model = Model("one_number", lambda key: jnp.zeros(1), lambda w, x, y: (x @ w - y) ** 2, None)
    common = {"population": population, "model": model, "devices": {"per_round": 2}, "rounds": 60}
    solver = {"solver": {"batch_size": 0, "epochs": 2, "learning_rate": 0.1}}
    mean = float(run("fedavg", **common, **solver).params[0])
    fair = float(run(name, settings=settings, **common, **solver).params[0])
    assert mean == pytest.approx(0.25, abs=0.01)
    assert 0.4 < fair < 0.6  # 0.5 has the least of the worst losses
    assert max(fair, 1 - fair) < 0.85 * max(mean, 1 - mean)


def test_a_loss_whose_power_is_infinite_is_a_run_that_has_diverged():
    x, y = np.ones((8, 1), np.float32), np.full(8, 1e16, np.float32)
    population = Population.from_arrays(x, y, np.arange(8) // 4, test=np.zeros(8, bool))
    model = Model("one_number", lambda key: jnp.zeros(1), lambda w, x, y: (x @ w - y) ** 2, None)
    result = run("qffl", population, model, settings={"q": 10.0}, devices={"per_round": 2}, rounds=3)  # 1e32^10
    assert (result.summary["ended"], result.summary["not_finite_since"]) == ("finished", 1)


def test_the_loss_of_a_device_costs_no_budget():
    records = [run(name, settings={}, rounds=3).devices for name in ("qffl", "fedavg")]
    assert records[0].column("steps") == records[1].column("steps")


@pytest.mark.parametrize("value", [0.5, "always", -1])
def test_an_extrapolation_below_one_is_refused(value):
    with pytest.raises(ConfigError, match=r"`method.extrapolation` must be a number >= 1, or 'auto'; got"):
        run("fedexp", settings={"extrapolation": value})


# every method under every budget rule

BUDGET_RULES: dict[str, Any] = {
    "all finish": {},
    "half straggle": {"devices": {"stragglers": 0.5}},
    "nine in ten straggle": {"devices": {"per_round": 8, "stragglers": 0.9}},
    "one epoch": {"solver": {"epochs": 1}, "devices": {"stragglers": 0.5}},
    "proportional": {"devices": {"sampling": "proportional", "stragglers": 0.5}},
    "failures": {"devices": {"failure": 0.4, "stragglers": 0.2}},
    "whole batches": {"solver": {"batch_size": 0}, "devices": {"stragglers": 0.5}},
    "stop at gamma": {"solver": {"gamma": 0.6}},
}


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("rule", BUDGET_RULES)
def test_every_method_respects_every_budget_and_reduces_the_loss(name, rule):
    result = run(name, rounds=12, **{key: dict(value) for key, value in BUDGET_RULES[rule].items()})
    losses = result.history.column("train_loss")
    assert losses[-1] < 0.9 * losses[0]
    for record in result.devices:
        failed = record.get("failed", [False] * len(record["kept"]))
        for kept, straggler, lost, steps, budget, weight in zip(
            record["kept"],
            record["straggler"],
            failed,
            record["steps"],
            record["budget"],
            record["weight"],
            strict=True,
        ):
            assert kept == (not lost and not (straggler and name in DROPS_STRAGGLERS))
            asked = SOLVES.get(name, 1) * budget
            if name == "scaffnew":
                asked = min(budget, steps_of_round(SETTINGS[name]["probability"], SEED, record["round"]))
            if rule == "stop at gamma" or (name == "fedadmm" and kept):  # its devices have a test of their own
                assert 0 <= steps <= asked
            else:
                assert steps == (asked if kept else 0)
            assert (weight > 0) == kept
        assert sum(record["weight"]) == pytest.approx(1.0 if any(record["kept"]) else 0.0)


@pytest.mark.parametrize("name", METHODS)
def test_nothing_moves_when_nobody_is_left(name):
    result = run(name, devices={"failure": 1.0})
    assert not matrix(result.params).any()


@pytest.mark.parametrize("name", METHODS)
def test_one_worker_and_two_give_the_same_bits(name):
    one, two = (run(name, rounds=4, devices={"stragglers": 0.4}, workers=workers) for workers in (1, 2))
    assert all(np.array_equal(one.params[key], two.params[key]) for key in one.params)
    assert one.history.column("train_loss") == two.history.column("train_loss")


@pytest.mark.parametrize("name", METHODS)
def test_a_resumed_run_equals_a_straight_one(name, tmp_path):
    straight = run(name, rounds=6, devices={"stragglers": 0.4})
    run(name, rounds=3, devices={"stragglers": 0.4}, out=tmp_path / "run")
    resumed = run(name, rounds=6, devices={"stragglers": 0.4}, out=tmp_path / "run", resume=True)
    assert all(np.array_equal(straight.params[key], resumed.params[key]) for key in straight.params)
    assert straight.history.column("train_loss") == resumed.history.column("train_loss")
    assert Config.from_toml(tmp_path / "run" / "config.toml").method.name == name


# limits

EVERYBODY = {"per_round": len(SIZES)}


def test_scaffold_with_one_full_step_is_gradient_descent():
    result = run("scaffold", rounds=5, devices=EVERYBODY, solver={"epochs": 1, "batch_size": 0})
    x, y = jnp.asarray(POPULATION.train.x), jnp.asarray(POPULATION.train.y)
    params = MODEL.init(jax.random.key(0))
    for _ in range(5):
        gradient = jax.grad(lambda params: MODEL.loss(params, x, y).mean())(params)
        params = jax.tree.map(lambda w, g: w - RATE * g, params, gradient)
    np.testing.assert_allclose(matrix(result.params), matrix(params), rtol=1e-5, atol=1e-6)


def test_the_first_round_of_sdane_is_that_of_feddane_bit_for_bit():
    first, second = (
        [run(name, settings={"mu": 2.0}, rounds=rounds).params["weight"] for name in ("sdane", "feddane")]
        for rounds in (1, 2)
    )
    assert np.array_equal(*first)
    assert not np.array_equal(*second)  # from then on the centre is another one


def test_sdane_with_exact_solutions_is_feddane(least_squares):
    population, model, _ = least_squares
    started = Model("least_squares", lambda key: jnp.zeros(3), model.loss, None)
    solver, devices = {"batch_size": 0, "epochs": 400}, {"per_round": 4}
    dane, stable = (
        run(name, population, started, {"mu": 1.0}, rounds=3, solver=solver, devices=devices).params
        for name in ("feddane", "sdane")
    )
    np.testing.assert_allclose(stable, dane, rtol=1e-4, atol=1e-5)


def test_sdane_does_not_leave_the_optimum_and_gets_there_with_few_steps(least_squares):
    assert at_the_optimum(least_squares, "sdane", {"mu": 1.0}) < 1e-5
    population, model, optimum = least_squares
    started = Model("least_squares", lambda key: jnp.zeros(3), model.loss, None)
    solver, devices = {"batch_size": 0, "epochs": 3}, {"per_round": 4}
    result = run("sdane", population, started, {"mu": 2.0}, rounds=80, solver=solver, devices=devices)
    assert np.abs(result.params - optimum).max() < 1e-3


def test_sdane_counts_its_gradients():
    """Down go v and g, up go a gradient, w_k and the gradient there; all are of the size of the model."""
    result = run("sdane", rounds=1, devices=EVERYBODY)
    assert result.history[-1]["bytes"] == len(SIZES) * 5 * sum(leaf.nbytes for leaf in result.params.values())
    with pytest.raises(ConfigError, match=r"`method.mu` must be a number > 0.*; got 0.0"):
        run("sdane", settings={"mu": 0.0})


def test_fedadmm_with_a_fixed_penalty_and_all_devices_is_feddyn():
    settings = {"mu": 0.5, "convexity": 1e-20, "penalty_factor": 1.0}
    admm = run("fedadmm", settings=settings, rounds=4, devices=EVERYBODY)
    dyn = run("feddyn", settings={"alpha": 0.5}, rounds=4, devices=EVERYBODY)
    assert admm.devices.column("steps") == dyn.devices.column("steps")
    np.testing.assert_allclose(matrix(admm.params), matrix(dyn.params), rtol=1e-4, atol=1e-5)


def test_the_first_step_of_fedadmm_is_the_share_of_devices_that_took_part():
    """With a zero dual A / B is the mean of 2 u_k - w^0, of which the server goes the mass of its devices."""
    sizes = (14,) * 6
    population = small_population(sizes)
    settings = {"mu": 0.5, "convexity": 1e-20}
    admm = run("fedadmm", population=population, settings=settings, rounds=1, devices={"per_round": 3})
    prox = run("fedprox", population=population, settings={"mu": 0.5}, rounds=1, devices={"per_round": 3})
    np.testing.assert_allclose(matrix(admm.params), 3 / 6 * 2 * matrix(prox.params), rtol=1e-4, atol=1e-6)


def test_devices_of_fedadmm_stop_when_they_are_accurate_enough():
    loose, tight = (
        run("fedadmm", settings={"convexity": convexity}, rounds=3, solver={"epochs": 10})
        for convexity in (100.0, 1e-20)
    )
    assert tight.devices.column("steps") == tight.devices.column("budget")
    assert sum(map(sum, loose.devices.column("steps"))) < 0.5 * sum(map(sum, tight.devices.column("steps")))


def test_fedadmm_goes_to_the_optimum_of_devices_that_disagree(least_squares):
    population, model, optimum = least_squares
    solver, devices = {"batch_size": 0, "epochs": 10}, {"per_round": 4}
    result = run("fedadmm", population, model, {}, rounds=100, solver=solver, devices=devices)
    assert np.abs(result.params - optimum).max() < 1e-3


@pytest.mark.parametrize(
    ("key", "value", "rule"), [("mu", 0.0, "> 0"), ("balance", 0.5, ">= 1"), ("convexity", 0.0, "> 0")]
)
def test_numbers_that_fedadmm_cannot_use_are_refused(key, value, rule):
    with pytest.raises(ConfigError, match=rf"`method.{key}` must be a number {rule}.*; got {value}"):
        run("fedadmm", settings={key: value})


def test_fedadmm_has_a_first_penalty_of_one():
    assert Config.from_dict({"method": {"name": "fedadmm"}}).method.mu == 1.0
    assert run("fedadmm", settings={}, rounds=1).devices[0]["mu"] == 1.0
    with pytest.raises(ConfigError, match=r"`method.mu` must be a number > 0; got 0.0"):
        fedadmm(mu=0.0)


def test_scaffnew_that_always_communicates_is_gradient_descent():
    everybody = run("scaffnew", settings={"probability": 1.0}, rounds=5, devices=EVERYBODY, solver={"batch_size": 0})
    plain = run("scaffold", rounds=5, devices=EVERYBODY, solver={"epochs": 1, "batch_size": 0})
    np.testing.assert_allclose(matrix(everybody.params), matrix(plain.params), rtol=1e-5, atol=1e-6)


def test_scaffnew_takes_the_same_geometric_number_of_steps_on_all_devices():
    taken = [shared_steps(0.2, SEED, round) for round in range(1, 2001)]
    assert min(taken) == 1
    assert np.mean(taken) == pytest.approx(5, abs=4 * np.sqrt(20 / 2000))  # mean 1 / p, variance (1 - p) / p^2
    assert np.mean(np.array(taken) == 1) == pytest.approx(0.2, abs=0.04)
    result = run("scaffnew", rounds=6, devices=EVERYBODY, solver={"batch_size": 0, "epochs": 100})
    for record in result.devices:
        assert set(record["steps"]) == {shared_steps(0.2, SEED, record["round"])}


def test_scaffnew_goes_to_the_optimum_of_devices_that_disagree_and_fedavg_does_not(least_squares):
    population, model, optimum = least_squares
    ends = {}
    for name, settings, epochs in (("scaffnew", {"probability": 0.2}, 100), ("fedavg", {}, 5)):
        solver = {"batch_size": 0, "epochs": epochs}
        devices = {"per_round": 4}
        result = run(name, population, model, settings, rounds=150, solver=solver, devices=devices)
        ends[name] = np.abs(result.params - optimum).max()
    assert ends["scaffnew"] < 1e-3 < 1e-2 < ends["fedavg"]


def test_scaffnew_refuses_momentum_and_warns_of_missing_devices():
    sentence = r"`solver.name` must be sgd without momentum with method.name = 'scaffnew'.*; got momentum 0.5"
    with pytest.raises(ConfigError, match=sentence):
        run("scaffnew", solver={"momentum": 0.5})
    with pytest.raises(ConfigError, match=r"must be sgd without momentum .*; got 'adam'"):
        run("scaffnew", solver={"name": "adam"})
    with pytest.warns(UserWarning, match=r"the theory of scaffnew needs every device .* `devices.per_round` is 5 of 8"):
        run("scaffnew", rounds=1)
    for value in (0.0, 1.5):
        with pytest.raises(ConfigError, match=rf"`method.probability` must be a number in \(0, 1\]; got {value}"):
            run("scaffnew", settings={"probability": value})
        with pytest.raises(ConfigError, match=rf"`method.probability` must be a number in \(0, 1\]; got {value}"):
            scaffnew(probability=value)


def read_remembered(folder, values):
    """Return the arrays that devices remember, by device."""
    segments = [Segment(**each) for each in values["devices"]]
    readers = [SegmentReader(devices_folder(folder), segment) for segment in segments]
    return {k: reader.state(row) for reader in readers for row, k in enumerate(reader.devices.tolist())}


def test_scaffold_and_feddyn_servers_hold_the_mean_of_what_devices_remember(tmp_path):
    for name in ("scaffold", "feddyn"):
        run(name, rounds=4, devices={"per_round": 4, "stragglers": 0.5}, out=tmp_path / name)
        tensors, values = read_tensors(tmp_path / name / "checkpoint" / "state.safetensors")
        held = [
            POPULATION.masses[device] * remembered["weight"]
            for device, remembered in read_remembered(tmp_path / name, values).items()
        ]
        np.testing.assert_allclose(tensors["server.weight"], sum(held), rtol=1e-4, atol=1e-6)


def test_only_devices_that_took_part_are_remembered(tmp_path):
    result = run("scaffold", rounds=1, devices={"per_round": 4, "failure": 0.25}, out=tmp_path / "run")
    _, values = read_tensors(tmp_path / "run" / "checkpoint" / "state.safetensors")
    remembered = set(read_remembered(tmp_path / "run", values))
    (record,) = result.devices
    assert remembered == {k for k, kept in zip(record["device"], record["kept"], strict=True) if kept}
    assert len(remembered) == 3


def test_the_second_draw_is_independent_and_recorded():
    settings = {"mu": 0.5, "second_draw": True}
    records = run("feddane", rounds=20, settings=settings, devices={"per_round": 3}).devices
    first = [record["device"] for record in records]
    assert first == [record["device"] for record in run("fedprox", rounds=20, devices={"per_round": 3}).devices]
    second = [record["second_draw"]["device"] for record in records]
    assert all(sum(record["second_draw"]["weight"]) == pytest.approx(1.0) for record in records)
    overlap = [len(set(a) & set(b)) for a, b in zip(first, second, strict=True)]
    assert 0.5 < np.mean(overlap) < 1.8  # of 3, with 9/8 expected


def test_fednova_with_equal_steps_is_fedavg():
    population = small_population(sizes=(14,) * 6)
    nova = run("fednova", population=population, settings={}, rounds=3)
    average = run("fedavg", population=population, rounds=3)
    np.testing.assert_allclose(matrix(nova.params), matrix(average.params), rtol=1e-5, atol=1e-6)


def test_fedavgm_without_momentum_is_fedavg():
    plain = run("fedavg", rounds=3, devices={"stragglers": 0.4})
    without = run("fedavgm", rounds=3, devices={"stragglers": 0.4}, settings={"momentum": 0.0})
    np.testing.assert_allclose(matrix(without.params), matrix(plain.params), rtol=1e-5, atol=1e-6)


def test_fedadam_with_zero_betas_moves_by_a_normalised_step():
    move = matrix(run("fedavg", rounds=1).params)  # from zero
    settings = {"server_learning_rate": 0.2, "beta1": 0.0, "beta2": 0.0, "tau": 0.01}
    adam = matrix(run("fedadam", rounds=1, settings=settings).params)
    np.testing.assert_allclose(adam, 0.2 * move / (np.abs(move) + 0.01), rtol=1e-5)


def test_fedprox_and_feddane_differ_only_by_the_correction():
    """On one device g is its own gradient: the correction is zero."""
    population = small_population(sizes=(20,))
    dane, prox = (
        run(name, population=population, devices={"per_round": 1}, settings={"mu": 0.5})
        for name in ("feddane", "fedprox")
    )
    np.testing.assert_allclose(matrix(dane.params), matrix(prox.params), rtol=1e-5, atol=1e-6)


# at the optimum


@pytest.fixture(scope="module")
def least_squares():
    """Devices that disagree, their pooled optimum w*, and a model that starts there."""
    random = np.random.default_rng(1)
    device = np.repeat(np.arange(4), (6, 10, 8, 12))
    x = random.normal(size=(len(device), 3))
    y = np.einsum("ij,ij->i", x, random.normal(size=(4, 3))[device]) + random.normal(size=len(device))
    optimum, *_ = np.linalg.lstsq(x, y, rcond=None)
    population = Population.from_arrays(
        x.astype(np.float32), y.astype(np.float32), device, test=np.zeros(len(device), bool)
    )
    start = jnp.asarray(optimum, jnp.float32)
    model = Model("least_squares", lambda key: start, lambda w, x, y: (x @ w - y) ** 2 / 2, None)
    return population, model, optimum


def at_the_optimum(least_squares, name, settings):
    population, model, optimum = least_squares
    result = run(
        name,
        population=population,
        model=model,
        settings=settings,
        rounds=3,
        devices={"per_round": 4},
        solver={"batch_size": 0, "epochs": 10},
    )
    return np.abs(result.params - optimum).max()


def test_feddane_does_not_leave_the_optimum_and_fedprox_does(least_squares):
    assert at_the_optimum(least_squares, "feddane", {"mu": 0.1}) < 1e-5
    assert at_the_optimum(least_squares, "fedprox", {"mu": 0.1}) > 1e-2


def test_feddyn_with_the_right_duals_does_not_leave_the_optimum(least_squares, tmp_path):
    population, model, optimum = least_squares
    method = feddyn(0.1)
    start = optimum.astype(np.float32)

    def gradient(device):
        x, y = population.train.of(device)
        return x.T @ (x @ start - y) / len(y)

    from fedprox.core.threads import Workers
    from fedprox.engines import Broadcast, DeviceSide, LocalEngine, RoundRequest, Task
    from fedprox.population.loaded_samples import LoadedSamples

    side = DeviceSide(
        model=model,
        method=method,
        solver_for=lambda device: sgd(),
        samples=population.train,
        loaded=LoadedSamples.of(population.train, model),
        seed=0,
        batch_size=0,
        learning_rate=RATE,
    )
    duals = [gradient(device) for device in range(4)]
    assert max(np.abs(dual).max() for dual in duals) > 0.1
    tasks = [Task(k, 10, float(population.masses[k]), float(population.masses[k]), duals[k]) for k in range(4)]
    broadcast = Broadcast(1, start, (), method.subproblem_mu(0.0))
    answer = LocalEngine(side, Workers(1)).solve(RoundRequest(tasks, broadcast, settle=lambda *_: None))
    params, h = method.merge(np.zeros_like(start), start, answer.averaged, answer.summed)
    np.testing.assert_allclose(params, optimum, atol=1e-5)
    np.testing.assert_allclose(h, 0, atol=1e-6)
    for dual, remembered in zip(duals, answer.states, strict=True):
        np.testing.assert_allclose(remembered, dual, atol=1e-5)


# counting gradients


@given(
    steps=st.integers(0, 40),
    learning_rate=st.floats(0.001, 0.5),
    mu=st.floats(0, 2),
    momentum=st.sampled_from([0.0, 0.5, 0.9]),
    nesterov=st.booleans(),
)
def test_the_gradient_count_is_the_move_of_equal_gradients(steps, learning_rate, mu, momentum, nesterov):
    moved = velocity = 0.0
    for _ in range(steps):
        gradient = 1.0 - mu * moved
        velocity = momentum * velocity + gradient
        moved += learning_rate * (gradient + momentum * velocity if nesterov else velocity)
    count = gradient_count(sgd(momentum, nesterov), steps, learning_rate, mu)
    assert count == pytest.approx(moved / learning_rate, rel=1e-6, abs=1e-9)


def test_the_gradient_count_with_a_proximal_term_has_its_closed_form():
    assert gradient_count(sgd(), 50, 0.1, 0.5) == pytest.approx((1 - (1 - 0.05) ** 50) / 0.05)


@pytest.mark.parametrize("name", ["scaffold", "fednova"])
def test_solvers_outside_the_sgd_family_are_refused(name):
    other = Stepwise("adam", lambda params: (), lambda params, gradient, state, rate: (params, state))
    sentence = rf"`solver.name` must be sgd with method.name = '{name}'.*got 'adam'"
    for choice in (other, {0: other}, lambda device: other):
        with pytest.raises(ConfigError, match=sentence):
            train(
                {"rounds": 1, "method": {"name": name}, "devices": {"per_round": 8}},
                population=POPULATION,
                model=MODEL,
                solver=choice,
            )


def test_a_scaffold_device_that_did_nothing_keeps_its_variate():
    from fedprox.methods import Solution

    old, anchor = np.array([1.0, -2.0], np.float32), np.zeros(2, np.float32)
    reply = scaffold().reply(
        Solution(anchor, anchor, 0, RATE, 0.0, solver=sgd(), sent=np.ones(2, np.float32), state=old)
    )
    assert np.array_equal(reply.state, old)
    assert not reply.summed.any()


# the config


@pytest.mark.parametrize("name", METHODS)
def test_every_method_builds_from_its_config_and_survives_the_round_trip(name):
    config = Config.from_dict({"method": {"name": name, **SETTINGS.get(name, {})}})
    assert build(config.method).name == name
    again = Config.from_dict(config.to_dict())
    assert again.to_toml() == config.to_toml()
    assert build(again.method) == build(config.method)


@pytest.mark.parametrize("name", METHODS)
def test_keys_of_other_methods_are_refused(name):
    values = {"mu": 0.1, "second_draw": True, "alpha": 0.2, "momentum": 0.5, "tau": 0.1, "server_learning_rate": 0.5}
    for key, value in values.items():
        settings = {"method": {"name": name, key: value}}
        if key in keys_of_section("method", {"name": name}) or (key == "mu" and takes_mu(name)):
            assert getattr(Config.from_dict(settings).method, key) == value
        else:
            with pytest.raises(ConfigError, match=rf"`method.{key}` must be left out with method.name = '{name}'"):
                Config.from_dict(settings)


def test_an_alpha_that_sgd_cannot_follow_is_warned_of():
    with pytest.warns(UserWarning, match=r"`solver.learning_rate` times `method.alpha` is 2 or more; got 0.1 \* 30.0"):
        run("feddyn", settings={"alpha": 30.0}, rounds=1)


def test_server_learning_rates_have_their_own_defaults():
    rates = {
        name: Config.from_dict({"method": {"name": name}}).method.server_learning_rate  # type: ignore[attr-defined]
        for name in ("fedavgm", "fedadam", "fedyogi")
    }
    assert rates == {"fedavgm": 1.0, "fedadam": 0.03, "fedyogi": 0.03}


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [("feddyn", "alpha", 0.0), ("fedadam", "beta1", 1.0), ("fedyogi", "tau", 0.0), ("fedavgm", "momentum", -0.1)],
)
def test_values_out_of_range_are_refused(name, key, value):
    with pytest.raises(ConfigError, match=rf"`method.{key}` must be a number .*; got {value}"):
        Config.from_dict({"method": {"name": name, key: value}})


def test_values_out_of_range_are_refused_from_python():
    with pytest.raises(ConfigError, match=r"`method.alpha` must be a number > 0; got 0.0"):
        feddyn(0.0)
    with pytest.raises(ConfigError, match=r"`method.tau` must be a number > 0; got 0.0"):
        fedadam(tau=0.0)


def test_a_damped_variate_takes_a_share_of_its_change():
    whole, damped = (
        run("scaffold", rounds=1, settings={"damping": damping}, devices={"per_round": 4}) for damping in (1.0, 0.5)
    )
    np.testing.assert_array_equal(whole.params["weight"], damped.params["weight"])  # the first variates are 0
    values: dict[str, Any] = {
        "params": np.float32(1),
        "anchor": np.float32(3),
        "sent": np.float32(0.5),
        "state": np.float32(0),
    }
    solution = Solution(**values, steps=2, learning_rate=0.5, mu=0.0, solver=sgd())
    assert scaffold().reply(solution).summed == 1.5  # (3 - 1) / (2 * 0.5) - 0.5
    assert scaffold(damping=0.5).reply(solution).state == 0.75
    for value in (0.0, 1.5):
        with pytest.raises(ConfigError, match=rf"`method.damping` must be a number in \(0, 1\]; got {value}"):
            scaffold(damping=value)
