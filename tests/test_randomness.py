"""Draws depend on (seed, purpose, round, device) and on nothing else."""

from typing import Any

import numpy as np
import pytest

import fedprox
from fedprox.core.randomness import Purpose, generator, words
from test_limits import same_bits

PLAN: dict[str, Any] = {
    "rounds": 4,
    "solver": {"epochs": 4, "batch_size": 4, "learning_rate": 0.1},
    "devices": {"per_round": 4, "stragglers": 0.5},
}
DRAWN = ("device", "samples", "draws", "straggler", "epochs", "budget")


def test_streams_of_different_purposes_rounds_devices_and_seeds_differ():
    streams = [
        words(4, *arguments).tobytes()
        for arguments in ((0, Purpose.ORDER), (1, Purpose.ORDER), (0, Purpose.EPOCHS), (0, Purpose.ORDER, 1))
    ]
    streams.append(words(4, 0, Purpose.ORDER, 0, 1).tobytes())
    assert len(set(streams)) == len(streams)


def test_words_are_a_fixed_stream():
    # these bits are part of the format: a run must be repeatable with any later version
    assert words(2, 7, Purpose.DEVICES, 3, 5).tolist() == [14045922333479190230, 3440910515472528961]


def test_a_draw_does_not_depend_on_what_was_drawn_before():
    first = generator(0, Purpose.SYNTHETIC, device=3).normal(size=3)
    generator(0, Purpose.SYNTHETIC, device=2).normal(size=100)
    np.testing.assert_array_equal(first, generator(0, Purpose.SYNTHETIC, device=3).normal(size=3))


@pytest.mark.parametrize("sampling", ["uniform", "proportional"])
def test_every_method_and_mu_sees_the_same_draws(small_population, sampling):
    records = []
    for method in ({"name": "fedavg"}, {"mu": 0.0}, {"mu": 1.0}, {"mu": "adaptive"}):
        config = {**PLAN, "method": method, "devices": {**PLAN["devices"], "sampling": sampling}}
        result = fedprox.train(config, population=small_population)
        records.append([[row[name] for name in DRAWN] for row in result.devices])
    assert all(record == records[0] for record in records)


def test_another_seed_draws_other_devices(small_population):
    first, second = (
        fedprox.train({**PLAN, "seed": seed}, population=small_population).devices.column("device") for seed in (0, 1)
    )
    assert first != second


@pytest.mark.parametrize("batch_size", [0, 4])
def test_one_worker_and_two_give_the_same_bits(batch_size):
    config = {"rounds": 4, "devices": {"stragglers": 0.5}, "method": {"mu": 1.0}, "solver": {"batch_size": batch_size}}
    one, two, five = (fedprox.train({**config, "engine": {"workers": workers}}) for workers in (1, 2, 5))
    assert same_bits(one.params, two.params)
    assert same_bits(one.params, five.params)
    measured = ("train_loss", "train_accuracy", "test_accuracy", "gradient_variance", "dissimilarity")
    for row, other in zip(one.history, two.history, strict=True):
        assert [row[name] for name in measured] == [other[name] for name in measured]


def test_data_seed_and_seed_are_independent():
    plan = {"rounds": 1, "solver": {"epochs": 1}}
    base = fedprox.train(plan)
    other_draws = fedprox.train({**plan, "seed": 1})
    other_data = fedprox.train({**plan, "data": {"seed": 1}})
    assert base.history[0] | {"seconds": 0, "measure_seconds": 0} == other_draws.history[0] | {
        "seconds": 0,
        "measure_seconds": 0,
    }
    assert base.devices[0]["device"] != other_draws.devices[0]["device"]
    assert base.devices[0]["device"] == other_data.devices[0]["device"]
    assert base.devices[0]["samples"] != other_data.devices[0]["samples"]
