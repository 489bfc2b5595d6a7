"""The conformance suite passes a right update and says what is wrong with wrong ones."""

from __future__ import annotations

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from fedprox.cli import app
from fedprox.conformance import check, ours


def make_update(
    term=None,
    *,
    anchor="fixed",
    drop_last=False,
    divide_by_batch=False,
    in_place=False,
    embedding=False,
    momentum=0.0,
    rows_of=None,
):
    """Return a NumPy FedProx update in which one thing can be wrong.

    term(distances, mu, name) is the proximal gradient of a layer; anchor is fixed, epoch, step or lag;
    rows_of(generator, n, batch_size) are the rows of an epoch.
    """
    term = term or (lambda distance, mu, name: mu * distance[name])

    def gradient(params, x, y, count):
        inner = params["embedding"][x] if "embedding" in params else x @ params["first"]
        residual = (inner @ params["second"] - y) / count
        slopes = {"second": inner.T @ residual}
        if "embedding" in params:
            slopes["embedding"] = np.zeros_like(params["embedding"])
            np.add.at(slopes["embedding"], x, np.outer(residual, params["second"]))
        else:
            slopes["first"] = np.outer(x.T @ residual, params["second"])
        return slopes

    def update(params, x, y, *, mu, learning_rate, epochs, batch_size, seed):
        w = params if in_place else {name: array.copy() for name, array in params.items()}
        start = {name: array.copy() for name, array in params.items()}
        before = start
        velocity = {name: np.zeros_like(array) for name, array in params.items()}
        order = np.random.default_rng(seed)
        for _ in range(epochs):
            if anchor == "epoch":
                start = {name: array.copy() for name, array in w.items()}
            rows = order.permutation(len(y)) if rows_of is None else rows_of(order, len(y), batch_size)
            for begin in range(0, len(y), batch_size):
                batch = rows[begin : begin + batch_size]
                if drop_last and len(batch) < batch_size:
                    continue
                count = batch_size if divide_by_batch else len(batch)
                slopes = gradient(w, x[batch], y[batch], count)
                reference = {"step": w, "lag": before}.get(anchor, start)
                distance = {name: w[name] - reference[name] for name in w}
                before = {name: array.copy() for name, array in w.items()}
                for name in w:
                    velocity[name] = momentum * velocity[name] + slopes[name] + term(distance, mu, name)
                    w[name] -= learning_rate * velocity[name]
        return w

    if not embedding:
        return update

    def with_embedding(params, x, y, *, embedding=False, **settings):
        return update(params, x, y, **settings)

    return with_embedding


def messages(update):
    return {result.name: result.message for result in check(update) if not result.passed}


def norm(distance):
    return max(np.sqrt(sum(np.sum(array**2) for array in distance.values())), 1e-30)


def size(distance):
    return sum(array.size for array in distance.values())


def test_our_solver_passes_also_with_embeddings():
    results = check(ours)
    assert [result.message for result in results] == [""] * 10


@pytest.mark.parametrize("embedding", [False, True])
def test_a_plain_numpy_update_passes(embedding):
    assert messages(make_update(embedding=embedding)) == {}


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (make_update(lambda d, mu, name: -mu * d[name]), "wrong sign"),
        (make_update(lambda d, mu, name: mu / 2 * d[name] / norm(d)), "the square is missing"),
        (make_update(lambda d, mu, name: mu * d[name] / norm(d)), "the square is missing"),
        (
            make_update(lambda d, mu, name: mu / 2 * d[name] / max(np.linalg.norm(d[name]), 1e-30)),
            "the square is missing: the term is that of the norm ||w - w^t||, layer by layer",
        ),
        (make_update(lambda d, mu, name: 2 * mu * d[name]), "once per layer"),
        (make_update(lambda d, mu, name: (2 if name == "first" else 1) * mu * d[name]), "counted more than once"),
        (make_update(lambda d, mu, name: mu * d[name] / size(d)), "mean of the squares"),
        (make_update(lambda d, mu, name: mu * d[name] / d[name].size), "divided by each layer's size"),
        (make_update(lambda d, mu, name: mu / 2 * d[name]), "half as large"),
        (make_update(lambda d, mu, name: 0 * d[name]), "no proximal term after the first step"),
        (make_update(lambda d, mu, name: mu * d[name] * (name == "first")), "not treated alike"),
        (make_update(lambda d, mu, name: mu * np.abs(d[name])), "is not mu (w - w^t)"),
        (make_update(anchor="step"), "the anchor moves along with w"),
    ],
)
def test_a_wrong_proximal_term_is_named(wrong, said):
    found = messages(wrong)
    assert said in found["the proximal gradient is that of (mu/2) ||w - w^t||^2 by finite differences"]


