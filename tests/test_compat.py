"""Where the paper's text and its released code differ, each reading does what it says, and the default is as before."""

import importlib
import math
import re
import tomllib
from pathlib import Path

import numpy as np
import pytest

import fedprox
import reference_fedprox as reference
from conftest import population_of
from fedprox.config import CompatConfig, Config, with_overrides
from fedprox.core.errors import ConfigError, RunFolderError
from fedprox.core.threads import Workers
from fedprox.data import load, synthetic, synthetic_iid
from fedprox.measures import Measurer
from fedprox.models import Model, softmax_regression
from fedprox.models.initial_model import initial_params
from fedprox.participation.sampling import Cohort
from fedprox.participation.stragglers import straggler_work
from fedprox.population import Population
from fedprox.population.loaded_samples import LoadedSamples
from fedprox.runs.evaluate import data_settings, evaluate
from fedprox.theory.trajectory import again

ROOT = Path(__file__).parents[1]


def build_config(**compat):
    return Config.from_dict({"compat": compat})


def test_the_defaults_are_what_the_design_settles():
    compat = Config.from_dict({}).compat
    assert (compat.split, compat.straggler_epochs) == ("paper", "paper")
    assert (compat.alpha_beta, compat.dissimilarity, compat.initial) == ("released", "paper", "paper")
    assert (compat.test_share, compat.most_epochs(20), compat.deviation(0.25), compat.weighted) == (0.2, 20, 0.25, True)


def test_the_other_readings():
    compat = CompatConfig(split="released", straggler_epochs="released", alpha_beta="paper", dissimilarity="released")
    assert (compat.test_share, compat.most_epochs(20), compat.deviation(0.25), compat.weighted) == (0.1, 19, 0.5, False)


# split


