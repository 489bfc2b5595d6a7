"""Convergence, divergence and losses that are not finite; mu over the rounds; stopping."""

import json
import os
import signal

import numpy as np
import pytest

import fedprox
from fedprox.config import SolverConfig
from fedprox.engines.device_side import DeviceSide
from fedprox.experiments.compare import Comparison
from fedprox.report.verdict import verdict
from fedprox.runs.folder import RunFolder
from fedprox.runs.history import History
from fedprox.runs.reader import find_runs
from fedprox.runs.seed_groups import group_runs
from fedprox.runs.stopping import Outcome
from fedprox.runs.summary_text import summary_lines
from fedprox.solvers import build, opaque, sgd, svrg


def outcome_of(losses):
    outcome = Outcome()
    for round, loss in enumerate(losses):
        outcome.see(round, loss)
    return outcome


def test_converged_where_two_losses_in_a_row_differ_by_less_than_a_ten_thousandth():
    assert outcome_of([2.0, 1.5, 1.49995, 1.0]).converged_round == 2
    assert outcome_of([2.0, 1.5, 1.4998]).converged_round is None
    assert outcome_of([1.0, 1.00005]).converged_round == 1  # a small rise counts too


def test_diverged_where_the_loss_rose_by_more_than_1_in_ten_rounds():
    rising = [1.0 + 0.11 * t for t in range(20)]
    assert outcome_of(rising).diverged_round == 10
    assert outcome_of([1.0 + 0.09 * t for t in range(20)]).diverged_round is None


def test_measuring_less_often_says_nothing_of_rounds_not_measured():
    outcome = Outcome()
    for round in (0, 5, 10):
        outcome.see(round, 1.0 + round)
    assert outcome.converged_round is None
    assert outcome.diverged_round == 10


def exploding(**settings):
    return {
        "rounds": 6,
        "solver": {"learning_rate": 1e30, "weight_decay": 1.0, "epochs": 3},
        "method": {"mu": 0.0},
        "devices": {"per_round": 3},
        **settings,
    }


def test_a_loss_that_is_not_finite_is_recorded_and_never_a_crash(small_population, tmp_path):
    result = fedprox.train(exploding(), population=small_population, out=tmp_path / "run")
    since = result.summary["not_finite_since"]
    assert since is not None
    assert result.summary["diverged_round"] <= since
    assert result.summary["ended"] == "finished"
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert len(rows) == 7
    assert rows[-1]["train_loss"] is None
    assert "NaN" not in (tmp_path / "run" / "metrics.jsonl").read_text()
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["not_finite_since"] == since


def test_stop_where_it_diverges(small_population):
    result = fedprox.train(exploding(stop={"diverged": True}), population=small_population)
    assert result.summary["ended"] == "diverged"
    assert result.summary["rounds"] == result.summary["diverged_round"] < 6


def test_stop_where_it_converges(small_population):
    config = {
        "rounds": 50,
        "solver": {"learning_rate": 1e-6, "epochs": 1},
        "devices": {"per_round": 3},
        "stop": {"converged": True},
    }
    result = fedprox.train(config, population=small_population)
    assert (result.summary["ended"], result.summary["rounds"]) == ("converged", 1)


@pytest.mark.parametrize("last", [0, 3])
def test_a_callback_may_end_the_run(small_population, last):
    seen = []

    def stop(progress):
        seen.append(progress.round)
        return progress.round == last

    config = {"rounds": 9, "solver": {"epochs": 1}, "devices": {"per_round": 2}}
    result = fedprox.train(config, population=small_population, callbacks=[stop])
    assert seen == list(range(last + 1))
    assert (result.summary["ended"], result.summary["rounds"]) == ("stopped", last)


def test_measuring_every_third_round_and_the_last(small_population):
    config = {"rounds": 8, "solver": {"epochs": 1}, "devices": {"per_round": 2}, "measure": {"every": 3}}
    result = fedprox.train(config, population=small_population)
    assert result.history.column("round") == [0, 3, 6, 8]
    assert result.devices.column("round") == list(range(1, 9))


