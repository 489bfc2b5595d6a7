"""What a run tells while it is under way, and what it gives in the end."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from fedprox.core.trees import Tree
from fedprox.runs.history import History

__all__ = ["Callback", "Progress", "Result"]


@dataclass(frozen=True)
class Progress:
    """What a callback is told after every round, and once for the initial model (round 0)."""

    round: int
    rounds: int
    metrics: Mapping[str, Any] | None  # None where the round was not measured
    devices: Mapping[str, Any] | None  # None for round 0
    params: Tree


Callback = Callable[[Progress], bool | None]
"""Called after every round; returning True ends the run there."""


@dataclass(frozen=True)
class Result:
    """What a run gives.

    Attributes:
      history: one row per measured round (`history.to_pandas()`, `history.to_polars()`).
      devices: one row per round: who took part, and how.
      params: the final parameters.
      summary: the outcome in a few values.
    """

    history: History
    devices: History
    params: Tree
    summary: dict[str, Any]

    def _repr_html_(self) -> str:
        from fedprox.runs.notebook_view import run_html

        return run_html(self.history, self.summary)
