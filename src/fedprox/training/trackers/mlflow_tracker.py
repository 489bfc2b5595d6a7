"""MLflow: a store of files beside the run folder (`mlruns`), or the one that MLFLOW_TRACKING_URI names."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mlflow.entities import Metric, Param, RunTag
from mlflow.tracking import MlflowClient

from fedprox.config import Config
from fedprox.runs.seed_groups import flat_settings
from fedprox.training.result import Progress
from fedprox.training.trackers import numbers

__all__ = ["MlflowTracker", "tracker"]

_EXPERIMENT = "fedprox"
_FOLDER = "fedprox.folder"
_STATUS = {"stopped": "KILLED", "interrupted": "KILLED", "failed": "FAILED"}


def tracker(folder: Path, config: Config) -> MlflowTracker:
    """Return the tracker for the run in `folder`."""
    address = os.environ.get("MLFLOW_TRACKING_URI") or (folder.parent.resolve() / "mlruns").as_uri()
    if address.startswith("file:"):
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # MLflow supports plain folders only on request
    return MlflowTracker(address, folder, config)


class MlflowTracker:
    """Writes the config as parameters and each number of a round as a metric; a resumed run continues its record."""

    def __init__(self, address: str, folder: Path, config: Config) -> None:
        self._address = address
        self._folder = folder.resolve()
        self._config = config
        self._client: MlflowClient | None = None
        self._run = ""

    def __call__(self, progress: Progress) -> None:
        """Write the metrics of a round that was measured."""
        if self._client is None:
            self._client = MlflowClient(self._address)
            self._run = self._find_or_create(self._client)
        if progress.metrics is not None:
            now = int(1000 * time.time())
            metrics = [Metric(name, value, now, progress.round) for name, value in numbers(progress.metrics).items()]
            self._client.log_batch(self._run, metrics=metrics)

    def close(self, summary: Mapping[str, Any]) -> None:
        """Record how the run ended."""
        if self._client is not None:
            self._client.set_tag(self._run, "fedprox.ended", summary["ended"])
            self._client.set_terminated(self._run, _STATUS.get(summary["ended"], "FINISHED"))

    def _find_or_create(self, client: MlflowClient) -> str:
        known = client.get_experiment_by_name(_EXPERIMENT)
        experiment = known.experiment_id if known is not None else client.create_experiment(_EXPERIMENT)
        for run in client.search_runs([experiment]):
            if run.data.tags.get(_FOLDER) == str(self._folder):
                client.set_terminated(run.info.run_id, "RUNNING")
                return str(run.info.run_id)
        run = client.create_run(experiment, run_name=self._folder.name)
        params = [Param(key, str(value)) for key, value in flat_settings(self._config).items()]
        client.log_batch(run.info.run_id, params=params, tags=[RunTag(_FOLDER, str(self._folder))])
        return str(run.info.run_id)
