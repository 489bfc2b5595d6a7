"""Several methods on one plan: the same devices, stragglers, epochs and mini-batch orders for all, seed by seed."""

from __future__ import annotations

import math
import re
import statistics
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fedprox.config import Config, MethodConfig, with_overrides
from fedprox.config.parts import is_builtin
from fedprox.config.recipes import load_settings
from fedprox.config.resolution import keys_of_section, takes_mu
from fedprox.core.errors import ConfigError, FedProxError, RunError, input_error, short
from fedprox.core.metric_columns import own_columns
from fedprox.experiments.given_objects import check_counts, check_job_continues, named_objects
from fedprox.experiments.scheduler import Ended, Event, Job
from fedprox.experiments.unfinished import run_unfinished
from fedprox.methods import Method
from fedprox.runs.curve_axis import SECONDS, WASTED, Axis, common_end, common_loss, first_at, value_at
from fedprox.runs.folder import check_empty, check_out, read_complete
from fedprox.runs.history import History
from fedprox.runs.summary_text import counted, percent

__all__ = [
    "Comparison",
    "Variant",
    "check_apart",
    "check_axis",
    "collect",
    "compare",
    "failure",
    "plan",
    "variant",
    "variants",
]


@dataclass(frozen=True)
class Variant:
    """One of the things compared: a label, and the settings and objects in which it differs from the plan."""

    label: str
    overrides: tuple[str, ...] = ()
    objects: Mapping[str, Any] = field(default_factory=dict)  # as `fedprox.train` takes them


@dataclass(frozen=True)
class Comparison:
    """The runs of a comparison, by variant, one history per seed."""

    histories: dict[str, list[History]]
    summaries: dict[str, list[dict[str, Any]]]

    def __repr__(self) -> str:
        """Return the variants with their final test accuracy, means over seeds, as text."""
        ends = ", ".join(f"{row['method']} {percent(row['test_accuracy'])}" for row in self.table())
        seeds = max((len(histories) for histories in self.histories.values()), default=0)
        return f"Comparison({counted(seeds, 'seed')}, test accuracy: {ends})"

    def table(self) -> list[dict[str, Any]]:
        """Return one row per variant: means over seeds of the final values, own metrics included, and outcomes."""
        rows = []
        for label, histories in self.histories.items():
            finals = [history[-1] for history in histories]
            row: dict[str, Any] = {"method": label, "seeds": len(finals)}
            for name in ("train_loss", "train_accuracy", "test_accuracy", *own_columns(finals)):
                values = [final.get(name) for final in finals]
                row[name], row[f"{name}_deviation"] = _mean_and_deviation(values)
            row["best_test_accuracy"], _ = _mean_and_deviation([_best(history) for history in histories])
            for outcome in ("diverged", "exploded"):
                rounds = [summary.get(f"{outcome}_round") for summary in self.summaries[label]]
                known = [round for round in rounds if round is not None]
                row[outcome], row[f"first_{outcome}_round"] = len(known), min(known, default=None)
            row["seconds"] = statistics.fmean(summary["seconds"] for summary in self.summaries[label])
            rows.append(row)
        return rows

    def along(self, axis: Axis) -> dict[str, Any]:
        """Return the variants at equal x, and where each first reaches a loss that all reach; means over seeds.

        `end` is where the shortest run ends, `loss` the lowest training loss that every run reaches (None if there is
        none); `rows` has for each variant `train_loss` and `test_accuracy` at `end`, and `reached`, the x at `loss`.
        """
        runs = [run for histories in self.histories.values() for run in histories]
        end, loss = common_end(runs, axis), common_loss(runs)
        rows = []
        for label, histories in self.histories.items():
            row: dict[str, Any] = {"method": label}
            for name in ("train_loss", "test_accuracy"):
                row[name], _ = _mean_and_deviation([value_at(run, axis, end, name) for run in histories])
            reached = None if loss is None else [first_at(run, axis, loss) for run in histories]
            row["reached"] = None if reached is None else _mean_and_deviation(reached)[0]
            rows.append(row)
        return {"x": axis.name, "end": end, "loss": loss, "rows": rows}

    def verdict(self) -> str:
        """Return in one sentence which variant ended best, and by how much; one that has diverged never does."""
        measure = "test_accuracy" if any(row["test_accuracy"] is not None for row in self.table()) else "train_loss"
        rows = [row for row in self.table() if row[measure] is not None]
        if not rows:
            return "No method ended with a finite loss."
        sign = -1 if measure == "test_accuracy" else 1
        rows.sort(key=lambda row: sign * float(row[measure]))
        best = next((row for row in rows if not row["diverged"] and not row["exploded"]), None)
        if best is None:
            return "Every method diverged or exploded, so none is best."
        if measure == "train_loss":
            words, form = "the lowest training loss", "{:.4f}"
        else:
            words, form = "the highest test accuracy", "{:.1%}"
        others = rows[rows.index(best) + 1 :]
        value = form.format(best[measure])
        sound = [row for row in others if not row["diverged"] and not row["exploded"]]
        tied = [row["method"] for row in sound if form.format(row[measure]) == value]
        if tied:
            return f"{', '.join([best['method'], *tied[:-1]])} and {tied[-1]} are tied at {words}, {value}."
        text = f"{best['method']} ends with {words}, {value}"
        if others and measure == "test_accuracy":
            ahead = ", ".join(
                f"{100 * (best[measure] - row[measure]):.1f} points ahead of {row['method']}" for row in others
            )
            text += f": {ahead}"
        return text + "."


