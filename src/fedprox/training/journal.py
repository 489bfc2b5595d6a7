"""The records of a run in progress: its rows, its outcome so far, and the folder that keeps them.

A simulation and a federation of real devices keep the same journal, so that whatever reads one reads the other.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fedprox.config import Config
from fedprox.config.parts import build_part
from fedprox.core.errors import RunFolderError
from fedprox.core.machine import peak_memory
from fedprox.core.own_code import own_code
from fedprox.methods import Method
from fedprox.runs.checkpoint import Checkpoint
from fedprox.runs.device_store import Secure
from fedprox.runs.folder import RunFolder, read_history
from fedprox.runs.history import History
from fedprox.runs.replaced import Replaced, describe_part
from fedprox.runs.stopping import Outcome
from fedprox.training.state import State

__all__ = ["Journal", "StoppingRule"]

StoppingRule = Callable[[History], Any]
"""A function of the history so far that returns whether the run is to end."""


class Journal:
    """What has been recorded so far; without a folder it is kept in memory alone."""

    def __init__(
        self,
        config: Config,
        folder: RunFolder | None,
        started: float,
        replaced: Replaced | None = None,
        *,
        stopping_rule: StoppingRule | None = None,
        callbacks: Sequence[Any] = (),
        deployed: Mapping[str, Any] | None = None,
    ) -> None:
        self.folder = folder
        self._replaced, self._deployed = replaced or {}, deployed
        self.history, self.devices = History(), History()
        self._outcome = Outcome()
        self._config = config
        self._rule, self._has_ruled = stopping_rule, False
        self._rule_name = config.stop.rule if stopping_rule is None else str(describe_part(stopping_rule)["object"])
        if stopping_rule is None and config.stop.rule:
            self._rule = build_part("stopping", "stop.rule", config.stop)
        self._callbacks = [str(describe_part(callback)["object"]) for callback in callbacks]
        self._started = started

    @property
    def seconds(self) -> float:
        """The time since the start, without the pauses of a run that was resumed."""
        return time.perf_counter() - self._started

    def metrics(self, row: dict[str, Any]) -> None:
        """Record a measured round."""
        self._outcome.see(row["round"], _judged_loss(row))
        self.history.append(row)
        if self.folder is not None:
            self.folder.metrics(row)

    def round(self, row: dict[str, Any]) -> None:
        """Record which devices took part in a round, and how."""
        self.devices.append(row)
        if self.folder is not None:
            self.folder.devices(row)

    def reason_to_stop(self) -> str | None:
        """Return why the run is to end, if a rule of `[stop]` applies."""
        if self._config.stop.diverged and self._outcome.diverged_round is not None:
            return "diverged"
        if self._config.stop.converged and self._outcome.converged_round is not None:
            return "converged"
        if self._rule is None:
            return None
        with own_code("the stopping rule"):
            self._has_ruled = bool(self._rule(self.history))
        return "stopped" if self._has_ruled else None

    def save(self, state: State, more: Mapping[str, Any]) -> None:
        """Write a checkpoint; `more` are plain values besides the state's own."""
        if self.folder is not None:
            values = {**state.values(), "seconds": self.seconds, **more}
            self.folder.save(Checkpoint(state.round, state.tensors(), values))

    def go_back(self, state: State, method: Method, secure: Secure) -> Mapping[str, Any] | None:
        """Restore the folder's checkpoint and return its plain values; None where there is none.

        The folder is changed only once the checkpoint fits. From now on it has what devices remember; `secure` turns
        that into trees of arrays.
        """
        if self.folder is None:
            return None
        if (saved := self.folder.checkpoint) is None:
            state.devices = self.folder.open_devices(method.start_device(state.params), secure)
            return None
        try:
            state.go_back(saved.round, saved.tensors, saved.state, method)
            state.devices = self.folder.open_devices(method.start_device(state.params), secure)
            self._started -= float(saved.state["seconds"])
        except (KeyError, TypeError, ValueError) as error:
            reason = f"its checkpoint does not fit the run: {error}"
            raise RunFolderError(f"{self.folder.path} cannot be continued: {reason}") from None
        self.folder.begin()
        self.history = read_history(self.folder.path, "metrics")
        self.devices = read_history(self.folder.path, "devices")
        for row in self.history:
            self._outcome.see(row["round"], _judged_loss(row))
        return saved.state

    def summary(self, ended: str, round: int) -> dict[str, Any]:
        """Return the common first part of every summary."""
        last = self.history[-1]
        return {
            "ended": ended,
            "rounds": round,
            "converged_round": self._outcome.converged_round,
            "diverged_round": self._outcome.diverged_round,
            "exploded_round": self._outcome.exploded_round,
            "not_finite_since": self._outcome.not_finite_since,
            "result": {name: last[name] for name in ("round", "train_loss", "train_accuracy", "test_accuracy")},
            "seconds": self.seconds,
            "peak_memory_mb": peak_memory(),
            **({"stopping_rule": self._rule_name} if self._has_ruled else {}),
            **({"replaced": self._replaced} if self._replaced else {}),
            **({"callbacks": self._callbacks} if self._callbacks else {}),
            **({"deployed": dict(self._deployed)} if self._deployed else {}),
        }


def _judged_loss(row: Mapping[str, Any]) -> float | None:
    """Return the loss that decides whether a run has converged or diverged; reports of devices are trimmed for it."""
    loss: float | None = row.get("trimmed_loss", row["train_loss"])
    return loss
