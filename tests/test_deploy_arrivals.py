"""Real devices that reply at their own pace: late replies, buffered and asynchronous servers, without processes."""

import json
from dataclasses import dataclass, replace

import numpy as np
import pytest
from flwr.app import Error

import fedprox
from conftest import population_of
from fake_federation import FakeGrid
from fedprox.config import Config
from fedprox.core.errors import ConfigError, RunError
from fedprox.core.files import read_tensors
from fedprox.deploy.messages import Instruction
from fedprox.deploy.reply_log import ReplyLog
from fedprox.methods import Method, Reply
from test_deploy_parts import POPULATION, build_config, run

DELAYS = {0: 1.0, 1: 1.2, 2: 1.5, 3: 10.0}  # device 3 is slow


class PacedGrid(FakeGrid):
    """A federation whose devices take their time to train."""

    def __init__(self, *arguments, pace=None, **more):
        super().__init__(*arguments, **more)
        self.pace = DELAYS if pace is None else pace

    def push_messages(self, messages):
        ids = super().push_messages(messages)
        for identity, message in zip(ids, messages, strict=True):
            if message.metadata.message_type == "train" and identity in self.replies:
                due, answer = self.replies[identity]
                self.replies[identity] = (due + self.pace[message.metadata.dst_node_id - 100], answer)
        return ids


def on_events(server, **more):
    sections = {"systems": {"model": "clock", "profile": "equal", "server": server}, "solver": {"batch_size": 12}}
    sections["measure"] = {"every": 100, "dissimilarity": False}
    for name, values in more.items():
        sections[name] = {**sections.get(name, {}), **values} if isinstance(values, dict) else values
    return config_of(**sections)


def config_of(method=None, **sections):
    """A config of four devices, with another method where one is given."""
    config = build_config(**sections)
    return config if method is None else Config.from_dict({**config.to_dict(), "method": method})


def rows(result, name):
    return [value for row in result.devices for value in row[name]]


def by_hand(result, grid, staleness=0.5):
    """Return the model after all merges, from the recorded order and versions, with devices that work anew."""
    models = [{name: np.zeros_like(array, np.float64) for name, array in result.params.items()}]
    config = grid.config
    for row in result.devices:
        moves, weights = [], []
        for device, version in zip(row["device"], row["version"], strict=True):
            given = {name: array.astype(np.float32) for name, array in models[version].items()}
            moves.append(grid.moved(device, version + 1, given))
            weights.append(24 * (row["round"] - version) ** -staleness)
        weights = np.array(weights) / np.sum(weights)
        if config.systems.server == "asynchronous":
            weights = weights * config.systems.mixing * (row["round"] - row["version"][0]) ** -staleness
        now = models[-1]
        models.append({name: now[name] + sum(w * m[name] for w, m in zip(weights, moves, strict=True)) for name in now})
    return models[-1]


class RepeatedGrid(PacedGrid):
    """Can say what a device makes of a model."""

    def __init__(self, config, *arguments, **more):
        super().__init__(config, *arguments, **more)
        self.config = config

    def moved(self, device, round, given):
        budget = 2 * self.config.solver.epochs
        asked = Instruction(device, given, None, round, self.config.method.mu, budget, 0.0)
        found = self.devices[100 + device].work(asked).params
        return {name: found[name].astype(np.float64) - given[name] for name in given}


@pytest.mark.parametrize("server", ["buffered", "asynchronous"])
def test_the_model_moves_with_replies_as_they_arrive_and_the_slow_one_counts_with_its_staleness(
    server, tmp_path, monkeypatch
):
    keys = {"concurrency": 4, **({"buffer": 2} if server == "buffered" else {})}
    config = on_events(server, rounds=18 if server == "buffered" else 36, systems=keys, measure={"every": 4})
    grid = RepeatedGrid(config, POPULATION)
    result = run(config, grid, tmp_path / "run", monkeypatch)
    per_version = 2 if server == "buffered" else 1
    assert all(sum(row["kept"]) == per_version for row in result.devices)
    slow = [(row["version"][place], row["staleness"][place]) for row in result.devices
            for place, device in enumerate(row["device"]) if device == 3]  # fmt: skip
    assert slow
    assert slow[0][0] == 0
    assert slow[0][1] > 8 / per_version  # the others made versions meanwhile
    assert max(result.history.column("staleness_max")[1:]) == slow[0][1]
    for name, array in by_hand(result, grid).items():
        assert result.params[name] == pytest.approx(array, rel=1e-4, abs=1e-5)