def test_sgd_that_cannot_be_stable_gets_a_warning(small_population):
    config = {
        "rounds": 1,
        "solver": {"learning_rate": 0.5, "epochs": 1},
        "method": {"mu": 4.0},
        "devices": {"per_round": 2},
    }
    with pytest.warns(UserWarning, match=r"`solver.learning_rate` times `method.mu`"):
        fedprox.train(config, population=small_population)


def test_gamma_is_measured_and_used(small_population):
    config = {
        "rounds": 3,
        "method": {"mu": 1.0},
        "solver": {"epochs": 200, "batch_size": 0, "learning_rate": 0.2, "gamma": 0.1},
        "devices": {"per_round": 3},
        "measure": {"gamma": True},
    }
    result = fedprox.train(config, population=small_population)
    for row, metrics in zip(result.devices, result.history[1:], strict=True):
        assert row["stopped_by"] == ["gamma"] * 3
        assert all(0 < steps < 200 for steps in row["steps"])
        assert max(row["gamma"]) <= 0.1
        assert metrics["gamma_max"] == max(row["gamma"])
        assert metrics["gamma_mean"] == pytest.approx(np.mean(row["gamma"]))


@pytest.mark.parametrize("measured", [True, False])
def test_gamma_is_named_only_where_it_is_known_to_have_ended_the_work(small_population, measured):
    def lazy(params, x, y, subproblem, budget, key):
        return params, 1  # at once, where it was

    config = {
        "rounds": 1,
        "method": {"mu": 1.0},
        "solver": {"epochs": 200, "batch_size": 0, "learning_rate": 0.2, "gamma": 0.1},
        "devices": {"per_round": 5},
        "measure": {"gamma": measured},
    }
    kinds = {0: opaque(lazy), 1: build(SolverConfig(name="lbfgs")), 2: sgd(), 3: svrg()}
    solver = {**kinds, 4: opaque(lambda params, x, y, subproblem, budget, key: (params, budget), "busy")}
    row = fedprox.train(config, population=small_population, solver=solver).devices[0]
    reasons = dict(zip(row["device"], row["stopped_by"], strict=True))
    assert reasons == {0: "solver", 1: "gamma" if measured else "solver", 2: "gamma", 3: "gamma", 4: "budget"}


@pytest.mark.parametrize("is_measured", [False, True])
def test_gamma_is_prepared_only_where_it_is_measured(small_population, monkeypatch, is_measured):
    asked = []
    monkeypatch.setattr(DeviceSide, "inexactness", lambda self, local, params: asked.append(local.device) or 0.5)
    config = {"rounds": 1, "devices": {"per_round": 2}, "measure": {"gamma": is_measured}}
    fedprox.train(config, population=small_population)
    assert len(asked) == 3 * is_measured  # once to compile it


def test_where_the_gradient_is_zero_a_device_stays_and_gamma_is_0():
    from fedprox.models import Model
    from fedprox.population import Population

    population = Population.from_arrays(np.ones((4, 1)), np.zeros(4), [0, 0, 1, 1], test=np.zeros(4))
    model = Model("mean", lambda key: np.zeros(1, np.float32), lambda w, x, y: (x @ w - y) ** 2 / 2, None)
    config = {
        "rounds": 2,
        "solver": {"gamma": 0.5, "learning_rate": 0.1},
        "devices": {"per_round": 2},
        "measure": {"gamma": True},
    }
    result = fedprox.train(config, population=population, model=model)
    assert result.devices[0]["gamma"] == [0.0, 0.0]
    assert result.devices[0]["steps"] == [0, 0]
    assert result.history[-1]["dissimilarity"] == 1.0


def test_exploded_where_the_loss_is_ten_times_the_first_or_not_finite():
    assert outcome_of([2.3, 30.0, 34057.0]).exploded_round == 1
    assert outcome_of([2.3, 30.0, 34057.0]).diverged_round is None  # the paper's rule needs ten rounds
    assert outcome_of([2.0, 20.0, 19.0]).exploded_round is None
    assert outcome_of([2.0, 1.0, None]).exploded_round == 2
    assert outcome_of([-3.0, -2.0, 5.0]).exploded_round is None  # ten times a negative loss says nothing


