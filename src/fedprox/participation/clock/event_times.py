"""The clock's part in the plan of a round whose replies were merged as they arrived."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedprox.participation.clock.timeline import Instant

__all__ = ["EventTimes"]


@dataclass(frozen=True)
class EventTimes:
    """When the devices of a round worked; arrays in the order of the round's list."""

    instant: Instant
    staleness: NDArray[np.int64]  # how many versions were made since the device was asked
    deadline: float | None  # seconds that bound one device's work
    mixing: float | None = None  # how far one reply moved the model; None: all the way

    def seconds(self, steps: list[int], kept: NDArray[np.bool_]) -> NDArray[np.float64]:
        """Return how long each device worked, until its reply arrived or the server stopped waiting."""
        return np.array([job.seconds for job in self.instant.ended], np.float64)

    def end(self, seconds: NDArray[np.float64], all_replied: bool) -> float:
        """Return the simulated time at which the model moved."""
        return self.instant.time

    def record(self) -> dict[str, Any]:
        """Return the values for `devices.jsonl`: of the round, and of each device."""
        ended = self.instant.ended
        return {
            "start": self.instant.started,
            "deadline": self.deadline,
            "away": self.instant.away,
            **({} if self.mixing is None else {"mixing": self.mixing}),
            "class": [job.kind for job in ended],
            "samples_per_second": [job.samples_per_second for job in ended],
            "asked_at": [job.asked_at for job in ended],
            "version": [job.version for job in ended],
            "staleness": self.staleness.tolist(),
        }
