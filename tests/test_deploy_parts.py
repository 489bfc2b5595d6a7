"""The parts of a real federation, without processes: deadline, messages, checks of replies, server and roster."""

import io
import json
import math
import re
import stat
import struct
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, Error, RecordDict
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

import fedprox
from conftest import population_of
from fake_federation import Clock, FakeGrid
from fedprox import solvers
from fedprox.adapters.torch import from_torch
from fedprox.cli import app
from fedprox.config import Config, SolverConfig
from fedprox.core.errors import ConfigError, DataError, RunError
from fedprox.core.trees import flatten_names
from fedprox.deploy import server
from fedprox.deploy.client import Device
from fedprox.deploy.device_data import DeviceData
from fedprox.deploy.keys import write_keys
from fedprox.deploy.message_exchange import Post
from fedprox.deploy.message_records import WrongMessageError, read_array
from fedprox.deploy.messages import Evaluation, Instruction, Introduction, ModelQuery, WorkReport
from fedprox.deploy.reply_checks import Expected, reason_to_refuse
from fedprox.deploy.roster import Roster
from fedprox.deploy.settings import check_deployable
from fedprox.engines.deadline import Deadline, TimedProblem
from fedprox.models import linear_regression, softmax_regression
from fedprox.population.loaded_samples import LoadedSamples, scalar, to_backend
from fedprox.runs.export import export
from fedprox.solvers.subproblem import Subproblem

POPULATION = population_of([24, 24, 24, 24], test=3)


def build_config(**sections):
    """A federation of four small devices; all sizes are equal, so that programs are compiled once."""
    settings: dict[str, Any] = {
        "rounds": 3,
        "method": {"mu": 0.5},
        "devices": {"per_round": 3},
        "solver": {"epochs": 2, "learning_rate": 0.1},
        "deploy": {"devices": 4},
    }
    for name, values in sections.items():
        settings[name] = {**settings.get(name, {}), **values} if isinstance(values, dict) else values
    return Config.from_dict(settings)


def run(config, grid, folder, monkeypatch, **more):
    """Run a federation whose clock is the grid's."""
    monkeypatch.setattr(server, "Post", lambda g: Post(g, grid.clock.now, grid.clock.sleep))
    monkeypatch.setattr(
        server, "Roster", lambda n, post, **more: Roster(n, post, grid.clock.now, grid.clock.sleep, **more)
    )
    return server.run_federation(config, grid.model, grid, folder, **more)


# --- the deadline


def local_problem(kind, budget, batch_size=5, **more):
    data = DeviceData.of(POPULATION, 1)
    model = softmax_regression(5, 3)
    params = {"weight": np.zeros((3, 5), np.float32), "bias": np.zeros(3, np.float32)}
    return kind(
        model=model,
        problem=Subproblem(to_backend(params), scalar(0.5)),
        samples=data.samples,
        loaded=LoadedSamples.of(data.population.train, model),
        device=1,
        round=4,
        seed=0,
        budget=budget,
        batch_size=batch_size,
        learning_rate=0.1,
        **more,
    )


def ticking(step):
    """A clock that moves by `step` whenever it is looked at."""
    clock = Clock()

    def now():
        clock.time += step
        return clock.time

    return now


@pytest.mark.parametrize(
    ("name", "batch_size"),
    [("sgd", 5), ("sgd", 0), ("adam", 5), ("svrg", 5), ("gradient_descent", 5), ("lbfgs", 5), ("newton_cg", 5)],
)
def test_every_solver_stops_at_the_deadline_where_a_smaller_budget_stops_it(name, batch_size):
    solver = solvers.build(SolverConfig(name=name))
    deadline = Deadline(4.5, now=ticking(1.0))
    partial, steps = solver.solve(local_problem(TimedProblem, 100, batch_size, deadline=deadline))
    whole, all_steps = solver.solve(local_problem(TimedProblem, 100, batch_size, deadline=Deadline(math.inf)))
    assert deadline.passed
    assert 0 < steps < all_steps <= 100
    same, same_steps = solver.solve(local_problem(solvers.LocalProblem, steps, batch_size))
    untimed, _ = solver.solve(local_problem(solvers.LocalProblem, 100, batch_size))
    assert same_steps == steps
    for leaf in same:
        assert np.array_equal(untimed[leaf], whole[leaf])  # time that is not short changes nothing
        if name in ("sgd", "adam"):  # the others spend a smaller budget in another way
            assert np.array_equal(same[leaf], partial[leaf])