@pytest.mark.parametrize(
    ("wrong", "name", "said"),
    [
        (
            make_update(anchor="epoch"),
            "the anchor stays w^t over steps and epochs",
            "every epoch starts from a new one",
        ),
        (make_update(anchor="lag"), "the anchor stays w^t over steps and epochs", "the model before the last step"),
        (make_update(anchor="step"), "the anchor stays w^t over steps and epochs", "that of mu = 0"),
        (
            make_update(lambda d, mu, name: (2 if name == "first" else 1) * mu * d[name]),
            "several layers are not counted twice",
            "layer 'first' is counted 2 times",
        ),
        (
            make_update(drop_last=True),
            "a short last mini-batch counts as a step and is averaged over its own size",
            "left out",
        ),
        (
            make_update(divide_by_batch=True),
            "a short last mini-batch counts as a step and is averaged over its own size",
            "averaged over its own size",
        ),
        (make_update(in_place=True), "the model that was sent is left as it was", "writes into the parameters"),
        (
            make_update(lambda d, mu, name: -mu * d[name]),
            "learning rate times mu = 1 lands on w^t minus one gradient step",
            "after the second step",
        ),
        (make_update(lambda d, mu, name: (mu + 0.1) * d[name]), "mu = 0 is plain SGD", "three steps of SGD"),
        (
            make_update(lambda d, mu, name: mu * (d[name] + 0.1)),
            "one epoch is one pass, and the first step does not depend on mu",
            "one step w^t",
        ),
    ],
)
def test_other_mistakes_are_named(wrong, name, said):
    assert said in messages(wrong)[name]


def test_only_the_anchor_check_fails_where_the_anchor_lags():
    assert list(messages(make_update(anchor="lag"))) == ["the anchor stays w^t over steps and epochs"]


def test_embeddings_that_lose_their_anchor_fail():
    def lost(distance, mu, name):
        return mu * distance[name] * (name != "embedding")

    found = messages(make_update(lost, embedding=True))
    assert "not treated alike" in found["sparse embeddings keep their anchor"]


def test_embedding_rows_outside_the_mini_batch_are_pulled_too():
    def lazy(params, x, y, *, mu, learning_rate, epochs, batch_size, seed, embedding=False):
        if not embedding:
            plain = make_update()
            settings = {"mu": mu, "learning_rate": learning_rate, "epochs": epochs, "batch_size": batch_size}
            return plain(params, x, y, seed=seed, **settings)
        w = {name: array.copy() for name, array in params.items()}
        for _ in range(epochs):
            for begin in range(0, len(y), batch_size):
                rows, target = x[begin : begin + batch_size], y[begin : begin + batch_size]
                residual = (w["embedding"][rows] @ w["second"] - target) / len(rows)
                slope = np.zeros_like(w["embedding"])
                np.add.at(slope, rows, np.outer(residual, w["second"]))
                touched = np.unique(rows)
                slope[touched] += mu * (w["embedding"][touched] - params["embedding"][touched])
                second = w["embedding"][rows].T @ residual + mu * (w["second"] - params["second"])
                w = {
                    "embedding": w["embedding"] - learning_rate * slope,
                    "second": w["second"] - learning_rate * second,
                }
        return w

    assert messages(lazy) == {
        "sparse embeddings keep their anchor": "rows of the embedding that are not in the mini-batch must be pulled "
        "back to w^t too"
    }


