"""The figure of docs/which-server.md: accuracy over simulated seconds, from the runs of `which_server`.

    python -m benchmarks.server_curves docs/images/which-server.png

A line is the highest test accuracy so far, a mean over the seeds, until the last of them has ended: FedProx with mu = 1
solid, FedAvg dashed.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from benchmarks.tables import read_cache
from benchmarks.which_server import DATA, FLEETS, SERVERS, TITLES, Cell

COLOURS = ("#0072B2", "#7F7F7F", "#E69F00", "#009E73", "#D55E00")  # Okabe and Ito's, for colour-blind readers
STYLES = {"fedprox mu=1": "-", "fedavg": "--"}
SEEDS = 3


def main() -> None:
    cache = read_cache(Path(__file__).parent / "results" / "which_server.json")
    figure = Figure(figsize=(11, 6.4), layout="constrained")
    panels = figure.subplots(len(DATA), len(FLEETS), sharey="row", squeeze=False)
    for row, name in zip(panels, DATA, strict=True):
        for panel, fleet in zip(row, FLEETS, strict=True):
            for colour, server in zip(COLOURS, SERVERS, strict=True):
                for method, style in STYLES.items():
                    runs = [cache[Cell(name, fleet, server, method, seed).key] for seed in range(SEEDS)]
                    label = server if style == "-" else None
                    panel.plot(*_mean_curve(runs), style, color=colour, linewidth=1.4, label=label)
            panel.set(title=f"{TITLES[name]}, {fleet}", xscale="log", xlabel="simulated seconds")
            panel.yaxis.set_major_formatter(PercentFormatter(1.0))
        row[0].set_ylabel("test accuracy")
    figure.legend(*panels[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=len(SERVERS))
    figure.savefig(sys.argv[1], dpi=110)


def _mean_curve(runs: list[dict[str, Any]]) -> tuple[list[float], list[float]]:
    """Return moments, and the mean over the runs of the highest accuracy until then."""
    last = max(run["seconds"] for run in runs)
    moments = sorted({point[1] for run in runs for point in run["curve"]} | {last})
    reached = np.zeros((len(runs), len(moments)))
    for own, run in zip(reached, runs, strict=True):
        for accuracy, seconds, _ in run["curve"]:
            own[np.searchsorted(moments, seconds) :] = accuracy
    return moments, reached.mean(axis=0).tolist()


if __name__ == "__main__":
    main()
