"""Every function of a user's parts that raises, or returns something else than it should, is named in one sentence."""

import dataclasses
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import pytest

import fedprox
from conftest import population_of
from fedprox.core.errors import ConfigError, FedProxError, OwnCodeError, RunError
from fedprox.core.own_code import own_hooks
from fedprox.core.own_results import check_arrays, fitted
from fedprox.methods import Method, Reply, elementwise
from fedprox.methods.merging import MergeRule
from fedprox.solvers import opaque

SETTINGS = {"rounds": 2, "solver": {"epochs": 1}, "devices": {"per_round": 2}, "checkpoint": {"every": 1}}


@dataclass(frozen=True)
class Own(Method):
    name: str = "own"
    proximal: bool = True
    personal: bool = False
    answers: dict = dataclasses.field(default_factory=dict)

    def _answer(self, hook, *given):
        return self.answers[hook]() if hook in self.answers else getattr(super(), hook)(*given)

    def start(self, params):
        return self._answer("start", params)

    def start_device(self, params):
        return self._answer("start_device", params)

    def centre(self, server, params):
        return self._answer("centre", server, params)

    def send(self, server, mean_gradient):
        return self._answer("send", server, mean_gradient)

    def kept(self, work):
        return self._answer("kept", work)

    def device_mu(self, mu, sent, state, params):
        return self._answer("device_mu", mu, sent, state, params)

    def linear(self, sent, state, gradient):
        return self._answer("linear", sent, state, gradient)

    def reply(self, solution):
        return self._answer("reply", solution)

    def merge(self, server, params, averaged, summed):
        return self._answer("merge", server, params, averaged, summed)


def raises():
    raise ValueError("no such thing")


@pytest.mark.parametrize(
    "hook", ["start", "start_device", "centre", "send", "kept", "linear", "device_mu", "reply", "merge"]
)
@pytest.mark.parametrize("personal", [[], ["bias"]])
def test_hooks_of_a_method_that_raise(small_population, hook, personal):
    with pytest.raises(OwnCodeError, match=r"Own._answer|Own\.\w+ failed with ValueError: no such thing \(test_own_ho"):
        fedprox.train(
            {**SETTINGS, "personal": {"parameters": personal}},
            population=small_population,
            method=Own(answers={hook: raises}),
        )


@pytest.mark.parametrize(
    ("hook", "value", "sentence"),
    [
        ("start", object(), "start of the method 'own' must return arrays of numbers .*; got object"),
        ("start_device", {"a": "x"}, "start_device of the method 'own' must return arrays .*a' has <U1"),
        (
            "send",
            {"a": object()},
            "send of the method 'own' must return arrays of numbers .*; 'a' has object",
        ),
        ("device_mu", "1", "method 'own' must return a number as `mu`, or one for each group of names; got '1'"),
        ("device_mu", {"*": "1"}, r"method 'own' must return a number as `mu`, .*; got {'\*': '1'}"),
        ("merge", ({}, ()), "merge of the method 'own' must return params with the names and shapes of the model"),
        (
            "reply",
            Reply({"a": np.zeros(2)}, state={"a": np.zeros(2)}),
            r"must return the device's state with the names and shapes that `start_device` gives \('a': none\); got",
        ),
        ("kept", np.ones(1, bool), r"must return true or false for each of 2 devices; got array\(\[ True\]\)"),
        ("kept", np.arange(2), "must return true or false for each of 2 devices"),
        ("kept", None, "must return true or false .*; got None"),
        (
            "linear",
            {"a": np.zeros(2)},
            r"method 'own' must return `linear` with the names and shapes of the model",
        ),
        ("reply", None, "method 'own' must return a Reply from each device; got NoneType"),
        ("reply", Reply({"a": np.array([None])}), "must return arrays of numbers as `averaged`; 'a' has object"),
    ],
)
@pytest.mark.parametrize("personal", [[], ["bias"]])
def test_hooks_of_a_method_that_return_something_else(small_population, hook, value, sentence, personal):
    with pytest.raises(RunError, match=sentence):
        fedprox.train(
            {**SETTINGS, "personal": {"parameters": personal}},
            population=small_population,
            method=Own(answers={hook: lambda: value}),
        )