def test_the_pieces_between_two_looks_grow_with_the_pace_and_never_pass_the_end():
    clock = Clock()
    deadline, taken = Deadline(1.0, clock.now), []
    while now := deadline.allow(10**6):
        taken.append(now)
        clock.time += now * 0.001  # a thousand steps a second
    assert taken[:2] == [1, 1]
    assert max(taken) == pytest.approx(100, abs=1)
    assert sum(taken) == pytest.approx(1000, abs=3)
    assert deadline.steps_per_second == pytest.approx(1000)
    assert deadline.passed


def test_a_deadline_that_is_over_before_the_first_step_leaves_the_anchor():
    local = local_problem(TimedProblem, 10, deadline=Deadline(-1.0))
    params, steps = solvers.build(SolverConfig()).solve(local)
    assert steps == 0
    assert not np.asarray(params["weight"]).any()


# --- a device


def device(config, number=1, model=None):
    return Device(config, model or softmax_regression(5, 3), DeviceData.of(POPULATION, number))


def zeros():
    return {"weight": np.zeros((3, 5), np.float32), "bias": np.zeros(3, np.float32)}


def test_a_device_that_is_cut_off_says_so_and_returns_what_it_has():
    own = device(build_config(measure={"gamma": True}))
    assert not own.work(Instruction(1, zeros(), None, 1, 0.5, 7, 0.0)).stopped_by_time  # and everything is compiled
    work = own.work(Instruction(1, zeros(), None, 1, 0.5, 10**9, 0.5))
    assert work.stopped_by_time
    assert 0 < work.steps < 10**9
    assert work.seconds < 5
    assert work.speed > 0
    assert work.loss == pytest.approx(math.log(3))
    assert np.isfinite(work.params["weight"]).all()


def test_a_device_reports_the_gamma_and_the_loss_that_a_simulation_measures(small_population):
    config = build_config(rounds=1, measure={"gamma": True}, devices={"per_round": 4})
    simulated = fedprox.train(config, population=POPULATION)
    for position, number in enumerate(simulated.devices[0]["device"]):
        budget = simulated.devices[0]["budget"][position]
        work = device(config, number).work(Instruction(number, zeros(), None, 1, 0.5, budget, 0.0))
        assert work.steps == budget
        assert work.gamma == pytest.approx(simulated.devices[0]["gamma"][position], rel=1e-5)
        assert work.loss == pytest.approx(math.log(3), rel=1e-6)


def test_a_device_refuses_the_work_of_another():
    with pytest.raises(WrongMessageError, match="the message is for device 2; this is device 1"):
        device(build_config()).work(Instruction(2, zeros(), None, 1, 0.5, 7, 0.0))


def test_a_device_holds_only_its_own_samples_under_its_own_number():
    own = DeviceData.of(POPULATION, 2)
    x, y = POPULATION.train.of(2)
    assert len(own.population.train) == len(y)
    assert np.array_equal(own.samples.of(2)[0], x)
    with pytest.raises(DataError, match="from 0 to 3; got 4"):
        DeviceData.of(POPULATION, 4)


def test_data_that_the_model_is_not_for():
    for model, problem in (
        (softmax_regression(4, 3), "must have 4 numbers each"),
        (softmax_regression(5, 2), "must be below 2, the number of classes"),
    ):
        with pytest.raises(ConfigError, match=problem):
            device(build_config(), model=model)