@pytest.mark.parametrize(
    ("update", "said"),
    [
        (lambda params, x, y, **settings: [1], "must return a dict with the arrays ['first', 'second']; got list"),
        (lambda params, x, y, **settings: {"first": params["first"]}, "got ['first']"),
        (lambda params, x, y, **settings: {n: a.T.ravel() for n, a in params.items()}, "must keep its shape (3, 4)"),
        (lambda params, x, y, **settings: {n: a * np.nan for n, a in params.items()}, "is not finite"),
        (lambda params, x, y: params, "it raised TypeError"),
    ],
)
def test_unusable_answers_are_said_plainly(update, said):
    results = check(update)
    assert all(said in result.message for result in results[:3])


def test_an_update_that_does_nothing_fails():
    found = messages(lambda params, x, y, **settings: params)
    assert "does not change the model" in found["several layers are not counted twice"]


def test_the_command_reports_and_exits(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "theirs.py").write_text(
        "def update(params, x, y, *, mu, learning_rate, epochs, batch_size, seed):\n    return params\nname = 1\n"
    )
    (tmp_path / "broken.py").write_text("1 / 0\n")
    runner = CliRunner()
    good = runner.invoke(app, ["conformance", "fedprox.conformance:ours", "--json"])
    assert good.exit_code == 0
    assert json.loads(good.stdout)["passed"] is True
    bad = runner.invoke(app, ["conformance", "theirs:update"])
    assert bad.exit_code == 1
    assert "FAILED  mu = 0 is plain SGD" in bad.stdout
    for name, said in (
        ("nothing", "must be named MODULE:FUNCTION"),
        ("no_such_module_at_all:f", "cannot be imported"),
        ("broken:f", "cannot be imported: ZeroDivisionError"),
        ("theirs:missing", "must have a function 'missing'; got NoneType"),
        ("theirs:name", "must have a function 'name'; got int"),
    ):
        refused = runner.invoke(app, ["conformance", name])
        assert refused.exit_code == 2
        assert said in refused.stderr


EVERY = "every sample is used once per epoch"


def test_an_update_on_the_first_mini_batch_alone_is_found():
    only_first = make_update(rows_of=lambda order, n, b: np.tile(np.arange(min(b, n)), -(-n // min(b, n)))[:n])
    found = messages(only_first)
    assert set(found) == {EVERY}
    rule, _, told = found[EVERY].partition(" are used ")
    assert rule == "every sample must be used once per epoch; 4 samples in mini-batches of 2"
    counts = [float(word) for word in told.removesuffix(" times").split(",")]
    np.testing.assert_allclose(counts, [2, 2, 0, 0], atol=0.02)


def test_samples_drawn_with_replacement_are_found():
    replaced = make_update(rows_of=lambda order, n, b: order.integers(0, n, n) if b < n else np.arange(n))
    assert set(messages(replaced)) == {EVERY}


@pytest.mark.parametrize("beta", [0.5, 0.9])
def test_plain_momentum_is_named(beta):
    found = messages(make_update(momentum=beta))
    named = f"the steps have momentum ({beta:.2g}), even with mu = 0; plain SGD keeps nothing of earlier steps"
    assert found["mu = 0 is plain SGD"] == named
    assert found["the proximal gradient is that of (mu/2) ||w - w^t||^2 by finite differences"] == named
    assert not any("alike" in message or "counted" in message for message in found.values())


def test_a_term_that_is_off_alike_in_every_layer_is_said_to_be():
    tripled = make_update(lambda distance, mu, name: 3 * mu * distance[name])
    found = messages(tripled)["the proximal gradient is that of (mu/2) ||w - w^t||^2 by finite differences"]
    assert found == "the proximal term is 3 times as large as it should be, in every layer"
