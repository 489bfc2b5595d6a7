"""A small part of Shakespeare, as data that `benchmarks.auto_mu` takes.

    python -m benchmarks.shakespeare_subset --out runs/unseen
    python -m benchmarks.auto_mu --data runs/unseen/shakespeare-subset.toml

Needs the prepared Shakespeare (`fedprox data prepare shakespeare`). 20 devices with half a percent of their samples, 20
rounds and five epochs of the paper's LSTM at its learning rate: a run takes about half a minute on one core.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from fedprox.config import Config, recipes
from fedprox.data import load
from fedprox.paper.reduced import take_subset
from fedprox.paper.scales import Subset
from fedprox.population.writer import save_population


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.shakespeare_subset", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--out", type=Path, required=True)
    out = parser.parse_args(arguments).out.resolve()
    settings = recipes.load_settings("shakespeare")
    part = take_subset(load(Config.from_dict(settings)), Subset(devices=20, share=0.005, least=8))
    save_population(part, out / "shakespeare-subset")
    settings["data"] = {"name": "population", "path": str(out / "shakespeare-subset")}
    settings["model"] = {"name": "char_lstm"}
    settings["rounds"] = 20
    settings["solver"]["epochs"] = 5
    config = out / "shakespeare-subset.toml"
    config.write_text(Config.from_dict(settings).to_toml())
    print(config)


if __name__ == "__main__":
    main()