def test_a_regression_has_no_accuracy():
    data = DeviceData.from_arrays(0, np.eye(4), np.array([1.0, 2.0, 3.0, 4.0]), test=[0, 0, 0, 1])
    said = Device(build_config(measure={"dissimilarity": False}), linear_regression(4), data)
    model = {name: np.asarray(value) for name, value in flatten_names(said._like).items()}
    report = said.evaluate(ModelQuery(model))
    back = Evaluation.from_records(report.to_records(), model)
    assert back.train_accuracy is None
    assert back.train_loss == pytest.approx((1 + 4 + 9) / 6)
    assert back.gradient is None


# --- messages


@given(st.lists(st.floats(width=32, allow_nan=False), max_size=9), st.integers(0, 2**40), st.booleans())
def test_messages_come_back_as_they_went(numbers, steps, cut):
    array = np.array(numbers, np.float32)
    work = WorkReport({"a.b": array}, steps, 1.5, 0.25, cut, None, 0.5)
    back = WorkReport.from_records(work.to_records(), work.params)
    assert np.array_equal(back.params["a.b"], array)
    assert replace(back, params={}) == replace(work, params={})
    asked = Instruction(7, {"w": array}, {"w": array}, 3, 0.1, steps, 2.0)
    again = Instruction.from_records(asked.to_records(), asked.params)
    assert np.array_equal(again.linear["w"], array)
    assert (again.device, again.round, again.mu, again.budget, again.seconds) == (7, 3, 0.1, steps, 2.0)


def npy(array, **more):
    buffer = io.BytesIO()
    np.save(buffer, array, **more)
    return buffer.getvalue()


def header(text):
    """Return the beginning of a .npy file with this text for its header."""
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text.encode()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x93NUMPY\x01\x00",
        npy(np.array([{}], object), allow_pickle=True),
        npy(np.array(["text"])),
        npy(np.zeros(4, np.float32))[:-4],
        npy(np.zeros(4, np.float32)) + b"0",
        npy(np.zeros(4, np.float64)),
        npy(np.zeros((2, 2), np.float32)),
        header("{'descr': '<f4', 'fortran_order': False, 'shape': (True,)}") + bytes(4),
        header("{'descr': '<f4', 'fortran_order': False, 'shape': (0, 9223372036854775808)}"),
        header("{'descr': '<f4', 'fortran_order': False, 'shape': (-1, -4), }") + bytes(16),
        header("{'descr': ("),
        header("-" * 9000 + "1"),
    ],
)
def test_arrays_that_are_not_the_expected_ones_are_refused(data):
    with pytest.raises(WrongMessageError, match=r"144 bytes of a .npy file of float32 and shape \(4,\); got \d+ bytes"):
        read_array(data, like=np.zeros(4, np.float32))


@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 3)])
def test_arrays_of_every_shape_travel(shape):
    array = np.array(np.arange(math.prod(shape), dtype=np.float32).reshape(shape), order="F")
    work = WorkReport({"w": array}, 1, 1.0, 1.0, False)
    back = WorkReport.from_records(work.to_records(), like={"w": np.zeros(shape, np.float32)})
    assert back.params["w"].shape == shape
    assert np.array_equal(back.params["w"], array)


@pytest.mark.parametrize("kind", [WorkReport, Instruction, Evaluation, Introduction])
def test_a_message_without_content_is_refused(kind):
    more = () if kind is Introduction else ({},)
    with pytest.raises(WrongMessageError, match="must hold"):
        kind.from_records(RecordDict(), *more)


# --- bad replies


ANCHOR = {"weight": np.zeros((2, 2), np.float32), "bias": np.zeros(2, np.float32)}
GOOD = WorkReport({name: array + 1 for name, array in ANCHOR.items()}, 5, 1.0, 0.5, False)


def with_params(**changes):
    params = {**GOOD.params, **changes}
    return replace(GOOD, params={name: array for name, array in params.items() if array is not None})