@pytest.mark.parametrize("name", ["synthetic", "synthetic_iid"])
def test_the_split_keeps_a_tenth_or_a_fifth_for_testing(name):
    sizes = {}
    for split in ("paper", "released"):
        population = load(Config.from_dict({"data": {"name": name}, "compat": {"split": split}}))
        sizes[split] = np.diff(population.train.offsets), np.diff(population.test.offsets)
    whole = sizes["paper"][0] + sizes["paper"][1]
    assert (sizes["released"][0] + sizes["released"][1] == whole).all()
    assert sizes["paper"][1].tolist() == [size // 5 for size in whole]
    assert sizes["released"][1].tolist() == [size // 10 for size in whole]


def test_the_samples_are_the_same_however_they_are_split():
    fifth, tenth = load(build_config()), load(build_config(split="released"))
    for device in range(3):
        samples = [
            np.concatenate([population.train.of(device)[0], population.test.of(device)[0]])
            for population in (fifth, tenth)
        ]
        assert sorted(map(bytes, samples[0])) == sorted(map(bytes, samples[1]))
        few, many = (set(map(bytes, population.test.of(device)[0])) for population in (tenth, fifth))
        assert few < many  # so a comparison of the two differs in as few samples as it can


# alpha and beta


def test_alpha_and_beta_as_variances_are_the_deviations_of_their_roots():
    settings = {"alpha": 0.25, "beta": 0.04, "devices": 4}
    by_variance = load(Config.from_dict({"data": settings, "compat": {"alpha_beta": "paper"}}))
    np.testing.assert_array_equal(by_variance.train.x, synthetic(0.5, 0.2, devices=4).train.x)
    by_deviation = load(Config.from_dict({"data": settings}))
    np.testing.assert_array_equal(by_deviation.train.x, synthetic(0.25, 0.04, devices=4).train.x)


@pytest.mark.parametrize(("reading", "variance"), [("paper", 4.0), ("released", 16.0)])
def test_the_spread_of_the_devices_means(reading, variance):
    settings = {"alpha": 0.0, "beta": 4.0, "devices": 400, "seed": 3}
    population = load(Config.from_dict({"data": settings, "compat": {"alpha_beta": reading}}))
    # the mean of 30 entries of v_k is B_k plus N(0, 1/30), and the last 30 inputs hardly move around theirs
    means = np.array([population.train.of(k)[0][:, 30:].mean() for k in range(population.devices)])
    expected = variance + 1 / 30
    assert means.var() / expected == pytest.approx(1, abs=3.3 * math.sqrt(2 / 400))  # 99.9% of a chi-square


@pytest.mark.parametrize("spread", [0.0, 1.0])
def test_at_zero_and_one_deviation_and_variance_are_the_same(spread):
    settings = {"data": {"alpha": spread, "beta": spread, "devices": 3}}
    first, second = (load(Config.from_dict({**settings, "compat": {"alpha_beta": a}})) for a in ("paper", "released"))
    np.testing.assert_array_equal(first.train.x, second.train.x)
    np.testing.assert_array_equal(first.train.y, second.train.y)


# epochs of stragglers


def epochs_drawn(most, epochs=4, rounds=400):
    cohort = Cohort(np.arange(5), np.full(5, 30), np.ones(5, int))
    options = {"share": 1.0, "epochs": epochs, "batch_size": 10, "seed": 0}
    return [x for t in range(rounds) for x in straggler_work(cohort, **options, round=t, most=most).epochs.tolist()]


def test_stragglers_draw_from_1_to_e_minus_1():
    drawn = epochs_drawn(most=3)
    counts = [drawn.count(x) for x in (1, 2, 3)]
    assert sum(counts) == 2000
    assert sum((count - 2000 / 3) ** 2 / (2000 / 3) for count in counts) < 13.8  # 99.9%, 2 degrees of freedom


def test_without_a_largest_number_it_is_e():
    assert epochs_drawn(None, rounds=50) == epochs_drawn(4, rounds=50)
    assert max(epochs_drawn(None, rounds=50)) == 4


def test_a_run_with_two_epochs_leaves_stragglers_one():
    plan = {"rounds": 3, "devices": {"stragglers": 0.5}, "solver": {"epochs": 2}}
    released = fedprox.train({**plan, "compat": {"straggler_epochs": "released"}})
    for row in released.devices:
        assert [epochs for epochs, marked in zip(row["epochs"], row["straggler"], strict=True) if marked] == [1.0] * 5
        assert {epochs for epochs, marked in zip(row["epochs"], row["straggler"], strict=True) if not marked} == {2.0}
    paper = fedprox.train(plan)
    assert [row["straggler"] for row in paper.devices] == [row["straggler"] for row in released.devices]
    assert any(2.0 in np.array(row["epochs"])[row["straggler"]] for row in paper.devices)


# dissimilarity


def measured(population, params, model=None, weighted=False):
    model = model or softmax_regression(population.shape[0], population.classes)
    measurer = Measurer(population, LoadedSamples.of(population.train, model), model, Workers(1), weighted=weighted)
    return measurer.measure(params)


def test_a_plain_mean_over_two_devices_by_hand():
    # one parameter, F_k(w) = mean (w - y)^2 / 2 at w = 0: gradients -1 (3 samples) and -5 (1 sample); grad f = -2
    population = Population.from_arrays(np.ones((4, 1)), [1.0, 1.0, 1.0, 5.0], [0, 0, 0, 1], test=np.zeros(4))
    model = Model("mean", lambda key: np.zeros(1, np.float32), lambda w, x, y: (x @ w - y) ** 2 / 2, None)
    plain = measured(population, np.zeros(1, np.float32), model)
    assert plain.gradient_variance == pytest.approx((1 + 9) / 2)
    assert plain.dissimilarity == pytest.approx(math.sqrt((1 + 25) / 2 / 4))
    weighted = measured(population, np.zeros(1, np.float32), model, weighted=True)
    assert weighted.gradient_variance == pytest.approx((3 * 1 + 9) / 4)
    assert weighted.dissimilarity == pytest.approx(math.sqrt((3 * 1 + 25) / 4 / 4))


def test_a_plain_b_may_be_below_one():
    # gradients -2 (3 samples) and 0 (1 sample): grad f = -1.5, the plain mean of squares 2 is less than 2.25
    population = Population.from_arrays(np.ones((4, 1)), [2.0, 2.0, 2.0, 0.0], [0, 0, 0, 1], test=np.zeros(4))
    model = Model("mean", lambda key: np.zeros(1, np.float32), lambda w, x, y: (x @ w - y) ** 2 / 2, None)
    assert measured(population, np.zeros(1, np.float32), model).dissimilarity == pytest.approx(math.sqrt(2 / 2.25))
    assert measured(population, np.zeros(1, np.float32), model, weighted=True).dissimilarity >= 1


@pytest.mark.parametrize("sizes", [[5], [7, 23, 4, 31, 12], [1] * 300, [600, 3, 3]])
def test_plain_means_equal_numpy(sizes):
    population = population_of(sizes, test=2)
    random = np.random.default_rng(0)
    weight, bias = random.normal(size=(3, 5)).astype(np.float32), random.normal(size=3).astype(np.float32)
    gradients = []
    for device in range(population.devices):
        _, by_weight, by_bias = reference.losses_and_gradient(
            weight.astype(float), bias.astype(float), *population.train.of(device)
        )
        gradients.append(np.concatenate([by_weight.ravel(), by_bias]))
    of_f = population.masses @ np.array(gradients)
    params = {"weight": weight, "bias": bias}
    plain, weighted = measured(population, params), measured(population, params, weighted=True)
    variance = np.mean([((gradient - of_f) ** 2).sum() for gradient in gradients])
    assert plain.gradient_variance == pytest.approx(variance, rel=1e-4, abs=1e-6)
    b = math.sqrt(np.mean([(gradient**2).sum() for gradient in gradients]) / (of_f @ of_f))
    assert plain.dissimilarity == pytest.approx(b, rel=1e-5)
    assert plain.train_loss == weighted.train_loss
    if len(set(sizes)) == 1:  # devices of one size weigh the same
        assert plain.gradient_variance == pytest.approx(weighted.gradient_variance, rel=1e-4, abs=1e-6)


def test_only_what_is_measured_changes():
    plan = {"rounds": 2, "solver": {"epochs": 1}}
    weighted, plain = fedprox.train(plan), fedprox.train({**plan, "compat": {"dissimilarity": "released"}})
    assert weighted.history.column("train_loss") == plain.history.column("train_loss")
    for name in ("gradient_variance", "dissimilarity"):
        assert all(a != b for a, b in zip(weighted.history.column(name), plain.history.column(name), strict=True))


def test_the_theorems_keep_their_masses():
    assert again(build_config(dissimilarity="released"), 3).compat.weighted


# configs and run folders


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"compat": {"split": "90/10"}}, r"`compat.split` must be one of paper, released; got '90/10'"),
        ({"compat": {"splits": "paper"}}, r"unknown key `compat.splits`; did you mean `compat.split`\?"),
        ({"compat": "paper"}, r"`compat` must be a table of settings; got 'paper'"),
        (
            {"data": {"name": "mnist"}, "compat": {"split": "released"}},
            r"`compat.split` must be 'paper' with data.name = 'mnist'.*synthetic data only; got 'released'",
        ),
        (
            {"data": {"name": "npz", "path": "a.npz"}, "compat": {"split": "released"}},
            r"`compat.split` must be 'paper' with data.name = 'npz'",
        ),
        (
            {"solver": {"epochs": 1}, "devices": {"stragglers": 0.5}, "compat": {"straggler_epochs": "released"}},
            r"`solver.epochs` must be >= 2 with `compat.straggler_epochs = 'released'`.*; got 1",
        ),
    ],
)
def test_a_bad_setting_gets_one_sentence(settings, sentence):
    with pytest.raises(ConfigError, match=sentence) as error:
        Config.from_dict(settings)
    assert "\n" not in str(error.value)


