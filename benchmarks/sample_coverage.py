"""How often do the intervals of a sample of devices hold the value of all of them? They are made for 95%.

    python -m benchmarks.sample_coverage

MNIST (prepared) and Synthetic(1,1) with 1,000 devices each, samples of 50 and 200, the model at the start and after 30
rounds of the recipe; each share is over 100 samples.
"""

from __future__ import annotations

import jax
import numpy as np

import fedprox
from fedprox import data
from fedprox.config import Config, recipes
from fedprox.core.threads import Workers
from fedprox.measures import Measurer
from fedprox.population.loaded_samples import LoadedSamples

MEASURES = ("gradient_variance", "dissimilarity")
REPEATS = 100


def main() -> None:
    for name, devices in (("mnist", {}), ("synthetic-1-1", {"devices": 1000})):
        settings = recipes.load_settings(name)
        settings["data"] |= devices
        config = Config.from_dict({**settings, "rounds": 30, "measure": {"every": 30}})
        population = data.load(config)
        result = fedprox.train(config, population=population)
        start = jax.tree.map(np.zeros_like, result.params)  # softmax regression starts from zeros
        for moment, params in (("start", start), ("30 rounds", result.params)):
            for size in (50, 200):
                shares = zip(MEASURES, coverage(config, population, params, size), strict=True)
                print(f"{name}, {moment}, n = {size}:", ", ".join(f"{of} {share:.0%}" for of, share in shares))


def coverage(config: Config, population: fedprox.Population, params: object, size: int) -> list[float]:
    model, workers = data.model_for(config, population), Workers(1)
    loaded = LoadedSamples.of(population.train, model)
    whole = Measurer(population, loaded, model, workers).measure(params)
    held = np.zeros((REPEATS, len(MEASURES)), bool)
    for seed in range(REPEATS):
        part = Measurer(population, loaded, model, workers, seed=seed, sample=size).measure(params)
        for column, name in enumerate(MEASURES):
            interval = getattr(part, f"{name}_interval")
            held[seed, column] = interval is not None and interval.low <= getattr(whole, name) <= interval.high
    return held.mean(axis=0).tolist()


if __name__ == "__main__":
    main()
