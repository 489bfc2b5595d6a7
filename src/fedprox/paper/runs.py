"""The runs behind the figures: one folder per resolved config, run when missing, shared by all figures that need it.

A run folder is named after its data set and a hash of the settings that are not at their defaults. The hash does not
depend on code, figures, engine or the folder's location, so a run is found again after any of those have changed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from fedprox import data
from fedprox.config import CheckpointConfig, Config
from fedprox.config.recipes import load_settings
from fedprox.config.resolution import PLACES, keys_of_section
from fedprox.experiments.compare import failure
from fedprox.experiments.scheduler import Ended, Event, Job, run_jobs
from fedprox.paper.experiments import Curve
from fedprox.paper.protocol import DATASETS
from fedprox.paper.reduced import STAND_IN_MODEL, reduced_folder, write_reduced
from fedprox.paper.scales import Cost, Scale
from fedprox.runs.folder import read_summary
from fedprox.runs.records import check_record, keep_record

__all__ = [
    "Setting",
    "build_config",
    "build_jobs",
    "config_hash",
    "expected_seconds",
    "finished_folder",
    "run_missing",
]

_NOT_THE_RUN = ("engine", "checkpoint")  # what does not change a result
_SECONDS_AT_RISK = 60  # of the work since the last checkpoint, about


@dataclass(frozen=True)
class Setting:
    """Where and how large the experiments are.

    Attributes:
      out: the folder of the experiments.
      scale: their size.
      seeds: the seeds of each curve, if not those of the scale.
      records: a folder with the small records of finished runs, which count as done where `out` lacks them.
    """

    out: Path
    scale: Scale
    seeds: int | None = None
    records: Path | None = None

    def seeds_for(self, dataset: str) -> range:
        """Return the seeds of each curve on a data set."""
        return range(self.seeds or self.scale.of(dataset).seeds)


def build_config(curve: Curve, seed: int, setting: Setting) -> Config:
    """Return the complete config of one run behind a curve.

    Without stragglers FedAvg drops no device and is FedProx with mu = 0, bit for bit, so that one run serves both.
    """
    dataset, reduction = DATASETS[curve.dataset], setting.scale.of(curve.dataset)
    recipe = _recipe(curve.dataset)
    is_fedprox = curve.method == "fedavg" and curve.stragglers == 0
    method: dict[str, Any] = {"name": "fedprox", "mu": 0.0} if is_fedprox else {"name": curve.method}
    if curve.mu is not None:
        method["mu"] = curve.mu
    if curve.mu == "adaptive":
        method["mu_initial"] = dataset.adversarial_mu
    source, model = dict(recipe["data"]), ""
    if reduction.subset is not None or reduction.is_stand_in:
        paper_model = data.paper_model(Config.from_dict({"data": source}).data)
        model = STAND_IN_MODEL if reduction.is_stand_in else paper_model
        folder = reduced_folder(setting.out, curve.dataset, setting.scale.name)
        source = {"name": "population", "path": str(folder)}
    shows_gradients = curve.stragglers == 0 and curve.epochs == 20
    return Config.from_dict(
        {
            "seed": seed,
            "rounds": reduction.rounds or recipe["rounds"],
            "data": source,
            "model": {"name": model},
            "method": method,
            "solver": {**recipe["solver"], "epochs": curve.epochs},
            "devices": {
                "per_round": curve.per_round,
                "sampling": curve.sampling,
                "stragglers": curve.stragglers,
            },
            "measure": {
                "every": reduction.every,
                "devices": reduction.measured,
                "dissimilarity": shows_gradients or not dataset.has_costly_gradients,
            },
            "checkpoint": {"every": _checkpoint_every(reduction.cost)},
        }
    )


def _checkpoint_every(cost: Cost) -> int:
    """Return after how many rounds to save the state: fewer than the default where rounds are long."""
    return max(1, min(CheckpointConfig().every, int(_SECONDS_AT_RISK / cost.solve)))


def config_hash(config: Config) -> str:
    """Return twelve hex digits that identify what a config computes.

    Settings at their defaults are left out, also those of the parts that a config names, so that a setting added later
    changes no hash.

    >>> config_hash(Config()) == config_hash(Config.from_dict({"rounds": 200, "engine": {"workers": 2}}))
    True
    """
    settings = config.to_dict()
    differing = _differing(settings, _defaults(config.method.name))
    kept = {key: _without_defaults(key, value, settings) for key, value in differing.items() if key not in _NOT_THE_RUN}
    kept["method"] = {"name": config.method.name, **kept.get("method", {})}
    if config.data.path:
        kept["data"]["path"] = Path(config.data.path).name
    text = json.dumps(kept, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def build_jobs(curves: Iterable[Curve], setting: Setting) -> list[Job]:
    """Return one job for each distinct run behind the curves, finished or not.

    Cheap data sets come first; the runs of one stand together, so that compiled programs are used again, and the long
    ones come first, so that no core waits for another at the end.
    """
    jobs: dict[Path, Job] = {}
    for curve in curves:
        for seed in setting.seeds_for(curve.dataset):
            config = build_config(curve, seed, setting)
            folder = _folder(curve.dataset, config, setting)
            jobs.setdefault(folder, Job(curve.dataset, config, folder, resume=True))
    return sorted(
        jobs.values(), key=lambda job: (list(DATASETS).index(job.name), -expected_seconds(job, setting.scale))
    )


def run_missing(
    curves: Sequence[Curve],
    setting: Setting,
    *,
    workers: int = 0,
    on_start: Callable[[Sequence[Job], int], None] = lambda todo, done: None,
    on_event: Callable[[Event], None] = lambda event: None,
) -> int:
    """Run what is missing behind the curves and return how many runs that were.

    Args:
      on_start: called once, with the jobs that are to be run and how many were finished before.
      on_event: called with the progress of each.
    """
    jobs = build_jobs(curves, setting)
    todo = [job for job in jobs if finished_folder(job, setting) is None]
    for dataset in dict.fromkeys(job.name for job in todo):
        reduction = setting.scale.of(dataset)
        write_reduced(dataset, reduction, reduced_folder(setting.out, dataset, setting.scale.name))
        data.load(next(job.config for job in todo if job.name == dataset))  # what is missing is said before any run
    on_start(todo, len(jobs) - len(todo))

    def keep(ended: Ended) -> None:
        if setting.records is not None and finished_folder(ended.job, setting) is not None:
            keep_record(ended.job.out, setting.records / ended.job.out.name)

    ended = run_jobs(todo, workers=workers, on_event=on_event, on_end=keep)
    failed = [end for end in ended if end.error is not None]
    if failed:
        raise failure(failed, len(todo))
    return len(todo)


def expected_seconds(job: Job, scale: Scale) -> float:
    """Return about how long a run takes on one core, from the seconds measured for its data set.

    Stragglers do (E + 1) / 2 of E epochs on average, and FedAvg drops them; FedDANE asks for gradients as well.
    """
    config, cost = job.config, scale.of(job.name).cost
    share = config.devices.stragglers
    epochs = config.solver.epochs
    work = 1 - share if config.method.name == "fedavg" else 1 - share / 2
    work *= config.devices.per_round / 10 * epochs / 20
    if config.method.name == "feddane":
        work *= 1 + 1 / epochs
    measure = cost.gradients if config.measure.dissimilarity else cost.measure
    return config.rounds * (cost.solve * work + measure / config.measure.every)


def finished_folder(job: Job, setting: Setting) -> Path | None:
    """Return the folder of a run that has taken all its rounds, or that of its record; None while there is neither."""
    folders = [job.out, *([setting.records / job.out.name] if setting.records else [])]
    for folder in folders:
        summary = read_summary(folder)
        if summary is not None and summary.get("rounds", 0) >= job.config.rounds:
            if folder != job.out:
                check_record(folder)
            return folder
    return None


@cache
def _recipe(dataset: str) -> Mapping[str, Any]:
    return MappingProxyType(load_settings(dataset))


@cache
def _defaults(method: str) -> Mapping[str, Any]:
    return MappingProxyType(Config.from_dict({"method": {"name": method}}).to_dict())


def _without_defaults(section: str, differing: Any, settings: Mapping[str, Any]) -> Any:
    """Return a section without the settings that a part adds to it, where they are at the part's defaults."""
    if section not in {place.section for place in PLACES} or section == "method":  # whose defaults are left out before
        return differing
    plain, keys = Config().to_dict()[section], keys_of_section(section, settings[section])
    added = {name: key.default for name, key in keys.items() if name not in plain}
    return {name: value for name, value in differing.items() if name not in added or value != added[name]}


def _folder(dataset: str, config: Config, setting: Setting) -> Path:
    return setting.out / "runs" / f"{dataset}-{config_hash(config)}"


def _differing(settings: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in settings.items():
        if isinstance(value, Mapping) and isinstance(defaults.get(key), Mapping):
            if inner := _differing(value, defaults[key]):
                found[key] = inner
        elif value != defaults.get(key):
            found[key] = value
    return found