def test_what_a_run_does_not_have_is_not_refused():
    Config.from_dict({"data": {"name": "mnist"}, "compat": {"split": "paper", "alpha_beta": "paper"}})
    Config.from_dict({"solver": {"epochs": 1}, "compat": {"straggler_epochs": "released"}})
    Config.from_dict({"measure": {"dissimilarity": False}, "compat": {"dissimilarity": "released"}})


def test_a_run_folder_carries_the_setting(tmp_path):
    out = tmp_path / "run"
    plan = {"rounds": 1, "solver": {"epochs": 1}, "compat": {"split": "released"}}
    result = fedprox.train(plan, out=out)
    assert tomllib.loads((out / "config.toml").read_text())["compat"]["split"] == "released"
    own = evaluate(out)  # on the run's own division of its data
    assert own["test_accuracy"] == pytest.approx(result.history[-1]["test_accuracy"])
    assert sum(row["test_samples"] for row in own["devices"]) == len(load(build_config(split="released")).test)
    with pytest.raises(RunFolderError, match=r"resume must not change `compat.split`"):
        fedprox.train({**plan, "rounds": 2, "compat": {}}, out=out, resume=True)
    longer = fedprox.train({**plan, "rounds": 2}, out=out, resume=True)
    straight = fedprox.train({**plan, "rounds": 2})
    assert longer.history.column("train_loss") == straight.history.column("train_loss")
    assert data_settings(out, "mnist", []).compat == CompatConfig()  # other data: nothing of the run's own goes along


