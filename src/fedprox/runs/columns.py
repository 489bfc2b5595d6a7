"""The columns of a run folder: what a row of each file holds, and the check of a row.

Readers rely on these types: a row with a value of another type is refused with its line. Few columns are required, so
that records of other programs can be read; where a reader needs one that is not there, `columns_needed` names it.
Further columns are kept as they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any, NotRequired

from pydantic import TypeAdapter, ValidationError
from typing_extensions import TypedDict

from fedprox.core.errors import RunFolderError

__all__ = [
    "DevicesRow",
    "EvaluationRow",
    "MetricsRow",
    "RunResult",
    "RunSummary",
    "column_problem",
    "columns_needed",
    "device_lists",
]


class MetricsRow(TypedDict):
    """A row of metrics.jsonl: a measured round; round 0 is the initial model. None: not finite."""

    round: int
    train_loss: NotRequired[float | None]
    train_accuracy: NotRequired[float | None]
    test_accuracy: NotRequired[float | None]  # None without test data
    mu: NotRequired[float]
    seconds: NotRequired[float]  # wall-clock time since the start
    solve_seconds: NotRequired[float]
    measure_seconds: NotRequired[float]
    gradient_variance: NotRequired[float | None]
    dissimilarity: NotRequired[float | None]  # B
    gamma_mean: NotRequired[float | None]
    gamma_max: NotRequired[float | None]
    epsilon: NotRequired[float | None]
    bytes: NotRequired[int]
    simulated_seconds: NotRequired[float]
    personal_test_accuracy: NotRequired[float | None]  # of the devices' second models
    personal_validation_accuracy: NotRequired[float | None]


class DevicesRow(TypedDict):
    """A row of devices.jsonl: a round, with lists of equal length over the devices that took part."""

    round: int
    device: NotRequired[list[int]]
    solve_seconds: NotRequired[float]
    samples: NotRequired[list[int]]
    draws: NotRequired[list[int]]
    straggler: NotRequired[list[bool]]
    attacker: NotRequired[list[bool]]
    epochs: NotRequired[list[float]]  # given
    budget: NotRequired[list[int]]  # in mini-batch steps
    steps: NotRequired[list[int]]  # done
    kept: NotRequired[list[bool]]
    weight: NotRequired[list[float]]
    gamma: NotRequired[list[float | None]]
    failed: NotRequired[list[bool]]


class EvaluationRow(TypedDict):
    """A row of evaluation.jsonl: a device and the final model."""

    device: int
    name: NotRequired[str]
    train_samples: NotRequired[int]
    train_loss: NotRequired[float | None]
    train_accuracy: NotRequired[float | None]
    test_samples: NotRequired[int]
    test_loss: NotRequired[float | None]
    test_accuracy: NotRequired[float | None]
    personal_train_loss: NotRequired[float | None]  # of the device's second model
    personal_train_accuracy: NotRequired[float | None]
    personal_test_loss: NotRequired[float | None]
    personal_test_accuracy: NotRequired[float | None]


class RunResult(TypedDict):
    """The last measured round, in a summary."""

    round: int
    train_loss: float | None
    train_accuracy: float | None
    test_accuracy: float | None


class RunSummary(TypedDict):
    """summary.json: the outcome of a run that has ended."""

    ended: str  # finished, converged, diverged, stopped or interrupted
    stopping_rule: NotRequired[str]  # the own rule that has ended it, if one has
    rounds: NotRequired[int]
    converged_round: NotRequired[int | None]
    diverged_round: NotRequired[int | None]
    exploded_round: NotRequired[int | None]
    not_finite_since: NotRequired[int | None]
    result: NotRequired[RunResult]
    seconds: NotRequired[float]
    compile_seconds: NotRequired[float]
    peak_memory_mb: NotRequired[float]
    bytes: NotRequired[int]
    simulated_seconds: NotRequired[float]
    workers: NotRequired[int]
    devices: NotRequired[int]
    train_samples: NotRequired[int]
    own_models: NotRequired[bool]  # whether devices have models of their own
    personal_models: NotRequired[bool]  # whether devices have second models, beside the one that all share
    versions: NotRequired[dict[str, str]]
    replaced: NotRequired[dict[str, dict[str, Any]]]
    callbacks: NotRequired[list[str]]
    deployed: NotRequired[dict[str, Any]]  # of a run on real devices: its model, and the samples of each device


_KINDS: dict[str, type] = {
    "metrics": MetricsRow,
    "devices": DevicesRow,
    "evaluation": EvaluationRow,
    "summary": RunSummary,
}
_MOST_ROUNDS = 2**53  # what a number of JSON holds exactly


def column_problem(kind: str, row: Mapping[str, Any]) -> str | None:
    """Return what is wrong with a row of a file (metrics, devices, evaluation or summary), or None.

    >>> column_problem("metrics", {"round": 0, "train_loss": "low"})
    "`train_loss` must be a number; got 'low'"
    >>> column_problem("devices", {"round": 1, "device": [4], "kept": [True, False]})
    '`kept` must be as long as `device`, 1; got 2'
    """
    try:
        _adapter(kind).validate_python(row, strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(map(str, first["loc"][:2]))
        if first["type"] == "missing":
            return f"`{name}` is missing"
        rule = "a number" if "float" in first["type"] else str(first["msg"]).removeprefix("Input should be ")
        return f"`{name}` must be {rule}; got {str(first['input'])[:40]!r}"
    round = row.get("round", row.get("rounds", 0))
    if not 0 <= round <= _MOST_ROUNDS:
        return f"`round` must be an integer >= 0; got {round}"
    if kind == "devices":
        lists = device_lists(row)
        for name, values in lists.items():
            other = next(iter(lists))
            if len(values) != len(lists[other]):
                return f"`{name}` must be as long as `{other}`, {len(lists[other])}; got {len(values)}"
    return None


def device_lists(row: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Return the columns of a row of devices.jsonl that have an entry for each of its devices.

    >>> device_lists({"round": 1, "device": [4], "repeated": [{"4": "no answer"}, {"4": "no answer"}]})
    {'device': [4]}
    """
    return {name: values for name, values in row.items() if isinstance(values, list) and name != "repeated"}


@contextmanager
def columns_needed(path: object) -> Iterator[None]:
    """Turn a missing column of the records in `path` into a one-sentence error."""
    try:
        yield
    except KeyError as error:
        raise RunFolderError(f"{path} has records without {error}, so they cannot be shown") from None


@cache
def _adapter(kind: str) -> TypeAdapter[Any]:
    return TypeAdapter(_KINDS[kind])
