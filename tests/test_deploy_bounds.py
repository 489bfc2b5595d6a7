"""What a device may claim and add: steps, samples, weight, losses, time, and the norm of what is merged."""

import math
import tomllib
from dataclasses import dataclass, replace

import numpy as np
import pytest

import fedprox
from conftest import population_of
from fake_federation import FakeGrid
from fedprox.config import Config, with_overrides
from fedprox.core.errors import ConfigError, RunError
from fedprox.core.trees import difference, scale, squared_norm, total
from fedprox.deploy.message_exchange import Post
from fedprox.deploy.messages import Evaluation, Instruction
from fedprox.deploy.roster import Roster
from fedprox.deploy.settings import check_deployable
from fedprox.deploy.trial import Trial
from fedprox.methods import Method, Reply
from test_deploy_parts import POPULATION, build_config, run


def config_for(method, **sections):
    settings = build_config(**{"devices": {"per_round": 4}, "solver": {"epochs": 100}, **sections}).to_dict()
    return Config.from_dict({**settings, "method": method})


def one_step(device, asked, answer):
    """Device 1 claims a single step, and waits for the deadline, so that the claim could be true."""
    if device != 1 or not isinstance(asked, Instruction):
        return answer
    moved = {name: array - asked.params[name] for name, array in answer.params.items()}
    shorter = 0.9 / math.sqrt(sum(float((array**2).sum()) for array in moved.values()))
    params = {name: asked.params[name] + shorter * array for name, array in moved.items()}
    return replace(answer, params=params, steps=1, stopped_by_time=True)


@dataclass(frozen=True)
class PerStep(Method):
    """A method of a user's own that divides by the steps, and sums what it divides."""

    name: str = "per_step"
    needs_every_reply: bool = False

    def start(self, params):
        return scale(params, 0.0)

    def reply(self, solution):
        pace = scale(difference(solution.params, solution.anchor), 1 / solution.steps)
        return Reply({"pace": pace, "steps": np.float64(solution.steps)}, pace, pace)

    def start_device(self, params):
        return scale(params, 0.0)

    def merge(self, server, params, averaged, summed):
        return total(params, scale(averaged["pace"], float(averaged["steps"]))), total(server, summed)

    def merge_replies(self, server, params, replies):
        steps = sum(one.weight * one.steps for one in replies)
        for one in replies:
            params = total(params, scale(one.reply.averaged["pace"], one.weight * steps))
        return params, server


METHODS = [
    ({"name": "fednova"}, None),
    ({"name": "scaffold"}, None),
    ({"name": "fedprox"}, PerStep()),
    ({"name": "fedprox"}, PerStep(needs_every_reply=True)),
]


@pytest.mark.parametrize("max_norm", [20.0, "auto"])
@pytest.mark.parametrize(("name", "method"), METHODS)
def test_a_claim_of_one_step_does_not_move_model_or_memory(name, method, max_norm, tmp_path, monkeypatch):
    config = config_for(name, rounds=4, deploy={"max_norm": max_norm, "deadline": 10.0})
    delays = {(101, str(round)): 10.0 for round in range(1, 5)}
    grid = FakeGrid(config, POPULATION, one_step, delays=delays)
    result = run(config, grid, tmp_path / "run", monkeypatch, method=method)
    problems = {
        (row["round"], device): problem
        for row in result.devices
        for device, problem in zip(row["device"], row["problem"], strict=True)
    }
    assert all("is beyond the limit of" in problems[round, 1] for round in range(1, 5))
    assert not any(problem for (_, device), problem in problems.items() if device != 1)
    assert math.sqrt(squared_norm(result.params)) < 10


@pytest.mark.parametrize("method", ["fedprox", "feddane", "scaffold", "fednova", "feddyn"])
def test_honest_devices_of_all_sizes_are_within_the_limits(method, tmp_path, monkeypatch):
    population = population_of([24, 24, 48, 96, 24, 480, 24, 960])
    config = config_for(
        {"name": method},
        rounds=6,
        deploy={"devices": 8},
        devices={"per_round": 6, "stragglers": 0.9},
        solver={"epochs": 5},
        measure={"every": 6, "dissimilarity": False},
    )
    result = run(config, FakeGrid(config, population), tmp_path / "run", monkeypatch)
    assert result.summary["refused_replies"] == 0
    simulated = fedprox.train(config, population=population)
    for name, expected in simulated.params.items():
        np.testing.assert_allclose(result.params[name], expected, atol=1e-5)