def test_a_folder_without_the_section_had_the_defaults(tmp_path):
    plan = {"rounds": 1, "solver": {"epochs": 1}}
    fedprox.train(plan, out=tmp_path / "run")
    file = tmp_path / "run" / "config.toml"
    file.write_text(file.read_text().partition("[compat]")[0])
    with pytest.raises(RunFolderError, match=r"resume must not change `compat.dissimilarity`"):
        fedprox.train({**plan, "rounds": 2, "compat": {"dissimilarity": "released"}}, out=tmp_path / "run", resume=True)
    assert len(fedprox.train({**plan, "rounds": 2}, out=tmp_path / "run", resume=True).history) == 3


def test_from_the_command_line():
    settings = with_overrides({}, ["compat.straggler_epochs=released", 'compat.alpha_beta="paper"'])
    compat = Config.from_dict(settings).compat
    assert (compat.straggler_epochs, compat.alpha_beta) == ("released", "paper")


def test_plain_arguments_reach_the_generators():
    for population in (synthetic(1.0, 1.0, 2, test_share=0.5), synthetic_iid(2, test_share=0.5)):
        for device in range(2):
            assert population.train.size(device) - population.test.size(device) in (0, 1)


def test_the_page_holds_what_the_study_found(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(ROOT)
    study = importlib.import_module("benchmarks.compat")
    monkeypatch.setattr(study, "run_jobs", lambda jobs, workers: pytest.fail(f"not in the cache: {jobs[0].name}"))
    page = tmp_path / "compat.md"
    page.write_text((ROOT / "docs" / "compat.md").read_text())
    study.main(["--write", str(page)])
    assert page.read_text() == (ROOT / "docs" / "compat.md").read_text()
    assert len(re.findall(r"^\| Fed", page.read_text(), re.MULTILINE)) == 3 * (7 + 2)


# the initial model


def test_softmax_regression_starts_from_zeros_or_as_released():
    population = population_of([6, 4])
    model = softmax_regression(population.shape[0], population.classes)
    zeros = initial_params(build_config(), model)
    assert not any(leaf.any() for leaf in zeros.values())
    released = initial_params(build_config(initial="released"), model)
    limit = math.sqrt(6 / sum(released["weight"].shape))
    assert not released["bias"].any()
    assert released["weight"].shape == zeros["weight"].shape
    assert 0.9 * limit < abs(released["weight"]).max() <= limit
    again_released = initial_params(build_config(initial="released"), model)
    np.testing.assert_array_equal(released["weight"], again_released["weight"])
    other = initial_params(Config.from_dict({"seed": 1, "compat": {"initial": "released"}}), model)
    assert (other["weight"] != released["weight"]).any()


def test_the_initial_model_of_others_is_their_own():
    model = Model("mean", lambda key: np.zeros(1, np.float32), lambda w, x, y: (x @ w - y) ** 2 / 2, None)
    assert not initial_params(build_config(initial="released"), model).any()
