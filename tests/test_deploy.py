"""A real federation on this machine: one SuperLink, three SuperNodes, TLS, keys, and everything that goes wrong.

One federation serves all tests of this file, since starting one costs half a minute. Two of its nodes keep the app in
their process (`attack.warm_node`): Flower's SuperNode, which the third one becomes, starts a process for each message,
which imports JAX. First the federation runs parts of a user's own, from a file of the app. Then comes a run whose
devices misbehave by round:

    rounds 1, 2   all is well; then the server is killed, and resumed
    round 3       device 1 is slow, device 2 sends NaN
    round 4       device 0 hangs, and is killed there
"""

import contextlib
import json
import os
import shlex
import signal
import time
from pathlib import Path

import numpy as np
import pytest

import fedprox
from attack.federation import WarmTrial
from fedprox import data
from fedprox.config import Config, with_overrides
from fedprox.core.errors import RunError
from fedprox.core.files import read_tensors
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

PATIENCE = 900  # seconds, on a busy machine

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

TASK = """
from pathlib import Path

from fedprox import data
from fedprox.deploy.device_data import DeviceData
from fedprox.models import softmax_regression

SETTINGS = Path(__file__).parents[1] / "fedprox.toml"


def load_model(config):
    return softmax_regression(60, 10)


def load_data(config, device):
    return DeviceData.of(data.load(config), device)
"""

MINE = """
from dataclasses import asdict, dataclass, replace

import jax
import numpy as np

from fedprox import Method
from fedprox.methods.merging import MergeRule


@dataclass(frozen=True)
class Half(Method):
    name: str = "half"
    proximal: bool = True
    strength: float = 0.5

    def merge(self, server, params, averaged, summed):
        return jax.tree.map(lambda w, a: w + np.float32(self.strength) * (a - w), params, averaged), server


@dataclass(frozen=True)
class Nearest(Method):
    name: str = "nearest"
    proximal: bool = True
    needs_every_reply: bool = True
    count: int = 5

    def merge_replies(self, server, params, replies):
        def distance(received):
            moves = jax.tree.map(lambda a, b: np.sum((a - b) ** 2), received.reply.averaged, params)
            return sum(jax.tree.leaves(moves))

        kept = [received.reply.averaged for received in sorted(replies, key=distance)[: self.count]]
        return jax.tree.map(lambda *leaves: np.mean(leaves, axis=0), *kept), server


@dataclass(frozen=True)
class Middle(MergeRule):
    name: str = "middle"
    needs_every_reply: bool = True

    def merge(self, replies, weights):
        return jax.tree.map(lambda *leaves: np.median(np.stack(leaves), axis=0), *replies)


@dataclass(frozen=True)
class Shrinking:
    mu: float
    factor: float = 0.5

    def after(self, signals):
        return replace(self, mu=self.mu * self.factor) if signals.weights else self

    def state(self):
        return asdict(self)


def worst_first(view):
    unseen = [device for device in range(len(view.sizes)) if device not in view.known]
    known = sorted(view.known, key=lambda device: -(view.known[device].loss or 0.0))
    return [*unseen, *known][: view.per_round] if not view.known else [*known, *unseen][: view.per_round]


def hits(labels, predictions):
    return np.mean(labels == predictions)


def errors(labels, predictions):
    return (labels != predictions).sum()


errors.adds_up = True
"""

OWN_PARTS = {
    "own": {
        "rounds": 2,
        "method.name": "federation.mine:Half",
        "method.strength": 0.25,
        "method.mu": "federation.mine:Shrinking",
        "method.mu_initial": 1.0,
        "method.factor": 0.1,
        "merge.rule": "federation.mine:Middle",
        "measure.metrics": ["federation.mine:hits", "federation.mine:errors"],
        "measure.every": 1,
        "devices.sampling": "federation.mine:worst_first",
        "devices.per_round": 2,
    },
    "feddane": {"rounds": 1, "method.name": "feddane", "method.mu": 0.5, "merge.rule": "median"},
    "personal": {
        "rounds": 2,
        "method.name": "federation.mine:Nearest",
        "method.count": 2,
        "personal.parameters": ["bias"],
    },
}

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


def overrides(settings):
    values = {key: value if isinstance(value, str) else json.dumps(value) for key, value in settings.items()}
    return shlex.join(f"{key}={value}" for key, value in values.items())