def variant(text: str) -> Variant:
    """Read `name[:key=value,...]`: a method and its settings; keys with a dot reach any section.

    >>> variant("fedprox:mu=0.1,solver.epochs=5").overrides
    ('method.name=fedprox', 'method.mu=0.1', 'solver.epochs=5')
    >>> variant("mine:Half:strength=0.5").overrides
    ('method.name=mine:Half', 'method.strength=0.5')
    """
    name, _, settings = text.partition(":")
    word, _, rest = settings.partition(":")
    if not is_builtin("methods", name) and re.fullmatch(r"\w+(\.\w+)*", word):
        name, settings = f"{name}:{word}", rest
    overrides = [f"method.name={name}"]
    for setting in filter(None, settings.split(",")):
        key, equals, value = setting.partition("=")
        if not equals:
            raise ConfigError(f"a method must be given as name or name:key=value,...; got {text!r}")
        overrides.append(f"{key if '.' in key else 'method.' + key}={value}")
    label = name + (f" ({settings.replace(',', ', ')})" if settings else "")
    return Variant(label, tuple(overrides))


def variants(methods: Sequence[str | Method] | Mapping[str, str | Method]) -> list[Variant]:
    """Return what is compared: names as `variant` reads them, or methods as objects, with labels where a dict has them.

    >>> from fedprox.methods import fedavg
    >>> [each.label for each in variants({"plain": "fedprox:mu=0", "dropping": fedavg()})]
    ['plain', 'dropping']
    """
    if isinstance(methods, str) or not isinstance(methods, Iterable):
        raise ConfigError(f"`methods` must be a list of names and Method objects, or a dict; got {short(methods)}")
    labels = list(methods) if isinstance(methods, Mapping) else None
    if not all(isinstance(label, str) for label in labels or ()):
        raise ConfigError(f"`methods` must have text as labels; got {short(labels)}")
    chosen = []
    for index, method in enumerate(methods.values() if isinstance(methods, Mapping) else methods):
        if not isinstance(method, (str, Method, type)):  # a class is refused with the advice to make an object of it
            raise ConfigError(
                f"`methods` must hold names, such as 'fedprox:mu=0.1', or Method objects; got {short(method)}"
            )
        one = variant(method) if isinstance(method, str) else Variant(_name(method), objects={"method": method})
        chosen.append(one if labels is None else replace(one, label=labels[index]))
    if not chosen:
        raise ConfigError("`methods` must hold at least one method; got none")
    return chosen


def plan(
    settings: Mapping[str, Any],
    variants: Sequence[Variant],
    seeds: int,
    out: Path,
    objects: Mapping[str, Any] | None = None,
    *,
    resume: bool = False,
) -> list[Job]:
    """Return one job for each variant and seed; every config is checked before anything runs.

    `objects` are those of `fedprox.train`, for all runs. With `resume` the folder may hold runs of the same configs,
    which are continued; otherwise it must be empty.
    """
    if not resume:
        check_empty(out)
    jobs = []
    for chosen in variants:
        own = _config(settings, chosen)
        _warn_of_mu(settings.get("method", {}), chosen, own.method)
        for offset in range(seeds):
            config = own.model_copy(update={"seed": own.seed + offset})
            folder = out / _folder_name(chosen.label) / f"seed-{config.seed}"
            own_objects = {**(objects or {}), **chosen.objects}
            if resume:
                check_job_continues(folder, config, own_objects)
            jobs.append(Job(chosen.label, config, folder, resume=resume, objects=own_objects))
    check_apart(jobs)
    return jobs


def check_apart(jobs: Sequence[Job]) -> None:
    """Refuse jobs if two would write to the same folder."""
    owner: dict[Path, str] = {}
    for job in jobs:
        if job.out in owner:
            raise ConfigError(
                f"every run must have a folder of its own; {owner[job.out]} and {job.name} would share {job.out}"
            )
        owner[job.out] = job.name