@pytest.mark.parametrize(
    ("work", "words"),
    [
        (GOOD, None),
        (with_params(bias=None), "'bias' is missing"),
        (with_params(extra=np.zeros(1)), "'extra' is not part of the model"),
        (with_params(bias=np.zeros(3, np.float32)), r"'bias' must be float32 of shape \(2,\); got float32 of shape"),
        (with_params(bias=np.zeros(2, np.float64)), "got float64"),
        (with_params(bias=np.array([0, np.nan], np.float32)), "'bias' has entries that are not finite"),
        (with_params(weight=np.full((2, 2), np.inf, np.float32)), "not finite"),
        (replace(GOOD, steps=6), "6 steps are more than the budget of 5"),
        (replace(GOOD, steps=4), "4 of 5 steps are too few for a solver that spends its budget"),
        (replace(GOOD, steps=4, stopped_by_time=True), "4 of 5 steps cannot be for lack of time, since there is no"),
        (replace(GOOD, steps=0), r"w_k must be w\^t after 0 steps"),
        (replace(GOOD, loss=math.inf), r"the loss must be a finite number, at most 1e\+30; got inf"),
        (replace(GOOD, loss=-1e31), "the loss must be a finite number"),
        (replace(GOOD, seconds=math.nan), "seconds"),
        (replace(GOOD, speed=-1.0), "the speed must be a number > 0; got -1.0"),
        (replace(GOOD, gamma=math.nan), "gamma must be a number >= 0; got nan"),
        (with_params(weight=np.full((2, 2), 50, np.float32)), r"\|\|w_k - w\^t\|\| = 100 is beyond the limit of 10"),
    ],
)
def test_a_bad_reply_is_refused_with_a_reason(work, words):
    reason = reason_to_refuse(work, ANCHOR, Expected(5, spends_budget=True, max_norm=10.0))
    assert reason is None if words is None else re.search(words, reason)


@pytest.mark.parametrize(("waited", "words"), [(8.0, "after 8 of 10 seconds"), (9.5, None)])
def test_partial_work_is_for_lack_of_time_only_once_the_time_is_up(waited, words):
    partial = replace(GOOD, steps=1, stopped_by_time=True)
    reason = reason_to_refuse(partial, ANCHOR, Expected(5, seconds=10.0, spends_budget=True), waited)
    assert reason is None if words is None else words in reason


def test_a_solver_that_may_end_early_may_take_fewer_steps():
    assert reason_to_refuse(replace(GOOD, steps=1), ANCHOR, Expected(5)) is None


def test_no_limit_on_the_norm_where_none_is_set():
    assert reason_to_refuse(with_params(bias=np.full(2, 1e6, np.float32)), ANCHOR, Expected(5)) is None


# --- the server, with devices in this process


@pytest.mark.parametrize(
    ("method", "sampling"),
    [
        ({"name": "fedprox", "mu": 0.5}, "uniform"),
        ({"name": "fedprox", "mu": "drift"}, "proportional"),
        ({"name": "fedavg"}, "uniform"),
        ({"name": "scaffold"}, "uniform"),
        ({"name": "fednova", "mu": 0.1}, "uniform"),
        ({"name": "fedadam"}, "proportional"),
        ({"name": "feddyn"}, "uniform"),
        ({"name": "feddane", "mu": 0.5}, "uniform"),
        ({"name": "feddane", "second_draw": True}, "uniform"),
    ],
)
def test_a_federation_takes_the_same_path_as_the_simulation(method, sampling, tmp_path, monkeypatch):
    config = build_config(measure={"gamma": True}, devices={"stragglers": 0.5, "sampling": sampling})
    config = Config.from_dict({**config.to_dict(), "method": method})
    result = run(config, FakeGrid(config, POPULATION), tmp_path / "run", monkeypatch)
    simulated = fedprox.train(config, population=POPULATION)
    for name, expected in simulated.params.items():
        assert np.array_equal(result.params[name], expected), name
    for ours, theirs in zip(result.history, simulated.history, strict=True):
        for key in ("train_loss", "train_accuracy", "test_accuracy", "mu"):
            assert ours[key] == pytest.approx(theirs[key], rel=1e-9), key
        for key in ("dissimilarity", "gradient_variance"):
            assert ours[key] == pytest.approx(theirs[key], rel=1e-5), key
    for ours, theirs in zip(result.devices, simulated.devices, strict=True):
        for key in ("device", "samples", "draws", "straggler", "epochs", "budget", "kept", "weight", "steps"):
            assert ours[key] == theirs[key], key