class MixedTrial(WarmTrial):
    """A federation whose nodes keep their app, but for those with numbers in `plain` and those with another key."""

    def __init__(self, *given):
        super().__init__(*given)
        self.plain: set[int] = set()

    def start_node(self, number, *, key=None, name=""):
        kind = Trial if key is not None or number in self.plain else WarmTrial
        return kind.start_node(self, number, key=key, name=name)

    def make_plain(self, number):
        """Replace a node by Flower's own."""
        self.end(f"node{number}", signal.SIGINT)  # at which it takes its leave of the SuperLink
        (self.folder / f"node{number}.log").unlink()
        self.plain.add(number)
        self.start_node(number)
        self._wait_for_nodes()


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    """Run the whole story once, and return what is left of it."""
    folder = tmp_path_factory.mktemp("deploy")
    out = folder / "run"
    write_project(folder / "app")
    (folder / "app" / "fedprox.toml").write_text(SETTINGS)
    (folder / "app" / "federation" / "task.py").write_text(TASK)
    (folder / "app" / "federation" / "mine.py").write_text(MINE)
    (folder / "app" / "federation" / "client_app.py").write_text(CLIENT)
    write_keys(folder / "stranger", nodes=1)
    trial = MixedTrial(folder / "trial", 3)
    trial.app = folder / "app"
    trial.environment["FEDPROX_TEST_FOLDER"] = str(folder)
    trial.environment["XDG_DATA_HOME"] = str(folder / "home")  # where devices keep personal parameters
    story = {"out": out, "trial": trial, "folder": folder}
    with trial:
        for name, settings in OWN_PARTS.items():
            if name == "personal":  # whose parameters have to outlive a process
                trial.make_plain(2)
            trial.run(folder / "app", folder / name, {"set": overrides(settings)}, start_seconds=PATIENCE)
        nowhere = {"set": "method.name=federation.nowhere:Half"}
        with pytest.raises(RunError) as failed:
            trial.run(folder / "app", folder / "nowhere", nowhere, start_seconds=PATIENCE)
        story["missing"] = str(failed.value)
        stranger = trial.start_node(0, key=folder / "stranger" / "node0", name="stranger")
        trial.submit(folder / "app", {"out": str(out)})
        wait(lambda: rounds_done(out) >= 2, PATIENCE, trial.log("superlink"))
        os.kill(server_process(trial), signal.SIGKILL)
        wait(lambda: not is_running(out), 20, "the server is still there")
        story["summary_after_kill"] = (out / "summary.json").exists()
        trial.submit(folder / "app", {"out": str(out), "resume": True, "set": "deploy.deadline=6"})
        wait((folder / "hanging").exists, PATIENCE, trial.log("superlink"))
        trial.end("node0", signal.SIGKILL)
        wait((out / "summary.json").exists, PATIENCE, trial.log("superlink"))
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


@pytest.mark.parametrize("name", OWN_PARTS)
def test_own_parts_take_the_same_path_as_the_simulation(federation, name, monkeypatch):
    monkeypatch.syspath_prepend(federation["folder"] / "app")
    config = Config.from_dict(with_overrides(_settings(), shlex.split(overrides(OWN_PARTS[name]))))
    expected, deployed = fedprox.train(config), fedprox.load_run(federation["folder"] / name)
    rounding = 1e-6 if name == "feddane" else 0.0  # a device alone adds up its gradient in blocks of another length
    for parameter, array in flatten_names(expected.params).items():
        np.testing.assert_allclose(flatten_names(deployed.params)[parameter], array, rtol=0, atol=rounding)
    for ours, theirs in zip(deployed.history, expected.history, strict=True):
        for key in (
            "train_loss",
            "train_accuracy",
            "test_accuracy",
            "mu",
            *(("hits", "errors") if name == "own" else ()),
        ):
            assert ours[key] == pytest.approx(theirs[key], rel=1e-6), key


def test_personal_parameters_are_on_the_devices_alone(federation, monkeypatch):
    monkeypatch.syspath_prepend(federation["folder"] / "app")
    config = Config.from_dict(with_overrides(_settings(), shlex.split(overrides(OWN_PARTS["personal"]))))
    expected = fedprox.train(config).personal
    files = sorted((federation["folder"] / "home").rglob("2-*.safetensors"))
    assert len(files) == len(expected) == 3
    for file in files:
        assert np.array_equal(read_tensors(file)[0]["bias"], expected[int(file.parent.name)]["bias"])


def test_a_part_that_is_missing_on_the_server_is_one_sentence(federation):
    assert not (federation["folder"] / "nowhere").exists()
    sentence = "`method.name` must name a module that can be imported (ModuleNotFoundError: No module named "
    assert f"has failed: ServerApp failed with exception: {sentence}" in federation["missing"]


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