def test_the_slow_device_does_not_hold_up_the_others(tmp_path, monkeypatch):
    config = on_events("buffered", rounds=20, systems={"concurrency": 4, "buffer": 3}, measure={"every": 5})
    ends = {}
    for name, pace in (("slow", DELAYS), ("equal", {**DELAYS, 3: 1.3})):
        grid = PacedGrid(config, POPULATION, pace=pace)
        result = run(config, grid, tmp_path / name, monkeypatch)
        count = sum(device != 3 for device in rows(result, "device"))
        ends[name] = count / grid.clock.now()
    assert ends["slow"] > 0.9 * ends["equal"]


def test_equal_devices_give_the_synchronous_rounds(tmp_path, monkeypatch):
    equal = dict.fromkeys(range(4), 1.0)
    config = on_events("buffered", systems={"concurrency": 3, "buffer": 3})
    result = run(config, PacedGrid(config, POPULATION, pace=equal), tmp_path / "run", monkeypatch)
    plain = fedprox.train(
        build_config(solver={"batch_size": 12}, measure={"dissimilarity": False}), population=POPULATION
    )
    for name, array in plain.params.items():
        assert np.array_equal(result.params[name], array), name


def test_where_none_is_late_merging_late_replies_changes_nothing(tmp_path, monkeypatch):
    config = build_config(deploy={"late": "merge"})
    result = run(config, FakeGrid(config, POPULATION), tmp_path / "run", monkeypatch)
    plain = run(build_config(), FakeGrid(config, POPULATION), tmp_path / "plain", monkeypatch)
    for name, array in plain.params.items():
        assert np.array_equal(result.params[name], array), name
    assert result.history.column("train_loss") == plain.history.column("train_loss")


def test_a_late_reply_is_merged_in_the_round_in_which_it_arrives(tmp_path, monkeypatch):
    deploy = {"devices": 4, "late": "merge", "deadline": 2.0, "grace": 1.0}
    config = build_config(rounds=14, devices={"per_round": 4}, solver={"batch_size": 12}, deploy=deploy)
    grid = RepeatedGrid(config, POPULATION)
    result = run(config, grid, tmp_path / "run", monkeypatch)
    assert result.devices[0]["problem"][3] == "no answer within 3 seconds"
    late = [row for row in result.devices if 3 in np.array(row["device"])[row["kept"]].tolist()]
    assert late
    assert late[0]["staleness"][0] > 2
    assert late[0]["weight"][0] < 1 / 4
    assert sum(late[0]["weight"]) == pytest.approx(1)
    merged = [replaced(row) for row in result.devices]
    expected = by_hand(replace_devices(result, merged), grid)
    for name, array in expected.items():
        assert result.params[name] == pytest.approx(array, rel=1e-4, abs=1e-5)
    refused = run(build_config(rounds=14, devices={"per_round": 4}, solver={"batch_size": 12},
                               deploy={**deploy, "late": "refuse"}),
                  PacedGrid(config, POPULATION), tmp_path / "refused", monkeypatch)  # fmt: skip
    assert refused.summary["late_replies"] > 0
    assert result.summary["late_replies"] == 0


def replaced(row):
    """Return a row without those who are not merged."""
    kept = np.array(row["kept"])
    return {**row, **{name: np.array(row[name])[kept].tolist() for name in ("device", "version")}}


def replace_devices(result, devices):
    return replace(result, devices=devices)


class KilledError(BaseException):
    """The end of the server's process."""


@pytest.mark.parametrize("server", ["buffered", "asynchronous", "late"])
@pytest.mark.parametrize("at", [3, 10, 17, 23])
def test_a_killed_server_keeps_every_reply_that_it_had_taken(server, at, tmp_path, monkeypatch):
    if server == "late":
        deploy = {"devices": 4, "late": "merge", "deadline": 2.0, "grace": 1.0}
        config = build_config(rounds=9, devices={"per_round": 4}, deploy=deploy, checkpoint={"every": 3})
    else:
        keys = {"concurrency": 4, **({"buffer": 2} if server == "buffered" else {})}
        config = on_events(server, rounds=14, systems=keys, checkpoint={"every": 3})
    add, seen = ReplyLog.add, []

    def killed(log, event, *more):
        add(log, event, *more)
        seen.append(event)
        if len(seen) == at:
            raise KilledError

    monkeypatch.setattr(ReplyLog, "add", killed)
    with pytest.raises(KilledError):
        run(config, PacedGrid(config, POPULATION), tmp_path / "run", monkeypatch)
    monkeypatch.setattr(ReplyLog, "add", add)
    taken = [event["order"] for event in seen if event.get("problem", "") is None]
    grid = PacedGrid(config, POPULATION)
    result = run(config, grid, tmp_path / "run", monkeypatch, resume=True)
    assert result.summary["rounds"] == config.rounds
    events = [json.loads(line) for line in (tmp_path / "run" / "replies" / "events.jsonl").read_text().splitlines()]
    assert [{name: event[name] for name in event if name != "at"} for event in events[: len(seen)]] == seen
    asked = {event["asked"][0]: event["asked"] for event in events if "asked" in event}
    merged = [(device, version) for row in result.devices
              for device, version, kept in zip(row["device"], row["version"], row["kept"], strict=True)
              if kept]  # fmt: skip
    for order in taken:
        assert merged.count((asked[order][2], asked[order][1])) == 1


