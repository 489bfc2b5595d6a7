"""Real devices on the one loop: any method, rule, controller and callback that a simulation takes."""

import stat
from collections import Counter
from dataclasses import dataclass, replace

import numpy as np
import pytest
from flwr.app import Error

import fedprox
from fake_federation import FakeGrid
from fedprox.config import Config
from fedprox.core.errors import RunError
from fedprox.core.trees import difference, scale, total
from fedprox.deploy.messages import Gradient, Instruction
from fedprox.methods import Method, Reply
from test_deploy_parts import POPULATION, build_config, run


@dataclass(frozen=True)
class Half(Method):
    """A method of a user's own: it makes half of the mean move, replies more than w_k, and remembers its last move."""

    name: str = "half"
    proximal: bool = True

    def start(self, params):
        return {"moves": np.float64(0)}

    def start_device(self, params):
        return scale(params, 0.0)

    def linear(self, sent, state, gradient):
        return scale(state, 0.1)

    def reply(self, solution):
        move = difference(solution.params, solution.anchor)
        return Reply({"move": move, "steps": np.float64(solution.steps)}, np.float64(1), move)

    def merge(self, server, params, averaged, summed):
        return total(params, scale(averaged["move"], 0.5)), {"moves": server["moves"] + summed}


@dataclass(frozen=True)
class Last(Method):
    """A method whose server sees every reply, and takes the last one."""

    name: str = "last"
    needs_every_reply: bool = True

    def merge_replies(self, server, params, replies):
        return replies[-1].reply.averaged, server


@dataclass(frozen=True)
class Ditto(Method):
    """A method with a second model on each device, drawn towards w^t: it poses two subproblems in a round."""

    name: str = "ditto"
    strength: float = 0.1

    def start_device(self, params):
        return params

    def work(self, device):
        shared = device.solve()
        own = device.solve(start=device.state, anchor=device.received, mu={"bias": 0.0, "*": self.strength}, budget=4)
        return Reply(shared.params, state=own.params)


@dataclass(frozen=True)
class Growing:
    """A mu controller of a user's own: mu grows with every round."""

    mu: float

    def after(self, signals):
        return Growing(self.mu + len(signals.drift2) * 0.01)

    def state(self):
        return {"mu": self.mu}


def same_path(result, simulated, rel=1e-9):
    for name, expected in simulated.params.items():
        assert np.array_equal(result.params[name], expected), name
    for ours, theirs in zip(result.history, simulated.history, strict=True):
        assert ours["train_loss"] == pytest.approx(theirs["train_loss"], rel=rel)
        assert ours["mu"] == theirs["mu"]


@pytest.mark.parametrize("method", [fedprox.methods.qffl(), fedprox.methods.agnostic(mixture_step=0.5)])
def test_a_method_that_needs_losses_has_them_of_real_devices(method, tmp_path, monkeypatch):
    config = build_config(devices={"stragglers": 0.5})
    result = run(config, FakeGrid(config, POPULATION), tmp_path / "run", monkeypatch, method=method)
    simulated = fedprox.train(config, population=POPULATION, method=method)
    for name, expected in simulated.params.items():
        np.testing.assert_allclose(result.params[name], expected, rtol=1e-5, atol=1e-6)


def test_sdane_asks_real_devices_for_gradients_at_their_solutions(tmp_path, monkeypatch):
    config = build_config(method={"name": "sdane", "mu": 1.0}, devices={"stragglers": 0.5})
    result = run(config, FakeGrid(config, POPULATION), tmp_path / "run", monkeypatch)
    simulated = fedprox.train(config, population=POPULATION)
    for name, expected in simulated.params.items():  # the mean gradient is added up in another order
        np.testing.assert_allclose(result.params[name], expected, rtol=1e-5, atol=1e-6)
    assert result.devices.column("steps") == simulated.devices.column("steps")


def test_a_device_without_a_usable_gradient_at_its_solution_has_no_part_in_the_round(tmp_path, monkeypatch):
    asked_for = Counter()

    def partly(device, asked, answer):
        if isinstance(answer, Gradient):
            asked_for[device] += 1
            if device == 1 and asked_for[device] == 2:
                return Error(2, "asleep")
            if device == 2 and asked_for[device] == 2:
                return Gradient({name: array * np.nan for name, array in answer.params.items()})
        return answer

    config = build_config(rounds=1, devices={"per_round": 4}, method={"name": "sdane", "mu": 1.0})
    [row] = run(config, FakeGrid(config, POPULATION, partly), tmp_path / "run", monkeypatch).devices
    problems = dict(zip(row["device"], row["problem"], strict=True))
    assert problems == {
        0: None,
        1: "no gradient: Flower reports error 2: asleep",
        2: "refused: no gradient: 'bias' has entries that are not finite",
        3: None,
    }
    assert [weight > 0 for weight in row["weight"]] == [device in (0, 3) for device in row["device"]]
    assert set(asked_for.values()) == {2}


@pytest.mark.filterwarnings("ignore:the theory of scaffnew needs every device in every round")
@pytest.mark.parametrize("method", [fedprox.methods.fedadmm(convexity=1.0), fedprox.methods.scaffnew(probability=0.2)])
def test_methods_with_steps_of_their_own_take_the_path_of_the_simulation(method, tmp_path, monkeypatch):
    config = build_config(devices={"stragglers": 0.5})
    result = run(config, FakeGrid(config, POPULATION), tmp_path / "run", monkeypatch, method=method)
    simulated = fedprox.train(config, population=POPULATION, method=method)
    same_path(result, simulated)
    assert result.devices.column("steps") == simulated.devices.column("steps")
    assert any(row["steps"] != row["budget"] for row in simulated.devices)