def test_a_pytorch_device_takes_the_same_path_as_the_simulation_and_keeps_the_deadline(tmp_path, monkeypatch):
    module = torch.nn.Linear(5, 3)
    model, solver = from_torch(module)
    config = build_config(rounds=2, devices={"per_round": 4})
    grid = FakeGrid(config, POPULATION, model=model, solver=solver)
    result = run(config, grid, tmp_path / "run", monkeypatch, solver=solver)
    simulated = fedprox.train(config, population=POPULATION, model=model, solver=solver)
    assert np.array_equal(result.params["weight"], simulated.params["weight"])
    assert result.history[-1]["train_loss"] == pytest.approx(simulated.history[-1]["train_loss"], rel=1e-6)
    work = grid.devices[101].work(Instruction(1, flatten_names(result.params), None, 3, 0.5, 10**9, 0.5))
    assert work.stopped_by_time
    assert 0 < work.steps < 10**9
    expected = grid.devices[101].work(Instruction(1, flatten_names(result.params), None, 3, 0.5, work.steps, 0.0))
    assert np.array_equal(work.params["weight"], expected.params["weight"])


def test_a_certificate_can_be_had_for_a_real_run(tmp_path, monkeypatch):
    sections = {"rounds": 2, "data": {"name": "synthetic_iid", "devices": 2}, "deploy": {"devices": 2}}
    config = build_config(**sections, devices={"per_round": 2, "sampling": "proportional"}, measure={"gamma": True})
    run(config, FakeGrid(config), tmp_path / "run", monkeypatch)
    result = CliRunner().invoke(app, ["theory", str(tmp_path / "run")])
    assert result.exit_code == 0, result.output


def test_the_speeds_of_a_real_run_are_a_trace_for_the_clock(tmp_path, monkeypatch):
    config = build_config(devices={"per_round": 4})
    run(config, FakeGrid(config, POPULATION), tmp_path / "run", monkeypatch)
    systems = {"model": "clock", "trace": str(tmp_path / "run" / "trace.jsonl"), "deadline": 1e6}
    simulated = fedprox.train({**config.to_dict(), "systems": systems}, population=POPULATION)
    assert simulated.summary["simulated_seconds"] > 0
    assert all(all(row["kept"]) for row in simulated.devices)


def test_a_resumed_server_ends_where_an_undisturbed_one_does(tmp_path, monkeypatch):
    config = build_config(checkpoint={"every": 1})
    config = Config.from_dict({**config.to_dict(), "method": {"name": "scaffold"}})
    whole = run(config, FakeGrid(config, POPULATION), tmp_path / "whole", monkeypatch)

    def dies(device, asked, answer):
        if isinstance(asked, Instruction) and asked.round == 3:
            raise KeyboardInterrupt
        return answer

    with pytest.raises(KeyboardInterrupt):
        run(config, FakeGrid(config, POPULATION, dies), tmp_path / "run", monkeypatch)
    resumed = run(config, FakeGrid(config, POPULATION), tmp_path / "run", monkeypatch, resume=True)
    for name in whole.params:
        assert np.array_equal(whole.params[name], resumed.params[name])
    assert resumed.history.column("train_loss") == whole.history.column("train_loss")
    saved = fedprox.load_run(tmp_path / "run")
    assert saved.summary["ended"] == "finished"
    trace = [json.loads(line) for line in (tmp_path / "run" / "trace.jsonl").read_text().splitlines()]
    assert len(trace) == 4
    assert all(row["samples_per_second"] > 0 for row in trace)
    assert len(saved.evaluation) == 4