def compare(
    config: Config | Mapping[str, Any] | str | Path,
    methods: Sequence[str | Method] | Mapping[str, str | Method],
    *,
    seeds: int = 1,
    out: str | Path,
    workers: int = 0,
    resume: bool = False,
    records: Path | None = None,
    on_event: Callable[[Event], None] = lambda event: None,
    **objects: Any,
) -> Comparison:
    """Run several methods on one plan, and write run folders to `out`.

    Args:
      config: the plan, as `fedprox.train` takes it.
      methods: names with settings, such as "fedprox:mu=0.1" or "mine:Half:strength=0.5", or `Method` objects; a dict
        gives them labels.
      seeds: how many seeds, from the plan's own on.
      out: the folder for the runs.
      workers: on how many cores (0: all).
      resume: whether complete runs in `out` are left alone and interrupted ones continue from their checkpoints.
      records: a folder with small records of finished runs, which count as done; what ends is added to it.
      on_event: called with the progress of every run.
      objects: `population`, `model`, `solver` and other objects, as `fedprox.train` takes them. Runs with objects run
        in this process, one after another; all others in their own processes.
    """
    check_counts(seeds=(seeds, 1), workers=(workers, 0))
    check_out(out, needed=True)
    jobs = plan(load_settings(config), variants(methods), seeds, Path(out), named_objects(objects), resume=resume)
    return collect(run_unfinished(jobs, workers=workers, on_event=on_event, root=Path(out), records=records))


def check_axis(settings: Mapping[str, Any], methods: Sequence[str], axis: Axis) -> None:
    """Refuse an axis that one of the runs does not have."""
    for text in methods if axis in (SECONDS, WASTED) else ():
        model = _config(settings, variant(text)).systems.model
        if model != "clock":
            raise ConfigError(
                f"`--x {axis.name}` must be used with systems.model = 'clock', which simulates time; "
                f"{text} has {model!r}"
            )


def collect(ended: Sequence[Ended]) -> Comparison:
    """Read the run folders of jobs that have ended."""
    failed = [end for end in ended if end.error is not None]
    if failed:
        raise failure(failed, len(ended))
    comparison = Comparison({}, {})
    for end in ended:
        comparison.histories.setdefault(end.job.name, []).append(read_complete(end.job.out))
        comparison.summaries.setdefault(end.job.name, []).append(end.summary or {})
    return comparison


def failure(failed: Sequence[Ended], count: int) -> FedProxError:
    """Return the error of `count` runs of which some failed: that of bad input where nothing else is to blame.

    If the input was wrong for every run, its error is enough.
    """
    first = failed[0]
    sentence = f"{len(failed)} of {count} runs failed; {first.job.out}: {first.error}"
    blamed = [input_error(end.kind, end.error or "") for end in failed]
    if blamed[0] is None or None in blamed:
        return RunError(sentence)
    return blamed[0] if len(failed) == count else type(blamed[0])(sentence)


def _config(settings: Mapping[str, Any], chosen: Variant) -> Config:
    if not chosen.overrides:
        return Config.from_dict(settings)
    shared = {**settings, "method": _inherited(settings.get("method", {}), chosen)}
    return Config.from_dict(with_overrides(shared, chosen.overrides))


def _inherited(method: Mapping[str, Any], chosen: Variant) -> dict[str, Any]:
    """Return the plan's method settings that a variant inherits: those it has, except mu, which it sets itself."""
    name = chosen.overrides[0].removeprefix("method.name=")
    known = {*keys_of_section("method", {"name": name}), *(MethodConfig.model_fields if takes_mu(name) else ())}
    return {key: value for key, value in method.items() if key in known - {"name", "mu"}}


def _warn_of_mu(plan: Mapping[str, Any], chosen: Variant, method: MethodConfig) -> None:
    """Warn that a variant of the plan's own method has another mu, which it did not state."""
    given = plan.get("mu", method.mu)
    is_stated = any(override.startswith("method.mu=") for override in chosen.overrides)
    if chosen.overrides and not is_stated and method.name == plan.get("name", "fedprox") and method.mu != given:
        warnings.warn(
            f"{chosen.label} runs with method.mu = {method.mu}, since each method of a comparison states its own; for "
            f"the {given} of the config write {method.name}:mu={given}",
            stacklevel=3,
        )


def _name(method: Method | type) -> str:
    return method.name if isinstance(method, Method) else method.__name__


def _best(history: History) -> float | None:
    """Return the highest test accuracy over the measured rounds."""
    return max((record["test_accuracy"] for record in history if record["test_accuracy"] is not None), default=None)


def _folder_name(label: str) -> str:
    return re.sub(r"[^A-Za-z0-9.=_-]+", "-", label).strip("-")


def _mean_and_deviation(values: Sequence[float | None]) -> tuple[float | None, float | None]:
    finite = [value for value in values if value is not None and math.isfinite(value)]
    if not finite or len(finite) < len(values):  # a mean over the runs that did not diverge would be biased
        return None, None
    return statistics.fmean(finite), statistics.stdev(finite) if len(finite) > 1 else None