def wild(device, asked, answer):
    if device == 1 and isinstance(asked, Instruction):
        return replace(answer, params={name: array + 1e6 for name, array in answer.params.items()})
    return answer


@pytest.mark.parametrize(("max_norm", "refused"), [("auto", 2), (0.0, 0), (1e9, 0)])
def test_the_limit_follows_the_rounds_and_can_be_switched_off(max_norm, refused, tmp_path, monkeypatch):
    config = config_for({"name": "fedprox"}, rounds=2, deploy={"max_norm": max_norm})
    result = run(config, FakeGrid(config, POPULATION, wild), tmp_path / "run", monkeypatch)
    assert result.summary["refused_replies"] == refused
    assert (squared_norm(result.params) > 1e6) is (refused == 0)


def test_a_resumed_server_knows_the_norms_and_times_of_the_last_rounds(tmp_path, monkeypatch):
    config = config_for({"name": "fedprox"}, rounds=3, devices={"per_round": 1}, checkpoint={"every": 1})
    seen = []

    def notes(device, asked, answer):
        if isinstance(asked, Instruction):
            seen.append((asked.round, asked.seconds))
            if asked.round == 4:
                return replace(answer, params={name: array + 1e6 for name, array in answer.params.items()})
        return answer

    run(config, FakeGrid(config, POPULATION, notes), tmp_path / "run", monkeypatch)
    longer = Config.from_dict({**config.to_dict(), "rounds": 4, "deploy": {"devices": 4, "repeats": 0}})
    with pytest.raises(RunError, match=r"is beyond the limit of .*, 50 times the median of the last rounds"):
        run(longer, FakeGrid(config, POPULATION, notes), tmp_path / "run", monkeypatch, resume=True)
    assert seen == [(1, 3600.0), (2, 3600.0), (3, 3600.0), (4, 60.0)]  # once three replies have been timed


def gathered(behave, **rules):
    """Return the roster of four nodes, of which some may lie."""
    grid = FakeGrid(build_config(), POPULATION, behave)
    roster = Roster(4, Post(grid, grid.clock.now, grid.clock.sleep), grid.clock.now, grid.clock.sleep, **rules)
    roster.gather(10)
    return roster, grid


def test_a_node_cannot_claim_the_number_of_another_where_numbers_are_bound_to_keys():
    claims = iter([1])  # node 100 is the first to answer, and says that it is device 1

    def lies(device, asked, answer):
        return replace(answer, device=next(claims, 0)) if device == 0 else answer

    roster, _ = gathered(lies, nodes=[100, 101, 102, 103])
    assert [roster.node(device) for device in roster.devices] == [100, 101, 102, 103]
    with pytest.raises(RunError, match=r"device 0 has not; turned away: node 100: device 1 must be node 101"):
        gathered(lambda device, asked, answer: replace(answer, device=max(device, 1)), nodes=[100, 101, 102, 103])


def test_ids_of_nodes_are_given_for_all_devices():
    with pytest.raises(ConfigError, match=r"`deploy.nodes` must have a node id for each of the 4 devices.*; got 1"):
        check_deployable(build_config(deploy={"nodes": [7]}))


def test_a_sample_count_beyond_the_limit_is_turned_away():
    with pytest.raises(RunError, match=r"it must have at most 23 training samples \(`deploy.max_samples`\); got 24"):
        gathered(None, max_samples=23)
    gathered(None, max_samples=24)


def test_a_device_that_comes_back_has_the_samples_that_it_had():
    roster, grid = gathered(None)
    grid.devices[104], grid.data[104] = grid.devices[101], grid.data[101]
    grid.online = {100, 102, 103, 104}
    grid.behave = lambda device, asked, answer: replace(answer, train_samples=10**6)
    roster.meet(5)
    assert "node 104: device 1 must have (24, 3) training and test samples, as before" in roster.turned_away[0]


