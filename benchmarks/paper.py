"""How long do all runs behind Figures 1 to 12 on the four synthetic data sets take, with five seeds?

    python -m benchmarks.paper            all 265 runs, side by side on all cores
    python -m benchmarks.paper --seeds 1  a fifth of them

The aim is 20 minutes on two cores. Runs go into a temporary folder, so that all are run.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections import defaultdict
from pathlib import Path

from fedprox.paper.experiments import EXPERIMENTS
from fedprox.paper.protocol import SYNTHETIC
from fedprox.paper.runs import Setting, run_missing
from fedprox.paper.scales import find_scale
from fedprox.runs.reader import find_runs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--workers", type=int, default=0)
    arguments = parser.parse_args()
    curves = [curve for each in EXPERIMENTS.values() for curve in each.curves if curve.dataset in SYNTHETIC]
    with tempfile.TemporaryDirectory() as folder:
        setting = Setting(Path(folder), find_scale("desk"), arguments.seeds)
        started = time.perf_counter()
        count = run_missing(list(dict.fromkeys(curves)), setting, workers=arguments.workers)
        minutes = (time.perf_counter() - started) / 60
        seconds = defaultdict(list)
        for run in find_runs([setting.out / "runs"]):
            seconds[run.path.name.rpartition("-")[0]].append((run.summary or {})["seconds"])
    cores = arguments.workers or len(os.sched_getaffinity(0))
    print(f"{count} runs, {arguments.seeds} seeds, {cores} cores: {minutes:.1f} min")
    for name, taken in seconds.items():
        print(
            f"  {name}: {len(taken)} runs, {sum(taken) / len(taken):.1f} s each on average, {max(taken):.1f} s at most"
        )


if __name__ == "__main__":
    main()
