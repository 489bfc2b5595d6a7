"""A real federation on this machine: one SuperLink, three SuperNodes, TLS, keys, and everything that goes wrong.

One federation serves all tests of this file, since starting one costs half a minute. Its devices misbehave by round:

    rounds 1, 2   all is well; then the server is killed, and resumed
    round 3       device 1 is slow, device 2 sends NaN
    round 4       device 0 hangs, and is killed there
"""

import contextlib
import json
import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest

import fedprox
from fedprox import data
from fedprox.config import Config
from fedprox.core.trees import flatten_names
from fedprox.deploy.client import Device
from fedprox.deploy.device_data import DeviceData
from fedprox.deploy.keys import write_keys
from fedprox.deploy.messages import Instruction
from fedprox.deploy.new_project import write_project
from fedprox.deploy.trial import Trial
from fedprox.models import softmax_regression
from fedprox.runs.folder import is_running

pytestmark = pytest.mark.skipif(not Path("/proc").is_dir(), reason="processes are found through /proc")

SETTINGS = """
rounds = 4
[data]
devices = 3
[method]
mu = 0.5
[solver]
epochs = 3
[devices]
per_round = 3
[measure]
every = 2
dissimilarity = false
gamma = true
[checkpoint]
every = 1
[deploy]
devices = 3
deadline = 120.0
grace = 120.0
"""

CLIENT = """
import math, os, time
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
from fedprox import solvers
from fedprox.deploy import client
from fedprox.deploy.client import client_app
from fedprox.engines.deadline import TimedProblem
from federation.task import SETTINGS, load_data, load_model


class Dawdling(TimedProblem):
    def minibatches(self, piece, epochs_at_once=0):
        for piece in super().minibatches(piece, epochs_at_once):
            time.sleep(0.4 * piece.steps)
            yield piece


class Solver:
    name, is_sgd = "sgd", True

    def solve(self, local):
        if (local.device, local.round) == (0, 4):
            Path(os.environ["FEDPROX_TEST_FOLDER"], "hanging").touch()
            time.sleep(1000)
        if (local.device, local.round) == (1, 3):
            local = Dawdling(**{field.name: getattr(local, field.name) for field in fields(local)})
        params, steps = solvers.sgd().solve(local)
        if (local.device, local.round) == (2, 3):
            params = {name: np.full_like(array, math.nan) for name, array in params.items()}
        return params, steps


app = client_app(SETTINGS, load_model, load_data, lambda config: Solver())
"""


def wait(condition, seconds, what):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.1)


def rounds_done(out):
    file = out / "devices.jsonl"
    return file.read_bytes().count(b"\n") if file.exists() else 0


