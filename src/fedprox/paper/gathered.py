"""The numbers by which the claims are judged, kept beside the figures as `claims.json`.

So a data set can be run again, or at another scale, and the claims judged again without the runs of the others, whose
numbers are taken from the file.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from fedprox.core.errors import ConfigError
from fedprox.core.files import write_atomically
from fedprox.core.reading import reading
from fedprox.paper.claims import CLAIMS
from fedprox.paper.evidence import Evidence
from fedprox.paper.experiments import EXPERIMENTS, Curve
from fedprox.paper.headline import Ending, Improvement
from fedprox.paper.intervals import Interval
from fedprox.paper.protocol import DATASETS, SYNTHETIC
from fedprox.paper.results import Histories, Results
from fedprox.paper.scales import SCALES
from fedprox.paper.sources import Source, collect_sources, read_record, read_sources, source_records
from fedprox.paper.verdicts import NOT_TESTED, Divergence, Found, Item, Judgement
from fedprox.runs.history import History

__all__ = ["CLAIMS_FILE", "Gathered", "check_replaced", "gather_all", "judge_all", "read_gathered", "write_gathered"]

CLAIMS_FILE = "claims.json"
_HEADLINE = "headline"


@dataclass(frozen=True)
class Gathered:
    """What each claim is judged by, and where the numbers of each data set come from."""

    found: Mapping[str, Found]
    sources: Mapping[str, Source]

    @property
    def improvements(self) -> list[Improvement]:
        """What the headline is computed from."""
        return [each for each in self.found[_HEADLINE] if isinstance(each, Improvement)]


def check_replaced(names: Collection[str]) -> None:
    """Refuse to replace a part of the synthetic data sets, which are compared with each other."""
    synthetic = [name for name in SYNTHETIC if name in names]
    if synthetic and len(synthetic) < len(SYNTHETIC):
        raise ConfigError(
            f"`--only` with `--figures` must have all of {', '.join(SYNTHETIC)} or none; got {', '.join(synthetic)}"
        )


def gather_all(results: Results, replaced: Collection[str] = (), stored: Gathered | None = None) -> Gathered:
    """Gather from runs what the claims are judged by.

    Args:
      replaced: the data sets whose runs count; empty: all of them.
      stored: what counts for the other data sets.
    """
    names = replaced or DATASETS
    own = _Restricted(results, names)
    found = {name: claim.judge.gather(own) for name, claim in CLAIMS.items()}
    sources = collect_sources(EXPERIMENTS.values(), results, names)
    if stored is None:
        return Gathered(found, sources)
    joined = {name: _joined(stored.found.get(name, ()), new, names) for name, new in found.items()}
    return Gathered(joined, {**stored.sources, **sources})


def judge_all(gathered: Gathered) -> dict[str, Judgement]:
    """Judge every claim; with numbers of a scale that shows no results they stay, and the verdicts go."""
    judged = {name: claim.judge.decide(gathered.found[name]) for name, claim in CLAIMS.items()}
    scales = dict.fromkeys(source.scale for source in gathered.sources.values())
    empty = [name for name in scales if name in SCALES and not SCALES[name].shows_results]
    if not empty:
        return judged
    why = f"the scale {empty[0]} shows that everything works, and no result"
    return {name: replace(each, verdict=NOT_TESTED, why=why) for name, each in judged.items()}


def write_gathered(file: Path, gathered: Gathered) -> Path:
    """Write what claims are judged by; what was not run is left out."""
    items = {name: [_to_json(each) for each in found if each is not None] for name, found in gathered.found.items()}
    record = {"datasets": source_records(gathered.sources), "claims": items}
    write_atomically(file, (json.dumps(record, indent=1, ensure_ascii=False) + "\n").encode())
    return file


def read_gathered(file: Path) -> Gathered | None:
    """Return what `write_gathered` has written; None where there is no file."""
    record = read_record(file)
    if not record:
        return None
    with reading(file, "a record of claims"):
        found = {name: [_from_json(each) for each in items] for name, items in record["claims"].items()}
    return Gathered(found, read_sources(record))


class _Restricted:
    """The histories of some data sets alone."""

    def __init__(self, results: Histories, datasets: Collection[str]) -> None:
        self._results, self._datasets = results, datasets

    def histories(self, curve: Curve) -> list[History]:
        return self._results.histories(curve) if curve.dataset in self._datasets else []


def _joined(stored: Found, new: Found, replaced: Collection[str]) -> list[Item | None]:
    """Return what is stored with the data sets that are replaced taken from `new`, and None for what is nowhere."""
    kept: Sequence[Item] = [each for each in stored if each is not None and each.dataset not in replaced]
    order = list(DATASETS)
    found = sorted([*kept, *(each for each in new if each is not None)], key=lambda each: order.index(each.dataset))
    return [*found, *([None] * (len(new) - len(found)))]


def _to_json(item: Item) -> dict[str, Any]:
    record = asdict(item)
    for interval in (value for key, value in record.items() if key in ("difference", "points")):
        if math.isnan(interval["error"]):  # one seed
            interval["error"] = None
    return record


def _from_json(record: Mapping[str, Any]) -> Item:
    if "divergent" in record:
        return Divergence(**{**record, "where": tuple(record["where"])})
    if "difference" in record:
        return Evidence(**{**record, "difference": _interval(record["difference"])})
    endings = {key: tuple(Ending(**each) for each in record[key]) for key in ("fedavg", "fedprox")}
    return Improvement(record["dataset"], **endings, points=_interval(record["points"]))


def _interval(record: Mapping[str, Any]) -> Interval:
    return Interval(**{**record, "error": math.nan if record["error"] is None else record["error"]})
