"""Attacks: what is sent, who sends it, and that robust rules withstand it."""

import json
from typing import Any

import numpy as np
import pytest

import fedprox
from conftest import population_of
from fedprox.attacks import choose_attackers, corrupt, flip_labels
from fedprox.config import AttackConfig, Config
from fedprox.core.errors import ConfigError
from fedprox.methods import Received, Reply
from fedprox.solvers import opaque

POPULATION = population_of([30] * 20)
SETTINGS = {"rounds": 15, "method": {"mu": 0.1}, "devices": {"per_round": 20}, "solver": {"epochs": 3}}
START = {"w": np.array([1.0, 2.0], np.float32)}


def received():
    moves = [(1, 0), (2, 1), (3, 2), (10, 10)]
    replies = [Reply({"w": START["w"] + np.float32(move)}, np.float32(k)) for k, move in enumerate(moves)]
    return [Received(k, reply, 0.25, 0.25, 5) for k, reply in enumerate(replies)]


def sent(kind, strength=0.0):
    attackers = np.array([False, False, False, True])
    attack = AttackConfig(share=0.25, kind=kind, strength=strength)
    return corrupt(attack, received(), attackers, START, seed=0, round=1)


@pytest.mark.parametrize(
    ("kind", "strength", "averaged", "summed"),
    [
        ("sign_flip", 0, [-9, -8], -3),
        ("scale", 0, [101, 102], 30),
        ("scale", 2, [21, 22], 6),
        ("ipm", 0, [0, 1.5], -0.5),
        ("ipm", 1, [-1, 1], -1),
        ("alie", 1, [3 - np.std([1, 2, 3]), 3 - np.std([0, 1, 2])], 1 - np.std([0, 1, 2])),
        ("label_flip", 0, [11, 12], 3),
    ],
)
def test_what_an_attacker_sends(kind, strength, averaged, summed):
    honest = received()[:3]
    *others, bad = sent(kind, strength)
    assert all(
        np.array_equal(one.reply.averaged["w"], two.reply.averaged["w"])
        for one, two in zip(others, honest, strict=True)
    )
    np.testing.assert_allclose(bad.reply.averaged["w"], averaged, rtol=1e-6)
    np.testing.assert_allclose(bad.reply.summed, summed, rtol=1e-6)
    assert bad.reply.averaged["w"].dtype == np.float32


def test_noise_is_drawn_for_seed_round_and_device():
    first, again = sent("noise")[-1].reply.averaged["w"], sent("noise")[-1].reply.averaged["w"]
    assert np.array_equal(first, again)
    assert not np.array_equal(first, received()[-1].reply.averaged["w"])


@pytest.mark.parametrize("kind", ["alie", "ipm"])
def test_without_honest_replies_attackers_that_need_them_send_the_model(kind):
    everyone = np.ones(4, bool)
    replies = corrupt(AttackConfig(share=1.0, kind=kind), received(), everyone, START, seed=0, round=1)
    assert all(np.array_equal(one.reply.averaged["w"], START["w"]) for one in replies)


def test_attackers_are_a_fixed_share_of_all_devices():
    chosen = choose_attackers(Config.of({"attack": {"share": 0.3}}), 25)
    assert chosen.sum() == 8  # floor(7.5 + 1/2)
    assert np.array_equal(chosen, choose_attackers(Config.of({"attack": {"share": 0.3, "kind": "ipm"}}), 25))
    assert not np.array_equal(chosen, choose_attackers(Config.of({"seed": 1, "attack": {"share": 0.3}}), 25))
    assert not choose_attackers(Config.of({}), 25).any()


def test_flipped_labels_are_those_of_attackers_alone():
    attackers = np.arange(20) < 5
    flipped = flip_labels(POPULATION, attackers)
    bad = np.repeat(attackers, np.diff(POPULATION.train.offsets))
    assert np.array_equal(flipped.train.y[~bad], POPULATION.train.y[~bad])
    assert np.array_equal(flipped.train.y[bad], POPULATION.classes - 1 - POPULATION.train.y[bad])
    assert np.array_equal(flipped.test.y, POPULATION.test.y)


@pytest.mark.parametrize("kind", ["sign_flip", "scale", "noise", "label_flip", "alie", "ipm"])
@pytest.mark.parametrize("rule", ["mean", "median"])
def test_a_run_under_attack_is_repeatable_on_any_number_of_workers(kind, rule, tmp_path):
    config: dict[str, Any] = {**SETTINGS, "rounds": 3, "attack": {"share": 0.2, "kind": kind}, "merge": {"rule": rule}}
    one = fedprox.train({**config, "engine": {"workers": 1}}, population=POPULATION, out=tmp_path / "run")
    two = fedprox.train({**config, "engine": {"workers": 2}}, population=POPULATION)
    assert all(np.array_equal(one.params[key], two.params[key]) for key in one.params)
    record = json.loads((tmp_path / "run" / "devices.jsonl").read_text().splitlines()[0])
    assert sum(record["attacker"]) == 4


@pytest.mark.parametrize("rule", ["median", "trimmed_mean", "multi_krum", "geometric_median", "centered_clipping"])
def test_robust_rules_lose_less_than_the_mean_under_attack(rule):
    attack = {"share": 0.2, "kind": "ipm", "strength": 10.0}
    keys: dict[str, Any] = {"trimmed_mean": {"trim": 0.25}, "multi_krum": {"byzantine": 4}}.get(rule, {})
    config = {**SETTINGS, "attack": attack}
    mean = fedprox.train(config, population=POPULATION).history[-1]["train_loss"]
    robust = fedprox.train({**config, "merge": {"rule": rule, **keys}}, population=POPULATION).history[-1]["train_loss"]
    assert mean is None or robust < mean


def test_updates_are_turned_around_at_the_model_that_devices_received():
    stay = opaque(lambda params, x, y, subproblem, budget, key: (params, budget), "stay")
    config: dict[str, Any] = {**SETTINGS, "rounds": 2, "method": {"name": "sdane", "mu": 1.0}}
    honest = fedprox.train(config, population=POPULATION, solver=stay)
    config["attack"] = {"share": 1.0, "kind": "sign_flip"}
    turned = fedprox.train(config, population=POPULATION, solver=stay)
    # the prox centre moves by a gradient in round 1, with its sign flipped; in round 2 devices stay at it
    for name, array in honest.params.items():
        assert np.abs(array).max() > 0
        np.testing.assert_allclose(turned.params[name], -array, atol=1e-6)


def test_more_attackers_than_the_rule_withstands_is_a_warning():
    config = {**SETTINGS, "rounds": 1, "attack": {"share": 0.3}, "merge": {"rule": "krum", "byzantine": 2}}
    with pytest.warns(UserWarning, match="about 6 attackers among 20 devices .* withstands at most 2"):
        fedprox.train(config, population=POPULATION)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"attack": {"share": 1.5}}, r"`attack.share` must be a number in \[0, 1\]; got 1.5"),
        (
            {"attack": {"kind": "flip"}},
            "`attack.kind` must be one of sign_flip, scale, noise",
        ),
        ({"attack": {"strength": 2.0}}, "`attack.strength` must be left out with attack.share = 0; got 2"),
        ({"attack": {"share": 0.1}, "privacy": {"clip": 1.0}}, "`attack.share` must be 0 with `privacy.clip`"),
    ],
)
def test_bad_input(settings, sentence):
    with pytest.raises(ConfigError, match=sentence):
        Config.of(settings)