def test_hooks_with_other_arguments(small_population):
    class Fewer(Method):
        def merge(self, params, averaged):  # type: ignore[override]
            return params, averaged

    class FewerReplies(MergeRule):
        def merge(self, replies):  # type: ignore[override]
            return replies[0]

    with pytest.raises(
        ConfigError, match=r"merge of the method 'few' must take \(server, params, averaged, summed\); "
    ):
        fedprox.train(SETTINGS, population=small_population, method=Fewer("few"))
    with pytest.raises(ConfigError, match=r"merge of the merge rule 'few' must take \(replies, weights\); got \(rep"):
        fedprox.train(SETTINGS, population=small_population, merge_rule=FewerReplies("few"))


@pytest.mark.parametrize(
    ("server", "sentence"),
    [
        (lambda: 1, "merge of the method 'grows' must return arrays of numbers as the server's state; got object"),
        ({"a": np.zeros(1)}, "server's state with the names and shapes that `start` gives .'a': none.; got .1,."),
    ],
)
def test_what_the_server_could_not_resume_with(small_population, server, sentence):
    @dataclass(frozen=True)
    class Grows(Method):
        name: str = "grows"

        def merge(self, before, params, averaged, summed):
            return averaged, server

    with pytest.raises(RunError, match=sentence):
        fedprox.train(SETTINGS, population=small_population, method=Grows())


@pytest.mark.parametrize("value", [None, np.ones(1, bool)])
def test_devices_kept_by_a_server_that_merges_replies_as_they_arrive(small_population, value):
    systems = {"model": "clock", "profile": "equal", "server": "buffered", "buffer": 2, "concurrency": 3}
    with pytest.raises(RunError, match="kept of the method 'own' must return true or false for each of"):
        fedprox.train(
            {**SETTINGS, "systems": systems}, population=small_population, method=Own(answers={"kept": lambda: value})
        )


@pytest.mark.parametrize("number", [3, 3.0, np.array(3), np.float32(3), True])
def test_numbers_of_any_kind_are_averaged_as_real_ones(small_population, number):
    means = []

    @dataclass(frozen=True)
    class Counts(Method):
        name: str = "counts"

        @elementwise
        def reply(self, solution):
            return Reply({"model": solution.params, "count": number}, number)

        def merge(self, server, params, averaged, summed):
            means.append((float(averaged["count"]), float(summed)))
            return averaged["model"], server

    for lanes in (2, 20):  # a group of small devices is asked at once
        settings = {**SETTINGS, "devices": {"per_round": lanes}}
        population = small_population if lanes == 2 else population_of([8] * 20)
        result = fedprox.train(settings, population=population, method=Counts())
        assert [round(each, 5) for each, _ in means] == [float(number)] * 2
        masses = [sum(row["samples"]) / result.summary["train_samples"] for row in result.devices]
        assert [each for _, each in means] == pytest.approx([float(number) * mass for mass in masses])
        means.clear()


def test_a_merge_in_another_precision_is_taken_in_the_model_s(small_population):
    @dataclass(frozen=True)
    class Wide(Method):
        name: str = "wide"

        def merge(self, server, params, averaged, summed):
            return jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), averaged), server

    result = fedprox.train(SETTINGS, population=small_population, method=Wide())
    assert {leaf.dtype for leaf in jax.tree.leaves(result.params)} == {np.dtype(np.float32)}


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        (None, "of the replies"),
        ({"bias": np.zeros(3)}, "of the replies"),
        (raises, "OwnRule.merge failed with ValueErr"),
    ],
)
def test_merge_rules(small_population, value, sentence):
    @dataclass(frozen=True)
    class OwnRule(MergeRule):
        name: str = "own"
        needs_every_reply: bool = True

        def merge(self, replies, weights):
            return value() if callable(value) else value

    with pytest.raises(RunError, match=sentence):
        fedprox.train(SETTINGS, population=small_population, merge_rule=OwnRule())


class OwnSolver:
    name, is_sgd = "own", False

    def __init__(self, change, steps=1):
        self.change, self.steps = change, steps

    def solve(self, local):
        return jax.tree.map(self.change, local.start), self.steps