def test_the_weight_of_one_device_is_limited_and_said(tmp_path, monkeypatch, caplog):
    population = population_of([24, 24, 24, 240])
    config = config_for(
        {"name": "scaffold"},
        rounds=1,
        deploy={"max_weight": 0.4},
        solver={"epochs": 1},
        measure={"dissimilarity": False},
    )
    [row] = run(config, FakeGrid(config, population), tmp_path / "run", monkeypatch).devices
    weights = dict(zip(row["device"], row["weight"], strict=True))
    assert weights == pytest.approx({0: 0.2, 1: 0.2, 2: 0.2, 3: 0.4})
    assert "the weights of devices [3] are limited to 0.4 (`deploy.max_weight`)" in caplog.text


@pytest.mark.parametrize(("claimed", "counted"), [(50.0, 4), (1e29, 3)])
def test_one_report_does_not_end_a_run(claimed, counted, tmp_path, monkeypatch):
    def lies(device, asked, answer):
        if device == 1 and isinstance(answer, Evaluation) and grid.sent[-1].metadata.group_id != "0":
            return replace(answer, train_loss=claimed)
        return answer

    config = build_config(rounds=12, stop={"diverged": True}, measure={"dissimilarity": False})
    grid = FakeGrid(config, POPULATION, lies)
    result = run(config, grid, tmp_path / "run", monkeypatch)
    assert result.summary["ended"] == "finished"
    assert result.summary["diverged_round"] is None
    assert result.summary["exploded_round"] is None
    assert result.history[-1]["measured_devices"] == counted
    assert result.history[-1]["trimmed_loss"] < 2


@pytest.mark.parametrize(("length", "is_refused"), [(1.0, False), (3.0, True)])
def test_an_update_longer_than_clip_and_noise_is_refused(length, is_refused, tmp_path, monkeypatch):
    privacy = {"clip": 0.05, "noise_multiplier": 3.0, "where": "client"}
    config = build_config(rounds=1, privacy=privacy, measure={"dissimilarity": False}, devices={"per_round": 4})
    longest = 0.05 + 3 * 0.05 / 2 * (math.sqrt(18) + 6)

    def stretches(device, asked, answer):
        if device != 1 or not isinstance(asked, Instruction):
            return answer
        entry = np.zeros((3, 5), np.float32)
        entry[0, 0] = length * 0.99 * longest
        return replace(answer, params={"weight": asked.params["weight"] + entry, "bias": asked.params["bias"]})

    [row] = run(config, FakeGrid(config, POPULATION, stretches), tmp_path / "run", monkeypatch).devices
    assert ("is beyond the limit" in str(row["problem"][row["device"].index(1)])) is is_refused
    assert sum(map(bool, row["problem"])) == is_refused  # the others are not


def test_a_trial_binds_numbers_to_keys_and_shows_the_errors_of_nodes(tmp_path, monkeypatch):
    trial = Trial(tmp_path, 2)
    trial.node_ids = [2**63 + 1, 7]
    called = []
    monkeypatch.setattr(trial, "flwr", lambda *arguments: called.append(arguments) or {"run-id": 5})
    trial.submit(tmp_path / "app", {"set": "rounds=3"})
    assert f'set="rounds=3 deploy.nodes=[{2**63 + 1},7]"' in called[0]
    settings = with_overrides({"deploy": {"devices": 2}}, ["rounds=3", f"deploy.nodes=[{2**63 + 1},7]"])
    config = Config.from_dict(settings)
    assert Config.from_dict(tomllib.loads(config.to_toml())).deploy.nodes == trial.node_ids
    error = "Traceback (most recent call last):\n  File x\n    raise\nValueError: no data"
    (tmp_path / "node0.log").write_text(f"\x1b[91mERROR\x1b[0m: it raised\n{error}\nINFO: more\n")
    (tmp_path / "node1.log").write_text("INFO: all is well\n")
    assert trial.python_errors() == {"node0": error}
