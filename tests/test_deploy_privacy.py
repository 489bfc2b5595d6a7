"""Differential privacy on real devices: who clips, who adds noise, and what is counted."""

from dataclasses import replace

import numpy as np
import pytest
from flwr.app import Error

import fedprox
from conftest import population_of
from fake_federation import FakeGrid
from fedprox.config import Config
from fedprox.core.errors import ConfigError, RunFolderError
from fedprox.core.trees import flatten_names
from fedprox.deploy import server
from fedprox.deploy.messages import Instruction
from fedprox.deploy.settings import check_deployable
from fedprox.privacy import Accountant
from test_deploy_parts import POPULATION, build_config, run

PLAIN = {"dissimilarity": False}


@pytest.mark.parametrize("where", ["server", "client"])
def test_clipping_takes_the_same_path_as_the_simulation(where, tmp_path, monkeypatch):
    config = build_config(privacy={"clip": 0.05, "where": where}, measure=PLAIN)
    result = run(config, FakeGrid(config, POPULATION), tmp_path / "run", monkeypatch)
    simulated = fedprox.train(config, population=POPULATION)
    unclipped = fedprox.train(build_config(measure=PLAIN), population=POPULATION)
    for name, expected in simulated.params.items():
        # a device that clips sends w^t plus its update, and what is left of the update is rounded once more
        np.testing.assert_allclose(result.params[name], expected, atol=1e-6)
        assert not np.allclose(unclipped.params[name], expected, atol=1e-3)
    assert result.devices[0]["weight"] == [1 / 3] * 3
    assert result.history[-1]["epsilon"] is None  # clipping alone promises nothing


@pytest.mark.parametrize(("where", "sent"), [("client", True), ("server", False)])
def test_who_clips_before_an_update_leaves_the_device(where, sent):
    config = build_config(privacy={"clip": 0.05, "where": where}, measure=PLAIN)
    grid = FakeGrid(config, POPULATION)
    device = grid.devices[101]
    anchor = flatten_names(fedprox.train({**config.to_dict(), "rounds": 1}, population=POPULATION).params)
    work = device.work(Instruction(1, anchor, None, 1, 0.5, 30, 0.0))
    norm = np.sqrt(sum(((work.params[name] - anchor[name]) ** 2).sum() for name in anchor))
    assert bool(norm <= 0.05 * 1.001) is sent


def test_noise_is_the_systems_and_epsilon_is_counted(tmp_path, monkeypatch):
    config = build_config(privacy={"clip": 0.05, "noise_multiplier": 3.0}, measure=PLAIN)
    runs = [run(config, FakeGrid(config, POPULATION), tmp_path / str(turn), monkeypatch) for turn in (0, 1)]
    assert not np.array_equal(runs[0].params["weight"], runs[1].params["weight"])  # though the seed is the same
    spent = Accountant(devices=4, per_round=3, noise_multiplier=3.0, delta=1e-5)
    assert runs[0].history.column("epsilon") == [spent.epsilon(rounds) for rounds in range(4)]
    assert runs[0].summary["privacy"] == {"epsilon": spent.epsilon(3), "delta": 1e-5}