def test_a_whole_run_and_one_that_was_killed_merge_the_same_where_all_are_equal(tmp_path, monkeypatch):
    equal = dict.fromkeys(range(4), 1.0)
    config = on_events("buffered", rounds=8, systems={"concurrency": 3, "buffer": 3}, checkpoint={"every": 3})
    whole = run(config, PacedGrid(config, POPULATION, pace=equal), tmp_path / "whole", monkeypatch)
    add, count = ReplyLog.add, [0]

    def killed(log, *event):
        count[0] += 1
        if count[0] == 31:  # two versions after a checkpoint
            raise KilledError
        add(log, *event)

    monkeypatch.setattr(ReplyLog, "add", killed)
    with pytest.raises(KilledError):
        run(config, PacedGrid(config, POPULATION, pace=equal), tmp_path / "run", monkeypatch)
    monkeypatch.setattr(ReplyLog, "add", add)
    result = run(config, PacedGrid(config, POPULATION, pace=equal), tmp_path / "run", monkeypatch, resume=True)
    for name, array in whole.params.items():
        assert np.array_equal(result.params[name], array), name
    assert result.history.column("train_loss") == whole.history.column("train_loss")


def test_replies_that_no_checkpoint_needs_are_deleted(tmp_path, monkeypatch):
    config = on_events("asynchronous", rounds=40, systems={"concurrency": 4}, checkpoint={"every": 5})
    run(config, PacedGrid(config, POPULATION), tmp_path / "run", monkeypatch)
    assert len(list((tmp_path / "run" / "replies").glob("*.safetensors"))) <= 20


def test_a_bad_reply_is_refused_and_the_run_goes_on(tmp_path, monkeypatch):
    def behave(device, asked, answer):
        if device == 1 and hasattr(answer, "steps"):
            return replace(answer, params={name: array + 1e6 for name, array in answer.params.items()})
        return answer

    config = on_events("buffered", rounds=10, systems={"concurrency": 4, "buffer": 2})
    grid = PacedGrid(config, POPULATION, behave=behave, pace={0: 1.0, 1: 3.0, 2: 1.1, 3: 1.2})
    result = run(config, grid, tmp_path / "run", monkeypatch)
    said = [problem for problem in rows(result, "problem") if problem]
    assert said
    assert all("beyond the limit" in problem for problem in said)
    assert result.summary["refused_replies"] == len(said)
    assert all(np.abs(array).max() < 100 for array in result.params.values())


@pytest.mark.parametrize("method", ["fednova", "fedexprox", "fedavgm", "fedadam"])
def test_other_methods_whose_reply_is_a_move(method, tmp_path, monkeypatch):
    config = on_events("buffered", rounds=8, method={"name": method}, systems={"concurrency": 4, "buffer": 2})
    result = run(config, PacedGrid(config, POPULATION), tmp_path / "run", monkeypatch)
    assert result.history[-1]["train_loss"] < result.history[0]["train_loss"]


def test_a_device_that_fails_or_is_away_loses_its_place_and_comes_back(tmp_path, monkeypatch):
    failing = [True]

    def behave(device, asked, answer):
        if device == 2 and failing[0] and hasattr(answer, "steps"):
            failing[0] = False
            return Error(2, "it fell")
        return answer

    config = on_events("buffered", rounds=12, systems={"concurrency": 4, "buffer": 3})
    grid = PacedGrid(config, POPULATION, behave=behave, pace=dict.fromkeys(range(4), 1.0))
    result = run(config, grid, tmp_path / "run", monkeypatch)
    assert "Flower reports error 2: it fell" in rows(result, "problem")
    kept = [device for row in result.devices for device, kept in zip(row["device"], row["kept"], strict=True) if kept]
    assert kept.count(2) >= 5


def test_a_model_that_no_reply_can_move_ends_the_run_with_a_sentence(tmp_path, monkeypatch):
    def behave(device, asked, answer):
        return Error(2, "no") if hasattr(answer, "steps") else answer

    config = on_events("buffered", systems={"concurrency": 4, "buffer": 2}, deploy={"repeats": 1})
    with pytest.raises(RunError, match="it had fewer 2 times"):
        run(config, PacedGrid(config, POPULATION, behave=behave), tmp_path / "run", monkeypatch)


