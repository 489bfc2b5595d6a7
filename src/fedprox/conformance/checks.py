"""Does a local update solve the FedProx subproblem? Known problems, and what must come out of them.

The update is any function

    f(params: dict[str, ndarray], x, y, *, mu, learning_rate, epochs, batch_size, seed) -> dict[str, ndarray]

that starts from w^t = `params` and takes `epochs` epochs of mini-batch SGD on h(w; w^t) = F(w) + (mu/2) ||w - w^t||^2,
ceil(n / batch_size) steps each, for the two-layer linear model of `fedprox.conformance.problem`. If it has a further
keyword `embedding`, it is also called with embedding=True on the problem with sparse embeddings.

Two steps at least are needed: the term is zero at the anchor.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedprox.conformance.diagnosis import CLOSE, diagnose, difference
from fedprox.conformance.problem import Params, Problem, embedding_problem, layers_problem
from fedprox.conformance.sample_use import BATCH, SAMPLES, ends_at_a_division, uses

__all__ = ["Check", "check"]

Update = Callable[..., Any]

_MU, _RATE = 2.0, 0.05


@dataclass(frozen=True)
class Check:
    """The outcome of one check; `message` says what is wrong, and is empty where nothing is."""

    name: str
    message: str

    @property
    def passed(self) -> bool:
        """Whether nothing is wrong."""
        return not self.message


def check(update: Update) -> list[Check]:
    """Run all checks on a local update.

    >>> from fedprox.conformance import ours
    >>> all(result.passed for result in check(ours))
    True
    """
    checks: list[tuple[str, Callable[[Update], str]]] = [
        ("mu = 0 is plain SGD", _plain),
        ("one epoch is one pass, and the first step does not depend on mu", _first_step),
        ("the proximal gradient is that of (mu/2) ||w - w^t||^2 by finite differences", _proximal_gradient),
        ("several layers are not counted twice", _layers),
        ("the anchor stays w^t over steps and epochs", _anchor),
        ("learning rate times mu = 1 lands on w^t minus one gradient step", _landing),
        ("a short last mini-batch counts as a step and is averaged over its own size", _minibatches),
        ("every sample is used once per epoch", _every_sample),
        ("the model that was sent is left as it was", _input_untouched),
    ]
    if _takes_embedding(update):
        checks.append(("sparse embeddings keep their anchor", _embedding))
    return [Check(name, _tried(one, update)) for name, one in checks]


class _UnusableError(Exception):
    """An answer that cannot be compared with anything."""


def _tried(one: Callable[[Update], str], update: Update) -> str:
    try:
        return one(update)
    except _UnusableError as error:
        return str(error)
    except Exception as error:  # any exception of the function is the outcome of the check
        return f"it raised {type(error).__name__}: {error}"


def _plain(update: Update) -> str:
    problem = layers_problem()
    answer = _call(update, problem, mu=0.0, epochs=3)
    if not (message := _off(problem, answer, problem.steps(3, 0.0, _RATE), "three steps of SGD")):
        return ""
    return _momentum(update, problem) or message


def _first_step(update: Update) -> str:
    problem = layers_problem()
    expected = problem.steps(1, 0.0, _RATE)
    return _off(problem, _call(update, problem, epochs=1), expected, "one step w^t - eta grad F(w^t)")


def _proximal_gradient(update: Update) -> str:
    problem = layers_problem()
    term, distance = _term(update, problem)
    if not (message := diagnose(term, distance, _MU)):
        return ""
    return _momentum(update, problem) or message


def _momentum(update: Update, problem: Problem) -> str:
    """Name momentum: with mu = 0 the second step then adds beta times the first, which is -(beta / eta) (w - w^t)."""
    term, distance = _term(update, problem, mu=0.0)
    along = sum(float(np.sum(term[name] * distance[name])) for name in distance)
    beta = -_RATE * along / sum(float(np.sum(distance[name] ** 2)) for name in distance)
    expected = {name: -beta / _RATE * distance[name] for name in distance}
    if CLOSE < beta < 1 and difference(term, expected, expected) < CLOSE:
        return f"the steps have momentum ({beta:.2g}), even with mu = 0; plain SGD keeps nothing of earlier steps"
    return ""


def _layers(update: Update) -> str:
    if _momentum(update, layers_problem()):
        return ""  # reported by another check
    term, distance = _term(update, layers_problem())
    for name, array in distance.items():
        times = float(np.sum(term[name] * array) / (_MU * np.sum(array**2)))
        if abs(times) > 1 + CLOSE and abs(times - round(times)) < CLOSE:
            return f"layer {name!r} is counted {abs(round(times))} times"
    return ""


def _anchor(update: Update) -> str:
    problem = layers_problem(samples=4, equal=True)  # two steps per epoch, all with the same gradient of F
    answer = _call(update, problem, epochs=2, batch_size=2)
    if not (message := _off(problem, answer, problem.steps(4, _MU, _RATE), "four steps with the anchor w^t")):
        return ""
    half = _call(update, problem, epochs=1, batch_size=2)
    again = Problem(half, problem.x, problem.y, problem.predict)
    wrong = {
        "the anchor moves: every epoch starts from a new one": again.steps(2, _MU, _RATE),
        "the anchor moves along with w, or mu is not used: the result is that of mu = 0": problem.steps(4, 0.0, _RATE),
        "the anchor moves: every step uses the model before the last step": _lagging(problem),
    }
    for sentence, result in wrong.items():
        if not _off(problem, answer, result, ""):
            return sentence
    return message


def _landing(update: Update) -> str:
    problem, mu = layers_problem(), 1 / _RATE
    slopes = problem.gradient(problem.steps(1, mu, _RATE), 0.0)
    expected = {name: array - _RATE * slopes[name] for name, array in problem.params.items()}
    return _off(problem, _call(update, problem, mu=mu, epochs=2), expected, "w^t - eta grad F(w) after the second step")


def _minibatches(update: Update) -> str:
    problem = layers_problem(samples=5, equal=True)
    rate = _RATE / 10  # so slow that all three steps are about as long
    answer = _call(update, problem, mu=0.0, epochs=1, batch_size=2, learning_rate=rate)
    before, after = (problem.steps(count, 0.0, rate) for count in (2, 3))
    if not (message := _off(problem, answer, after, "three steps for five samples in twos")):
        return ""
    if not _off(problem, answer, before, ""):
        return "the short last mini-batch is left out: five samples in mini-batches of two are three steps"
    halved = {name: (before[name] + after[name]) / 2 for name in before}
    if not _off(problem, answer, halved, ""):
        return "the short last mini-batch must be averaged over its own size, not over batch_size"
    return message


def _every_sample(update: Update) -> str:
    problem = layers_problem(samples=SAMPLES, features=SAMPLES + 1)  # so that their gradients are independent
    for epochs in (1, 2):
        answer = _call(update, problem, mu=0.0, epochs=epochs, batch_size=BATCH)
        if not ends_at_a_division(problem, answer, _RATE, epochs):
            break
    else:
        return ""
    if momentum := _momentum(update, layers_problem()):
        return momentum
    counts = uses(problem, lambda rate: _call(update, problem, mu=0.0, epochs=1, batch_size=BATCH, learning_rate=rate))
    if all(abs(count - 1) < 0.05 for count in counts):
        return f"no division of {SAMPLES} distinct samples into mini-batches of {BATCH} leads to the result"
    told = ", ".join(f"{count:.2g}" for count in counts)
    rule = "every sample must be used once per epoch"
    return f"{rule}; {SAMPLES} samples in mini-batches of {BATCH} are used {told} times"


def _input_untouched(update: Update) -> str:
    problem = layers_problem()
    given = {name: array.copy() for name, array in problem.params.items()}
    _call(update, problem, epochs=2, given=given)
    changed = [name for name, array in given.items() if not np.array_equal(array, problem.params[name])]
    return (
        f"it writes into the parameters that it was given ({changed[0]!r}), so that the anchor moves" if changed else ""
    )


def _embedding(update: Update) -> str:
    problem = embedding_problem()
    if message := diagnose(*_term(update, problem, embedding=True), _MU):
        return message
    answer = _call(update, problem, epochs=4, embedding=True)
    if message := _off(problem, answer, problem.steps(4, _MU, _RATE), "four steps with the anchor w^t"):
        return message
    # Two samples one at a time: at the second step the row of the first is not in the mini-batch, but has moved.
    two = Problem(problem.params, problem.x[:2], problem.y[:2], problem.predict)
    answer = _call(update, two, epochs=1, batch_size=1, embedding=True)
    if all(_off(two, answer, _one_by_one(two, order), "") for order in ((0, 1), (1, 0))):
        return "rows of the embedding that are not in the mini-batch must be pulled back to w^t too"
    return ""


def _one_by_one(problem: Problem, order: tuple[int, ...]) -> Params:
    """Return one step per sample, in the given order."""
    params = problem.params
    for row in order:
        sample = Problem(problem.params, problem.x[[row]], problem.y[[row]], problem.predict)
        params = sample.step(params, _MU, _RATE)
    return params


def _lagging(problem: Problem) -> Params:
    """Return four steps that take the model before the last step for the anchor."""
    before = params = problem.params
    for _ in range(4):
        anchored = Problem(before, problem.x, problem.y, problem.predict)
        before, params = params, anchored.step(params, _MU, _RATE)
    return params


def _term(update: Update, problem: Problem, mu: float = _MU, **more: Any) -> tuple[Params, Params]:
    """Return the proximal term of the second step, and w - w^t there."""
    one, two = (_call(update, problem, epochs=epochs, mu=mu, **more) for epochs in (1, 2))
    slopes = problem.gradient(one, 0.0)
    term = {name: (one[name] - two[name]) / _RATE - slopes[name] for name in one}
    distance = {name: one[name] - problem.params[name] for name in one}
    if not any(array.any() for array in distance.values()):
        raise _UnusableError("one epoch does not change the model")
    return term, distance


def _call(
    update: Update,
    problem: Problem,
    *,
    epochs: int,
    mu: float = _MU,
    learning_rate: float = _RATE,
    batch_size: int | None = None,
    given: Params | None = None,
    **more: Any,
) -> Params:
    """Return the update's result in double precision; raises an error if it cannot be used."""
    params = given or {name: array.copy() for name, array in problem.params.items()}
    size = len(problem.y) if batch_size is None else batch_size
    settings = {"mu": mu, "learning_rate": learning_rate, "epochs": epochs, "batch_size": size, "seed": 0, **more}
    answer = update(params, problem.x.copy(), problem.y.copy(), **settings)
    if not isinstance(answer, dict) or set(answer) != set(problem.params):
        told = sorted(answer) if isinstance(answer, dict) else type(answer).__name__
        raise _UnusableError(f"it must return a dict with the arrays {sorted(problem.params)}; got {told}")
    result = {name: np.asarray(answer[name], np.float64) for name in problem.params}
    for name, array in result.items():
        if array.shape != problem.params[name].shape:
            raise _UnusableError(f"{name!r} must keep its shape {problem.params[name].shape}; got {array.shape}")
        if not np.isfinite(array).all():
            raise _UnusableError(
                f"{name!r} is not finite after {epochs} epochs with mu = {mu:g}; a norm without its square has no "
                "gradient at w^t"
            )
    return result


def _off(problem: Problem, answer: Params, expected: Params, what: str) -> str:
    """Return by which share of its length the result misses the expected one; empty if it does not."""
    way = {name: expected[name] - problem.params[name] for name in expected}
    apart = difference(answer, expected, way)
    return "" if apart < CLOSE else f"the result is off {what} by {100 * apart:.2g}% of the way moved"


def _takes_embedding(update: Update) -> bool:
    try:
        return "embedding" in inspect.signature(update).parameters
    except (TypeError, ValueError):
        return False
