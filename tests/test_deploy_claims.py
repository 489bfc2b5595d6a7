"""Losses and gradients of any size from one device, and who is blamed where a merge is infinite."""

import math
from dataclasses import dataclass, replace

import numpy as np
import pytest

from fake_federation import FakeGrid
from fedprox.config import Config
from fedprox.core.trees import difference, squared_norm
from fedprox.deploy.messages import Gradient, Instruction, WorkReport
from fedprox.deploy.norm_limits import NormLimits
from fedprox.deploy.reply_additions import Contribution, measure_additions
from fedprox.methods import Method, Received, Reply
from test_deploy_parts import POPULATION, build_config, run

ROUNDS = 2
WITHOUT = {}  # the models of federations whose device 1 is silent, by method


def config_for(method):
    measure = {"every": ROUNDS, "dissimilarity": False}
    settings = build_config(rounds=ROUNDS, devices={"per_round": 4}, measure=measure).to_dict()
    return Config.from_dict({**settings, "method": method})


def run_with(method, lie, folder, monkeypatch):
    """Run a federation whose device 1 lies; return the result, and the problems by device."""
    own = method if isinstance(method, Method) else None
    config = config_for({} if own else method)

    def behave(device, asked, answer):
        return lie(asked, answer) if device == 1 else answer

    result = run(config, FakeGrid(config, POPULATION, behave), folder, monkeypatch, method=own)
    problems = {device: [] for device in range(4)}
    for row in result.devices:
        for device, problem in zip(row["device"], row["problem"], strict=True):
            problems[device] += [problem] if problem else []
    return result, problems


def claims_loss(value):
    return lambda asked, answer: replace(answer, loss=value) if isinstance(answer, WorkReport) else answer


def sends(value, kind=WorkReport):
    def lie(asked, answer):
        if not isinstance(answer, kind) or (kind is WorkReport and not isinstance(asked, Instruction)):
            return answer
        return replace(answer, params={name: np.full_like(array, value) for name, array in answer.params.items()})

    return lie


def silent(asked, answer):
    return None if isinstance(answer, (WorkReport, Gradient)) else answer


@pytest.mark.parametrize(
    ("method", "lie", "reason"),
    [
        ({"name": "qffl", "q": 2.0}, claims_loss(1e29), "what it adds to the model is not finite"),
        ({"name": "qffl", "q": 20.0}, claims_loss(1e29), "what it adds to the model is not finite"),
        ({"name": "qffl", "q": 2.0}, claims_loss(1e10), "the loss F_k(w^t) = 1e+10 is beyond the limit"),
        ({"name": "agnostic"}, claims_loss(-1e29), "the loss F_k(w^t) = 1e+29 is beyond the limit"),
        ({"name": "qffl", "q": 2.0}, sends(3e38), ""),
        ({"name": "feddane"}, sends(1e20, Gradient), "||grad F_k(w^t)|| = 4.243e+20 is beyond the limit"),
        ({"name": "feddane"}, sends(3e38, Gradient), "||grad F_k(w^t)|| = 1.273e+39 is beyond the limit"),
    ],
)
def test_a_claim_of_any_size_is_refused_and_only_its_device_blamed(method, lie, reason, tmp_path, monkeypatch):
    result, problems = run_with(method, lie, tmp_path / "run", monkeypatch)
    assert result.summary["rounds"] == ROUNDS
    assert [reason in problem for problem in problems.pop(1)] == [True] * ROUNDS
    assert problems == {0: [], 2: [], 3: []}
    assert result.summary["refused_replies"] == ROUNDS
    if (key := str(method)) not in WITHOUT:
        WITHOUT[key] = run_with(method, silent, tmp_path / "without", monkeypatch)[0].params
    for name, expected in WITHOUT[key].items():
        np.testing.assert_array_equal(result.params[name], expected)


@dataclass(frozen=True)
class Powers(Method):
    """A method that takes a power of a device's loss as Python does, which raises where the result is too large."""

    name: str = "powers"

    def work(self, device):
        solution = device.solve()
        return Reply(solution.params, np.float64(device.loss() ** 20))


def test_a_claim_that_a_method_cannot_compute_with_is_refused(tmp_path, monkeypatch):
    result, problems = run_with(Powers(), claims_loss(1e29), tmp_path / "run", monkeypatch)
    assert result.summary["rounds"] == ROUNDS
    assert ["the method cannot compute with it" in problem for problem in problems.pop(1)] == [True] * ROUNDS
    assert problems == {0: [], 2: [], 3: []}


def test_gradients_of_a_second_draw_are_bounded_too(tmp_path, monkeypatch):
    method = {"name": "feddane", "second_draw": True}
    result, problems = run_with(method, sends(1e20, Gradient), tmp_path / "run", monkeypatch)
    honest, _ = run_with(method, lambda asked, answer: answer, tmp_path / "honest", monkeypatch)
    assert math.sqrt(squared_norm(difference(result.params, honest.params))) < 1
    assert [problems[device] for device in (0, 2, 3)] == [[], [], []]


def test_a_high_loss_is_no_claim_where_the_others_have_fitted_their_samples():
    limits = NormLimits("auto")
    fitted = {device: {"loss": 1e-6} for device in range(4)}
    assert limits.worst({**fitted, 7: {"loss": 60.0}}) is None
    assert limits.worst({**fitted, 7: {"loss": 600.0}}) == (7, "the loss F_k(w^t) = 600 is beyond the limit of 100")


@pytest.mark.parametrize(("sent", "culprit"), [([1.0, 3e38, 2.0, 3.4e38], 3), ([1.0, 1e38, 2.0, math.inf], 3)])
def test_of_several_replies_that_make_a_merge_infinite_the_furthest_is_blamed(sent, culprit):
    def merge(received):
        return sum((np.float32(one.reply.averaged) for one in received), np.float32(0)), ()

    contributions = [
        Contribution(Received(device, Reply(np.float32(value)), 0.25, 0.25, 1), None, Reply(np.float32(0)))
        for device, value in enumerate(sent)
    ]
    with np.errstate(all="ignore"):
        found = measure_additions(contributions, merge)
    assert [added.get("model") for added in found] == [math.inf if k == culprit else None for k in range(4)]