def test_a_model_that_is_not_finite_has_no_accuracy_and_never_wins(small_population, tmp_path):
    fedprox.train(exploding(), population=small_population, out=tmp_path / "bad")
    good = exploding(solver={"learning_rate": 0.01, "epochs": 1})
    fedprox.train(good, population=small_population, out=tmp_path / "good")
    bad = fedprox.load_run(tmp_path / "bad")
    assert bad.last["train_accuracy"] is bad.last["test_accuracy"] is None
    assert all(row["train_accuracy"] is row["test_accuracy"] is None for row in bad.evaluation)
    assert bad.summary["result"]["test_accuracy"] is None
    assert any(text.startswith("exploded at round") for text in summary_lines(bad.summary))
    groups = group_runs(find_runs([tmp_path]))
    loser = next(group.label for group in groups if group.runs[0].path == bad.path)
    first, *others = verdict(groups)
    assert not first.startswith(loser)
    assert f"{loser} exploded at round {bad.summary['exploded_round']}." in others
    (alone,) = [group for group in groups if group.label == loser]
    assert verdict([alone])[0] == "No method ended with a finite loss."


def test_what_has_exploded_never_wins_a_comparison():
    row = {"train_loss": 9.0, "train_accuracy": 0.5, "test_accuracy": 0.9}
    ends = {"diverged_round": None, "exploded_round": None, "seconds": 1.0}
    histories = {"bad": [History([row])], "good": [History([{**row, "test_accuracy": 0.4}])]}
    comparison = Comparison(histories, {"bad": [{**ends, "exploded_round": 1}], "good": [ends]})
    assert comparison.verdict() == "good ends with the highest test accuracy, 40.0%."
    assert [one["exploded"] for one in comparison.table()] == [1, 0]


def test_an_interrupt_keeps_what_was_done(small_population, tmp_path):
    config = {"rounds": 4, "solver": {"epochs": 1}, "devices": {"per_round": 2}}
    straight = fedprox.train(config, population=small_population)

    def interrupt(progress):
        if progress.round == 2:
            os.kill(os.getpid(), signal.SIGINT)

    def raises(progress):
        if progress.round == 2:
            raise KeyboardInterrupt

    for name, callback in (("signal", interrupt), ("raised", raises)):
        given = {"population": small_population, "out": tmp_path / name}
        result = fedprox.train(config, callbacks=[callback], **given)
        assert (result.summary["ended"], result.summary["rounds"], len(result.history)) == ("interrupted", 2, 3)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        assert fedprox.load_run(tmp_path / name).summary["ended"] == "interrupted"
        again = fedprox.train(config, resume=True, **given)
        assert again.summary["ended"] == "finished"
        np.testing.assert_array_equal(again.params["weight"], straight.params["weight"])


@pytest.mark.parametrize("stop", [{"converged": True}, {}])
def test_a_run_killed_after_its_last_checkpoint_ends_where_it_would_have(stop, small_population, tmp_path, monkeypatch):
    config = {"rounds": 9, "solver": {"epochs": 1, "learning_rate": 1e-9}, "devices": {"per_round": 2}, "stop": stop}

    def rule(history):
        return not stop and history[-1]["round"] >= 2

    def run(**folder):
        return fedprox.train(config, population=small_population, stopping_rule=rule, **folder)

    def killed(*arguments):
        raise KeyboardInterrupt

    whole = run()
    with monkeypatch.context() as patched:
        patched.setattr(RunFolder, "finish", killed)
        with pytest.raises(KeyboardInterrupt):
            run(out=tmp_path / "run")
    resumed = run(out=tmp_path / "run", resume=True)
    for name in ("ended", "rounds"):
        assert resumed.summary[name] == whole.summary[name]
    assert resumed.devices.column("round") == whole.devices.column("round")
    assert all(np.array_equal(resumed.params[name], whole.params[name]) for name in whole.params)