def test_partial_work_is_merged_by_fedprox_and_dropped_by_fedavg(tmp_path, monkeypatch):
    def slow(device, asked, answer):
        return replace(answer, steps=1, stopped_by_time=True) if device == 1 and hasattr(asked, "budget") else answer

    for method, is_kept in (({"name": "fedprox"}, True), ({"name": "fedavg"}, False)):
        settings = {**build_config(rounds=1, devices={"per_round": 4}, deploy={"deadline": 5.0}).to_dict()}
        config = Config.from_dict({**settings, "method": method})
        grid = FakeGrid(config, POPULATION, slow, delays={(101, "1"): 5.0})
        [row] = run(config, grid, tmp_path / method["name"], monkeypatch).devices
        at = row["device"].index(1)
        assert row["straggler"] == [number == 1 for number in row["device"]]
        assert row["kept"][at] == is_kept
        assert (row["weight"][at] > 0) == is_kept
        assert sum(row["weight"]) == pytest.approx(1)


def test_bad_late_and_missing_replies_are_left_out_and_recorded(tmp_path, monkeypatch):
    def behave(device, asked, answer):
        if not isinstance(asked, Instruction):
            return answer
        if device == 1:
            return replace(answer, params={name: array * np.nan for name, array in answer.params.items()})
        return Error(code=2, reason="out of memory") if device == 2 else answer

    config = build_config(rounds=2, devices={"per_round": 4}, deploy={"deadline": 5.0, "grace": 5.0})
    grid = FakeGrid(config, POPULATION, behave, delays={(103, "1"): 12.0})  # device 3 is late in round 1
    result = run(config, grid, tmp_path / "run", monkeypatch)
    first, second = result.devices
    problems = dict(zip(first["device"], first["problem"], strict=True))
    assert problems[0] is None
    assert problems[1] == "refused: 'bias' has entries that are not finite"
    assert problems[2] == "Flower reports error 2: out of memory"
    assert problems[3] == "no answer within 10 seconds"
    assert first["weight"] == [float(device == 0) for device in first["device"]]
    assert first["failed"] == [device != 0 for device in first["device"]]
    assert result.summary["late_replies"] == 1
    assert result.summary["refused_replies"] == 2
    kept = [device for device, kept in zip(second["device"], second["kept"], strict=True) if kept]
    assert sorted(kept) == [0, 3]
    assert fedprox.load_run(tmp_path / "run").summary["result"]["round"] == 2


def test_a_round_with_too_few_replies_is_repeated_and_given_up_in_the_end(tmp_path, monkeypatch):
    tries = []

    def fails_twice(device, asked, answer):
        if isinstance(asked, Instruction) and asked.round == 2:
            tries.append(device)
            if len(tries) <= 6:
                return Error(code=2, reason="asleep")
        return answer

    config = build_config(rounds=2, deploy={"min_replies": 2})
    result = run(config, FakeGrid(config, POPULATION, fails_twice), tmp_path / "run", monkeypatch)
    assert [len(row.get("repeated", [])) for row in result.devices] == [0, 2]
    (table,) = (file for file in export(tmp_path / "run") if file.name == "devices.csv")
    assert len(table.read_text().splitlines()) == 1 + 2 * 3  # devices of rounds, whatever was repeated
    assert tries[:3] == tries[3:6] == tries[6:9]  # the same devices again
    simulated = fedprox.train(config, population=POPULATION)
    assert np.array_equal(result.params["weight"], simulated.params["weight"])

    silent = FakeGrid(config, POPULATION, lambda *parts: parts[2] if not hasattr(parts[1], "mu") else Error(2, "no"))
    with pytest.raises(RunError, match=r"round 1 must have 2 usable replies .* 4 times \(device \d+: .*`deploy.grace`"):
        run(config, silent, tmp_path / "other", monkeypatch)


def test_a_node_that_is_offline_is_not_waited_for(tmp_path, monkeypatch):
    config = build_config(rounds=1, devices={"per_round": 4}, deploy={"deadline": 60.0})
    grid = FakeGrid(config, POPULATION)

    def leaves(device, asked, answer):
        if not hasattr(asked, "budget"):
            grid.online.discard(103)  # after its introduction
        return answer

    grid.behave = leaves
    [row] = run(config, grid, tmp_path / "run", monkeypatch).devices
    assert row["problem"][row["device"].index(3)] == "the node is offline"
    assert grid.clock.now() < 5