def test_the_server_adds_what_the_devices_have_not(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(server, "system_normals", lambda count: drawn.append(count) or np.zeros(count))
    for where, replies, expected in (("client", 3, 0), ("client", 2, 18), ("server", 3, 18)):
        config = build_config(rounds=1, privacy={"clip": 0.05, "noise_multiplier": 3.0, "where": where}, measure=PLAIN)
        missing = {1, 2, 3, 0} if replies == 2 else set()

        def behave(device, asked, answer, missing=missing):
            if isinstance(asked, Instruction) and device in missing:
                missing.clear()  # the first one asked does not answer
                return replace(answer, steps=asked.budget + 1)  # refused
            return answer

        drawn.clear()
        run(config, FakeGrid(config, POPULATION, behave), tmp_path / f"{where}{replies}", monkeypatch)
        assert sum(drawn) == expected, (where, replies)


def test_what_is_taken_again_is_counted_again(tmp_path, monkeypatch):
    config = build_config(privacy={"clip": 0.05, "noise_multiplier": 3.0}, measure=PLAIN, checkpoint={"every": 1})

    def dies(device, asked, answer):
        if isinstance(asked, Instruction) and asked.round == 3:
            raise KeyboardInterrupt
        return answer

    with pytest.raises(KeyboardInterrupt):
        run(config, FakeGrid(config, POPULATION, dies), tmp_path / "run", monkeypatch)
    # whatever the settings are that may change on the way
    other = Config.from_dict({**config.to_dict(), "checkpoint": {"every": 2}, "deploy": {"devices": 4, "repeats": 0}})
    resumed = run(other, FakeGrid(config, POPULATION), tmp_path / "run", monkeypatch, resume=True)
    assert resumed.history[-1]["epsilon"] == Accountant(4, 3, 3.0, 1e-5).epsilon(4)  # round 3 was sent out twice


def test_what_was_sent_out_must_be_on_record(tmp_path, monkeypatch):
    config = build_config(rounds=2, privacy={"clip": 0.05, "noise_multiplier": 3.0}, measure=PLAIN)
    run(config, FakeGrid(config, POPULATION), tmp_path / "run", monkeypatch)
    (tmp_path / "run" / "released.json").write_text('{"rounds": 1}')
    longer = Config.from_dict({**config.to_dict(), "rounds": 3})
    with pytest.raises(RunFolderError, match=r"released.json must hold .* at least 2, .*; got 1"):
        run(longer, FakeGrid(config, POPULATION), tmp_path / "run", monkeypatch, resume=True)


def test_the_number_of_devices_stays_as_it_was(tmp_path, monkeypatch):
    config = build_config(rounds=1, privacy={"clip": 0.05, "noise_multiplier": 3.0}, measure=PLAIN)
    run(config, FakeGrid(config, POPULATION), tmp_path / "run", monkeypatch)
    more = Config.from_dict({**config.to_dict(), "rounds": 2, "deploy": {"devices": 40}})
    with pytest.raises(RunFolderError, match=r"resume must not change `deploy.devices`"):
        run(more, FakeGrid(config, POPULATION), tmp_path / "run", monkeypatch, resume=True)


def test_a_limit_that_the_noise_alone_goes_beyond_is_refused(tmp_path, monkeypatch):
    config = build_config(
        privacy={"clip": 0.05, "noise_multiplier": 100.0, "where": "client"}, measure=PLAIN, deploy={"max_norm": 1.0}
    )
    with pytest.raises(ConfigError, match=r"`deploy.max_norm` must be 'auto', 0 or at least \d+, .*; got 1"):
        run(config, FakeGrid(config, POPULATION), tmp_path / "run", monkeypatch)


@pytest.mark.parametrize("key", ["dissimilarity", "gamma"])
def test_devices_that_do_not_trust_the_server_do_not_send_it_gradients(key):
    measure = {"dissimilarity": False, key: True}
    config = build_config(privacy={"clip": 0.05, "noise_multiplier": 3.0, "where": "client"}, measure=measure)
    with pytest.raises(ConfigError, match=f"`measure.{key}` must be false with `privacy.where` = 'client'"):
        check_deployable(config)
    check_deployable(Config.from_dict({**config.to_dict(), "privacy": {}}))


def test_a_round_that_is_done_again_draws_its_devices_anew(tmp_path, monkeypatch):
    """With one cohort for all releases of a round more is attainable than the accountant of fresh cohorts states."""
    tries = []

    def sleeps(device, asked, answer):
        if isinstance(asked, Instruction) and asked.round == 1:
            tries.append(device)
            return Error(2, "asleep") if len(tries) <= 3 * 15 else answer
        return answer

    population = population_of([24] * 20)
    config = build_config(
        rounds=1,
        privacy={"clip": 0.05, "noise_multiplier": 3.0, "delta": 1e-5},
        measure=PLAIN,
        deploy={"devices": 20, "repeats": 20, "min_replies": 3},
    )
    result = run(config, FakeGrid(config, population, sleeps), tmp_path / "run", monkeypatch)
    cohorts = {tuple(sorted(tries[at : at + 3])) for at in range(0, len(tries), 3)}
    assert len(tries) == 3 * 16
    assert len(cohorts) > 1
    stated = result.summary["privacy"]["epsilon"]
    assert stated == Accountant(20, 3, 3.0, 1e-5).epsilon(16)


def attainable_epsilon(releases, delta, devices, per_round, noise_multiplier):
    """Return the epsilon that `releases` of one cohort attain at least against the sum of what is released.

    With probability q = K / N the device is chosen, for all releases at once. Their sum has noise sqrt(n) z S, and a
    device that sends +S or -S moves it by 2 n S: a mixture of shifted Gaussians. For a threshold t on the standardised
    sum, P(above t) with the data must be at most e^epsilon P(above t) with the other data + delta.
    """
    from scipy.stats import norm

    q, shift = per_round / devices, 2 * np.sqrt(releases) / noise_multiplier
    thresholds = np.linspace(0, shift + 8, 20_000)
    with_data = q * norm.sf(thresholds - shift) + (1 - q) * norm.sf(thresholds)
    without = norm.sf(thresholds)
    with np.errstate(divide="ignore", invalid="ignore"):
        epsilons = np.log((with_data - delta) / without)
    return float(np.nanmax(epsilons[np.isfinite(epsilons)]))


def test_what_one_cohort_gives_away_is_more_than_is_stated_for_fresh_ones():
    stated = Accountant(1000, 10, 2.0, 1e-5).epsilon(16)
    assert attainable_epsilon(16, 1e-5, 1000, 10, 2.0) > stated  # why a cohort is not sent out again
    for rounds in (1, 16):  # the bound itself holds for a device that is in one release alone
        assert attainable_epsilon(1, 1e-5, 1000, 10, 2.0) <= Accountant(1000, 10, 2.0, 1e-5).epsilon(rounds)