@pytest.mark.parametrize(
    "method", [Half(), Last(), Ditto(), fedprox.methods.ditto(), fedprox.methods.pfedme(personal_mu=1.0)]
)
def test_a_method_of_ones_own_takes_the_same_path_as_the_simulation(method, tmp_path, monkeypatch):
    config = build_config(devices={"stragglers": 0.5})
    result = run(config, FakeGrid(config, POPULATION), tmp_path / "run", monkeypatch, method=method)
    simulated = fedprox.train(config, population=POPULATION, method=method)
    same_path(result, simulated)
    assert [row["steps"] for row in result.devices] == [row["steps"] for row in simulated.devices]


def test_a_mu_controller_of_ones_own_sees_what_it_sees_in_a_simulation(tmp_path, monkeypatch):
    config = build_config()
    result = run(config, FakeGrid(config, POPULATION), tmp_path / "run", monkeypatch, mu_controller=Growing(0.1))
    same_path(result, fedprox.train(config, population=POPULATION, mu_controller=Growing(0.1)))
    assert result.history.column("mu") == pytest.approx([0.1, 0.1, 0.13, 0.16])


def test_callbacks_are_called_and_may_end_the_run(tmp_path, monkeypatch):
    seen = []

    def stop(progress):
        seen.append((progress.round, progress.rounds, progress.devices is None))
        return progress.round == 2

    config = build_config()
    result = run(config, FakeGrid(config, POPULATION), tmp_path / "run", monkeypatch, callbacks=[stop])
    assert seen == [(0, 3, True), (1, 3, False), (2, 3, False)]
    assert result.summary["ended"] == "stopped"
    assert stat.S_IMODE((tmp_path / "run").stat().st_mode) == 0o700  # what it tells of people's devices is private


@pytest.mark.filterwarnings("ignore:with merge.rule = 'median' the server of scaffold")
@pytest.mark.parametrize("method", [{"name": "fedprox", "mu": 0.5}, {"name": "scaffold"}])
def test_the_median_takes_the_same_path_as_the_simulation(method, tmp_path, monkeypatch):
    config = Config.from_dict({**build_config(merge={"rule": "median"}).to_dict(), "method": method})
    result = run(config, FakeGrid(config, POPULATION), tmp_path / "run", monkeypatch)
    same_path(result, fedprox.train(config, population=POPULATION))


def test_a_minority_that_sends_anything_does_not_move_the_median_far(tmp_path, monkeypatch):
    def wild(device, asked, answer):
        if device == 1 and isinstance(asked, Instruction):
            return replace(answer, params={name: array + 1e3 for name, array in answer.params.items()})
        return answer

    ends = {}
    for rule in ("mean", "median"):
        config = build_config(rounds=2, devices={"per_round": 4}, merge={"rule": rule}, deploy={"max_norm": 1e9})
        result = run(config, FakeGrid(config, POPULATION, wild), tmp_path / rule, monkeypatch)
        ends[rule] = max(np.abs(array).max() for array in result.params.values())
    assert ends["mean"] > 100
    assert ends["median"] < 10


def test_the_gradients_of_feddane_come_from_those_who_answer(tmp_path, monkeypatch):
    def partly(device, asked, answer):
        if device == 1 and isinstance(answer, Gradient):
            return Error(2, "asleep")
        if device == 2 and isinstance(answer, Gradient):
            return Gradient({name: array * np.nan for name, array in answer.params.items()})
        return answer

    settings = build_config(rounds=1, devices={"per_round": 4}).to_dict()
    config = Config.from_dict({**settings, "method": {"name": "feddane", "mu": 0.5}})
    [row] = run(config, FakeGrid(config, POPULATION, partly), tmp_path / "run", monkeypatch).devices
    problems = dict(zip(row["device"], row["problem"], strict=True))
    assert problems == {
        0: None,
        1: "no gradient: Flower reports error 2: asleep",
        2: "no gradient: refused: 'bias' has entries that are not finite",
        3: None,
    }
    assert [weight > 0 for weight in row["weight"]] == [device in (0, 3) for device in row["device"]]


def test_the_bytes_are_those_of_the_arrays_that_were_sent(tmp_path, monkeypatch):
    model = 18 * 4
    for method, each in (("fedprox", 2 * model), ("scaffold", 3 * model)):  # w^t down and w_k up; c_k down
        config = Config.from_dict({**build_config(rounds=2).to_dict(), "method": {"name": method}})
        result = run(config, FakeGrid(config, POPULATION), tmp_path / method, monkeypatch)
        assert result.summary["bytes"] == 2 * 3 * each


@pytest.mark.parametrize(
    ("hook", "value", "sentence"),
    [
        ("linear", {"a": np.zeros(2)}, "method 'half' must return `linear` with the names and shapes of the model"),
        ("reply", Reply({}, state={"a": np.zeros(2)}), "must return the device's state with the names and shapes"),
    ],
)
def test_what_a_method_returns_is_checked_before_devices_are_asked(hook, value, sentence, tmp_path, monkeypatch):
    monkeypatch.setattr(Half, hook, lambda *given: value)
    config = build_config()
    with pytest.raises(RunError, match=sentence):
        run(config, FakeGrid(config, POPULATION), tmp_path / "run", monkeypatch, method=Half())