@pytest.mark.parametrize(
    ("solver", "sentence"),
    [
        (OwnSolver(lambda leaf: leaf[:1]), "solver own on device .* with the names and shapes of the model"),
        (OwnSolver(lambda leaf: leaf * 1j), "must return arrays of numbers as parameters; 'bias' has complex64"),
        (OwnSolver(lambda leaf: leaf, steps=-1), "must take between 0 and .* steps, its budget; got -1"),
        (OwnSolver(lambda leaf: leaf, steps=float("nan")), "its budget; got nan"),
        (OwnSolver(lambda leaf: leaf, steps=10**9), "its budget; got 1000000000"),
        (opaque(lambda *_: raise_exit()), "failed with SystemExit: 3"),
    ],
)
def test_solvers(small_population, solver, sentence):
    with pytest.raises(RunError, match=sentence):
        fedprox.train(SETTINGS, population=small_population, solver=solver)


def raise_exit():
    raise SystemExit(3)


@dataclass(frozen=True)
class OwnMu:
    mu: object
    next: object = None
    kept: object = None

    def after(self, signals):
        return self if self.next is None else self.next

    def state(self):
        return {"mu": self.mu} if self.kept is None else self.kept


@pytest.mark.parametrize("mu", [-1.0, float("nan"), float("inf"), "1", None, True])
def test_a_controller_gives_a_number(small_population, mu):
    with pytest.raises(RunError, match="`mu` of the controller OwnMu must be a number >= 0; got"):
        fedprox.train(SETTINGS, population=small_population, mu_controller=OwnMu(mu))


def test_a_controller_is_followed_by_one_and_can_be_saved(small_population, tmp_path):
    with pytest.raises(RunError, match=r"`after` of the controller OwnMu must return a controller, .*; got 5"):
        fedprox.train(SETTINGS, population=small_population, mu_controller=OwnMu(1.0, next=5))
    with pytest.raises(RunError, match="`state` of the controller OwnMu must be a dict of plain JSON values"):
        fedprox.train(SETTINGS, population=small_population, mu_controller=OwnMu(1.0, kept=[1]), out=tmp_path / "a")
    result = fedprox.train(
        SETTINGS, population=small_population, mu_controller=OwnMu(np.float32(0.5)), out=tmp_path / "b"
    )
    assert result.devices.column("mu") == [0.5, 0.5]


def test_metrics_cannot_change_the_labels(small_population):
    def spoil(labels, predictions):
        labels[:] = 0
        return 1.0

    with pytest.raises(OwnCodeError, match="the metric 'spoil' failed with ValueError: assignment destination is read"):
        fedprox.train(SETTINGS, population=small_population, metrics={"spoil": spoil})
    with pytest.raises(RunError, match="the metric 'huge' must return a number, or a dict of numbers; got 1000"):
        fedprox.train(SETTINGS, population=small_population, metrics={"huge": lambda labels, predictions: 10**400})


def test_a_schedule_may_give_numbers_of_numpy(small_population):
    def half(learning_rate: float, round: int, rounds: int) -> Any:
        return np.float32(0.5)

    result = fedprox.train(SETTINGS, population=small_population, schedule=half)
    assert result.history.column("learning_rate")[1:] == [0.5, 0.5]


def test_errors_of_the_library_and_of_callbacks_pass_unchanged(small_population):
    def fails(progress: Any) -> bool:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fedprox.train(SETTINGS, population=small_population, callbacks=[fails])
    with pytest.raises(FedProxError, match=r"^a sentence$"), own_hooks():
        raise RunError("a sentence")
    with pytest.raises(ValueError, match="invalid literal"):
        own_hooks()(jax.tree.map)(int, "x")


def test_names_of_parameters_that_would_be_one(small_population):
    model = fedprox.Model(
        "twice",
        init=lambda key: {"a.b": np.zeros((1, 1), np.float32), "a": {"b": np.zeros(1, np.float32)}},
        loss=lambda params, x, y: x[:, 0],
        predict=None,
    )
    with pytest.raises(FedProxError, match="different names, which are their keys joined by dots; got two called"):
        fedprox.train(SETTINGS, population=small_population, model=model)


def test_results_are_taken_in_the_structure_that_is_needed():
    like = {"a": np.zeros(2, np.float32)}
    assert fitted({"a": np.arange(2)}, like, "part")["a"].dtype == np.float32
    with pytest.raises(RunError, match="part must return arrays of numbers as it; got <U1"):
        check_arrays("x", "part", "it")