def server_process(trial):
    [found] = [pid for pid in trial.left_over() if b"flwr-serverapp" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    return found


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    """Run the whole story once, and return what is left of it."""
    folder = tmp_path_factory.mktemp("deploy")
    out = folder / "run"
    write_project(folder / "app")
    (folder / "app" / "fedprox.toml").write_text(SETTINGS)
    (folder / "app" / "federation" / "client_app.py").write_text(CLIENT)
    write_keys(folder / "stranger", nodes=1)
    trial = Trial(folder / "trial", 3)
    trial.environment["FEDPROX_TEST_FOLDER"] = str(folder)
    story = {"out": out, "trial": trial}
    with trial:
        stranger = trial.start_node(0, key=folder / "stranger" / "node0", name="stranger")
        trial.submit(folder / "app", {"out": str(out)})
        wait(lambda: rounds_done(out) >= 2, 400, trial.log("superlink"))
        os.kill(server_process(trial), signal.SIGKILL)
        wait(lambda: not is_running(out), 20, "the server is still there")
        story["summary_after_kill"] = (out / "summary.json").exists()
        trial.submit(folder / "app", {"out": str(out), "resume": True, "set": "deploy.deadline=6"})
        wait((folder / "hanging").exists, 400, trial.log("superlink"))
        trial.end("node0", signal.SIGKILL)
        wait((out / "summary.json").exists, 400, trial.log("superlink"))
        story["stranger"] = stranger.wait(60), trial.log("stranger")
        story["running"] = marked(folder)
    story["left_over"] = marked(folder)
    return story


def marked(folder):
    """Return the processes that have inherited the folder of the test in their environment."""
    mark, found = f"FEDPROX_TEST_FOLDER={folder}".encode(), []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended, or is another user's
            if mark in (process / "environ").read_bytes().split(b"\0"):
                found.append(int(process.name))
    return found


@pytest.fixture(scope="module")
def devices(federation):
    return [json.loads(line) for line in (federation["out"] / "devices.jsonl").read_text().splitlines()]


def simulated(rounds):
    return fedprox.train(Config.from_dict({**fedprox.Config.from_dict(_settings()).to_dict(), "rounds": rounds}))


def _settings():
    import tomllib

    return tomllib.loads(SETTINGS)


def test_the_losses_are_those_of_the_simulation(federation, devices):
    history = fedprox.load_run(federation["out"]).history
    expected = simulated(2)
    for ours, theirs in zip(history[:2], [expected.history[0], expected.history[-1]], strict=True):
        assert ours["round"] == theirs["round"]
        for key in ("train_loss", "train_accuracy", "test_accuracy"):
            assert ours[key] == pytest.approx(theirs[key], rel=1e-6)
    for ours, theirs in zip(devices[:2], expected.devices, strict=True):
        for key in ("device", "samples", "budget", "steps", "kept", "weight"):
            assert ours[key] == theirs[key]
        assert ours["gamma"] == pytest.approx(theirs["gamma"], rel=1e-4)
        assert all(seconds > 0 for seconds in ours["seconds"])
        assert all(speed > 0 for speed in ours["speed"])


def test_the_killed_server_left_a_run_that_could_be_resumed(federation, devices):
    assert not federation["summary_after_kill"]
    assert [row["round"] for row in devices] == [1, 2, 3, 4]
    summary = fedprox.load_run(federation["out"]).summary
    assert summary["ended"] == "finished"
    assert summary["rounds"] == 4


def test_the_slow_device_has_its_partial_work_merged(devices):
    row = devices[2]
    at = row["device"].index(1)
    assert 0 < row["steps"][at] < row["budget"][at]
    assert row["straggler"][at]
    assert row["kept"][at]
    assert row["weight"][at] > 0
    assert 6 <= row["seconds"][at] < 20
    assert row["speed"][at] < 30  # samples per second: 0.4 seconds a step


def test_the_reply_with_nan_is_refused_and_recorded(federation, devices):
    row = devices[2]
    at = row["device"].index(2)
    assert row["problem"][at].startswith("refused: ")
    assert "not finite" in row["problem"][at]
    assert not row["kept"][at]
    assert fedprox.load_run(federation["out"]).summary["refused_replies"] == 1


def test_the_round_of_the_killed_device_completes_with_the_others(federation, devices):
    row = devices[3]
    at = row["device"].index(0)
    assert row["problem"][at] is not None
    assert row["kept"] == [device != 0 for device in row["device"]]
    assert row["solve_seconds"] < 6 + 120 + 15
    assert fedprox.load_run(federation["out"]).history[-1]["measured_devices"] == 2


def test_the_model_is_what_the_devices_that_were_merged_make_of_it(federation, devices):
    """From the simulation's w^2, rounds 3 and 4 are done again here, with the steps that each device really took."""
    config = Config.from_dict(_settings())
    population, model = data.load(config), softmax_regression(60, 10)
    params = flatten_names(simulated(2).params)
    for row in devices[2:]:
        merged = {name: np.zeros_like(array) for name, array in params.items()}
        for device, steps, weight, kept in zip(
            *(row[key] for key in ("device", "steps", "weight", "kept")), strict=True
        ):
            if kept:
                asked = Instruction(device, params, None, row["round"], 0.5, steps, 0.0)
                work = Device(config, model, DeviceData.of(population, device)).work(asked)
                merged = {name: array + np.float32(weight) * work.params[name] for name, array in merged.items()}
        params = merged
    final = flatten_names(fedprox.load_run(federation["out"]).params)
    for name, array in params.items():
        assert final[name] == pytest.approx(array, rel=1e-5, abs=1e-6)


def test_a_node_without_a_registered_key_is_kept_out(federation):
    code, log = federation["stranger"]
    assert code != 0
    assert "SuperNode ID" not in log
    assert fedprox.load_run(federation["out"]).summary["turned_away"] == []


def test_nothing_is_left_running(federation):
    assert len(federation["running"]) >= 3  # the SuperLink and two nodes, just before
    assert federation["left_over"] == []


def test_report_and_watch_read_the_run_like_any_other(federation, tmp_path):
    from typer.testing import CliRunner

    from fedprox.cli import app

    for command in (
        ["report", str(federation["out"]), "--out", str(tmp_path / "report.html")],
        ["watch", str(federation["out"]), "--once"],
        ["export", str(federation["out"]), "--format", "csv"],
    ):
        result = CliRunner().invoke(app, command)
        assert result.exit_code == 0, result.output