def test_an_array_that_cannot_be_read_costs_its_device_the_round_and_nobody_else(tmp_path, monkeypatch):
    bad = header("{'descr': '<f4', 'fortran_order': False, 'shape': (-1, -3), }") + bytes(12)

    def garbage(device, asked, answer):
        if device != 1 or not isinstance(asked, Instruction):
            return answer
        records = answer.to_records()
        records["arrays"]["bias"] = Array("float32", (3,), "numpy.ndarray", bad)
        return records

    config = build_config(rounds=1, devices={"per_round": 4})
    [row] = run(config, FakeGrid(config, POPULATION, garbage), tmp_path / "run", monkeypatch).devices
    at = row["device"].index(1)
    assert row["problem"][at].startswith("refused: 'bias': an array must be the 140 bytes of a .npy file")
    assert [kept for place, kept in enumerate(row["kept"]) if place != at] == [True] * 3


def test_a_device_whose_time_was_up_before_its_first_step_adds_nothing(tmp_path, monkeypatch):
    def too_slow(device, asked, answer):
        if device != 1 or not isinstance(asked, Instruction):
            return answer
        return replace(answer, params=asked.params, steps=0, stopped_by_time=True)

    config = build_config(rounds=1, devices={"per_round": 4}, deploy={"deadline": 5.0})
    grid = FakeGrid(config, POPULATION, too_slow, delays={(101, "1"): 5.0})
    [row] = run(config, grid, tmp_path / "run", monkeypatch).devices
    at = row["device"].index(1)
    assert (row["weight"][at], row["problem"][at]) == (0, "the time was up before its first step")
    assert sum(row["weight"]) == pytest.approx(1)


def test_late_replies_are_in_the_record_of_the_round_in_which_they_come(tmp_path, monkeypatch):
    config = build_config(rounds=3, devices={"per_round": 4}, deploy={"deadline": 5.0, "grace": 5.0})
    # device 3 answers the first round while the others measure, who take a second for it
    delays = {(103, "1"): 10.5, (100, "1"): 1.0}
    grid = FakeGrid(config, POPULATION, delays=delays)
    result = run(config, grid, tmp_path / "run", monkeypatch)
    assert result.summary["late_replies"] == 1
    assert [row["late"] for row in result.devices] == [0, 1, 0]


def test_that_nobody_can_be_reached_says_nothing_of_the_model(tmp_path, monkeypatch):
    def silent(device, asked, answer):
        return Error(2, "asleep") if isinstance(answer, Evaluation) and grid.clock.now() < 1 else answer

    config = build_config(rounds=2, stop={"diverged": True})
    grid = FakeGrid(config, POPULATION, silent, delays={(100, "1"): 2.0, (101, "1"): 2.0, (102, "1"): 2.0})
    result = run(config, grid, tmp_path / "run", monkeypatch)
    assert result.summary["ended"] == "finished"
    assert result.history.column("round") == [1, 2]  # the start was not measured


def test_reports_that_cannot_be_true_are_not_counted(tmp_path, monkeypatch):
    def behave(device, asked, answer):
        if not isinstance(answer, Evaluation):
            return answer
        lies = {0: {"train_loss": math.nan}, 1: {"train_samples": 10**6}, 2: {"train_accuracy": 7.0}}
        return replace(answer, **lies.get(device, {}))

    config = build_config(rounds=1)
    result = run(config, FakeGrid(config, POPULATION, behave), tmp_path / "run", monkeypatch)
    assert result.history.column("measured_devices") == [1, 1]
    assert result.history[0]["train_loss"] == pytest.approx(math.log(3), rel=1e-6)


# --- who is there


def test_devices_that_do_not_join_are_named(tmp_path, monkeypatch):
    config = build_config(deploy={"join_seconds": 20.0})
    grid = FakeGrid(config, POPULATION)
    grid.online.discard(102)
    with pytest.raises(RunError, match=r"all 4 devices must join within 20 seconds .*; device 2 has not"):
        run(config, grid, tmp_path / "run", monkeypatch)