@pytest.mark.parametrize("failing", [{1, 2}, {2}])
def test_a_round_that_is_repeated_asks_those_who_have_not_replied(failing, tmp_path, monkeypatch):
    tries = []

    def fails_once(device, asked, answer):
        if isinstance(asked, Instruction) and asked.round == 2:
            tries.append(device)
            if device in failing and tries.count(device) == 1:
                return Error(code=2, reason="asleep")
        return answer

    deploy = {"late": "merge", "min_replies": 4}
    config = build_config(rounds=2, devices={"per_round": 4}, deploy=deploy)
    result = run(config, FakeGrid(config, POPULATION, fails_once), tmp_path / "run", monkeypatch)
    assert sorted(tries) == sorted([0, 1, 2, 3, *failing])
    second = result.devices[1]
    merged = [device for device, kept in zip(second["device"], second["kept"], strict=True) if kept]
    assert sorted(merged) == [0, 1, 2, 3]
    simulated = fedprox.train(config_of(devices={"per_round": 4}, rounds=2), population=POPULATION)
    for name, array in simulated.params.items():
        np.testing.assert_allclose(result.params[name], array, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("sections", "sentence"),
    [
        ({"method": {"name": "scaffold"}}, "`deploy.late` must be 'refuse' with method.name = 'scaffold'"),
        ({"merge": {"rule": "median"}}, "`deploy.late` must be 'refuse' with merge.rule = 'median'"),
        ({"privacy": {"clip": 1.0}}, "`deploy.late` must be 'refuse' with `privacy.clip`"),
    ],
)
def test_late_replies_are_refused_where_they_have_no_meaning(sections, sentence, tmp_path, monkeypatch):
    config = config_of(**sections, deploy={"late": "merge"})
    with pytest.raises(ConfigError, match=sentence.replace("(", r"\(")):
        run(config, FakeGrid(config, POPULATION), tmp_path / "run", monkeypatch)


@pytest.mark.parametrize(
    ("sections", "sentence"),
    [
        ({"method": {"name": "scaffold"}}, "`systems.server` must be 'synchronous'"),
        ({"merge": {"rule": "median"}}, "`systems.server` must be 'synchronous'"),
        ({"privacy": {"clip": 1.0}}, "`systems.server` must be 'synchronous'"),
        ({"devices": {"failure": 0.5}}, "`devices.failure` must be 0"),
        ({"systems": {"buffer": 9, "concurrency": 9}}, "`systems.buffer` must be at most 4"),
        ({"systems": {"server": "over_selection", "buffer": 10}}, "`systems.server` must be 'synchronous', 'buffered'"),
        (
            {"systems": {"server": "asynchronous", "buffer": 10}, "deploy": {"max_weight": 0.5}},
            "`deploy.max_weight` must be 1",
        ),
    ],
)
def test_what_has_no_meaning_with_replies_as_they_arrive(sections, sentence, tmp_path, monkeypatch):
    settings = {**sections, "systems": {"buffer": 2, **sections.get("systems", {})}}
    config = on_events(settings["systems"].pop("server", "buffered"), **settings)
    with pytest.raises(ConfigError, match=sentence):
        run(config, FakeGrid(config, POPULATION), tmp_path / "run", monkeypatch)


def test_sizes_that_differ_weigh_by_samples(tmp_path, monkeypatch):
    population = population_of([12, 24, 36, 24], test=3)
    config = on_events("buffered", rounds=6, systems={"concurrency": 4, "buffer": 2, "staleness": 0.0})
    result = run(config, PacedGrid(config, population), tmp_path / "run", monkeypatch)
    for row in result.devices:
        samples = np.array(row["samples"])
        assert row["weight"] == pytest.approx(samples / samples.sum())


@dataclass(frozen=True)
class Masses(Method):
    """A method whose server adds up the masses of the replies."""

    name: str = "masses"

    def start(self, params):
        return {"sum": np.float64(0)}

    def reply(self, solution):
        return Reply(solution.params, np.float64(1))

    def merge(self, server, params, averaged, summed):
        return averaged, {"sum": server["sum"] + summed}


def test_a_weight_is_limited_in_sums_too(tmp_path, monkeypatch):
    population = population_of([12, 24, 36, 24], test=3)
    systems = {"concurrency": 4, "buffer": 4}
    config = on_events("buffered", rounds=1, systems=systems, deploy={"max_weight": 0.3})
    run(config, PacedGrid(config, population), tmp_path / "run", monkeypatch, method=Masses())
    tensors, _ = read_tensors(tmp_path / "run" / "checkpoint" / "state.safetensors")
    assert float(tensors["server.sum"]) == pytest.approx(1 / 8 + 1 / 4 + 0.3 + 1 / 4)  # 0.3 of the third, not 3 / 8
