"""The columns of `metrics.jsonl`: the library's own, and the user's metrics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

__all__ = ["KNOWN_COLUMNS", "RESERVED_NAMES", "own_columns", "own_text", "own_values"]

KNOWN_COLUMNS = frozenset(
    {
        *("round", "train_loss", "train_accuracy", "test_accuracy", "gradient_variance", "dissimilarity"),
        *("gradient_variance_low", "gradient_variance_high", "dissimilarity_low", "dissimilarity_high"),
        *("gamma_mean", "gamma_max", "epsilon", "mu", "learning_rate", "bytes", "simulated_seconds"),
        *("wasted_seconds", "staleness_mean", "staleness_max"),
        *("seconds", "solve_seconds", "measure_seconds", "measured_devices", "trimmed_loss"),
    }
)
"""The columns that are the library's own."""

RESERVED_NAMES = KNOWN_COLUMNS | {
    *("method", "seeds", "stragglers", "best_test_accuracy"),
    *("diverged", "exploded", "first_diverged_round", "first_exploded_round"),
}
"""Names that a metric cannot have: those columns, and the others of a comparison's table."""


def own_columns(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the names of a user's metrics in rows of `metrics.jsonl`, in the order in which they first appear.

    >>> own_columns([{"round": 0, "f1": 0.5}, {"round": 1, "f1": None}])
    ['f1']
    """
    named = {name: isinstance(value, (int, float, type(None))) for row in rows for name, value in row.items()}
    return [name for name, is_number in named.items() if is_number and name not in KNOWN_COLUMNS]


def own_values(row: Mapping[str, Any]) -> dict[str, float]:
    """Return a user's metrics in the row of a comparison's table, where each stands beside its deviation.

    >>> own_values({"method": "fedavg", "train_loss": 0.5, "f1": 0.25, "f1_deviation": None})
    {'f1': 0.25}
    """
    return {name: row[name] for name in row if f"{name}_deviation" in row and name not in KNOWN_COLUMNS}


def own_text(row: Mapping[str, Any], separator: str = "  ") -> str:
    """Return a user's metrics in a row as text that follows other values; empty where there are none.

    >>> own_text({"round": 0, "f1": 0.5})
    '  f1 0.5'
    """
    known = {name: row[name] for name in own_columns([row])}
    return "".join(
        f"{separator}{name} {'none' if value is None else format(value, '.4g')}" for name, value in known.items()
    )