def test_two_nodes_cannot_be_the_same_device():
    config, clock = build_config(), Clock()
    grid = FakeGrid(config, POPULATION, lambda device, asked, answer: replace(answer, device=min(device, 2)))
    grid.clock = clock
    roster = Roster(3, Post(grid, clock.now, clock.sleep), clock.now, clock.sleep)
    roster.gather(10)
    assert [roster.node(device) for device in roster.devices] == [100, 101, 102]
    assert roster.turned_away == ["node 103: device 2 is already registered, as node 102"]
    asked = len(grid.sent)
    roster.meet(10)
    assert len(grid.sent) == asked  # nobody is missing, so nobody is asked again
    grid.online.discard(102)  # the node is gone; the other one may take its place
    roster.meet(10)
    assert roster.node(2) == 103
    assert roster.turned_away == []


def test_a_node_that_did_not_answer_is_asked_again_while_a_device_is_missing():
    config, clock = build_config(), Clock()
    asleep = {2}
    grid = FakeGrid(config, POPULATION, lambda device, asked, answer: None if device in asleep else answer)
    grid.clock = clock
    grid.online.discard(103)
    roster = Roster(3, Post(grid, clock.now, clock.sleep), clock.now, clock.sleep)
    roster.meet(3)
    assert roster.turned_away == ["node 102: no answer within 3 seconds"]
    asleep.clear()
    roster.gather(10)
    assert roster.node(2) == 102


@pytest.mark.parametrize("claim", [{"train_samples": 2**31}, {"test_samples": 2**62}, {"train_samples": 0}])
def test_a_number_of_samples_that_nobody_has_is_turned_away(claim):
    config, clock = build_config(), Clock()
    grid = FakeGrid(
        config, POPULATION, lambda device, asked, answer: replace(answer, **claim) if device == 1 else answer
    )
    grid.clock = clock
    roster = Roster(4, Post(grid, clock.now, clock.sleep), clock.now, clock.sleep)
    with pytest.raises(RunError, match=rf"device 1 has not; turned away: node 101: `{next(iter(claim))}` must be"):
        roster.gather(5)


def test_a_number_beyond_the_population_is_turned_away():
    config, clock = build_config(), Clock()
    grid = FakeGrid(config, POPULATION)
    grid.clock = clock
    roster = Roster(2, Post(grid, clock.now, clock.sleep), clock.now, clock.sleep)
    roster.gather(10)
    assert "node 102: its partition-id must be below 2; got 2" in roster.turned_away


# --- settings, project, keys


@pytest.mark.parametrize(
    ("sections", "words"),
    [
        ({"systems": {"model": "clock"}}, r"`systems.model` must be 'stragglers' on real devices.*got 'clock'"),
        ({"deploy": {"min_replies": 4}}, r"`deploy.min_replies` must be at most 3, `devices.per_round`; got 4"),
        ({"measure": {"devices": 2}}, r"`measure.devices` must be 0 on real devices, all of which measure; got 2"),
    ],
)
def test_what_real_devices_cannot_do_is_refused(sections, words):
    with pytest.raises(ConfigError, match=words):
        check_deployable(build_config(**sections))


def test_keys_are_private_and_the_certificate_is_signed_for_the_hosts(tmp_path):
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key

    folder = tmp_path / "keys"
    write_keys(folder, nodes=2, hosts=["fl.example.org", "10.0.0.1"])
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    for name in ("ca.key", "server.key", "node0", "node1"):
        assert stat.S_IMODE((folder / name).stat().st_mode) == 0o600
    ca, server_certificate = (
        x509.load_pem_x509_certificate((folder / name).read_bytes()) for name in ("ca.crt", "server.pem")
    )
    server_certificate.verify_directly_issued_by(ca)
    names = server_certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["fl.example.org"]
    assert [str(address) for address in names.get_values_for_type(x509.IPAddress)] == ["10.0.0.1"]
    private = load_ssh_private_key((folder / "node1").read_bytes(), None)
    public = load_ssh_public_key((folder / "node1.pub").read_bytes())
    assert private.public_key() == public
    with pytest.raises(ConfigError, match="must be empty"):
        write_keys(folder, nodes=1)
