"""How large the experiments are: smoke (seconds), desk (two hours, two cores), night (many hours), full (the paper's).

A scale changes only what is listed here, and every change is a sentence that stands on the figures it concerns.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fedprox.core.errors import ConfigError, nearest

__all__ = ["SCALES", "Cost", "Reduction", "Scale", "Subset", "find_scale"]


@dataclass(frozen=True)
class Subset:
    """A part of a population: a number of devices, of each a share of its samples, but at least `least` of them."""

    devices: int
    share: float
    least: int


@dataclass(frozen=True)
class Cost:
    """Seconds on one core: a round of K = 10 devices and E = 20 epochs, a measurement, and one with all gradients."""

    solve: float
    measure: float
    gradients: float


@dataclass(frozen=True)
class Reduction:
    """What a scale changes on a data set; what is None stays as in the paper.

    Attributes:
      subset: the part of the devices and samples that is used.
      measured: how many devices are measured, a fixed sample of them; 0: all.
      is_stand_in: small synthetic data and a softmax regression take the place of data set and model.
    """

    cost: Cost
    seeds: int = 5
    rounds: int | None = None
    every: int = 1
    subset: Subset | None = None
    measured: int = 0
    is_stand_in: bool = False

    def sentence(self, title: str) -> str:
        """Return in words what is reduced on a data set, or nothing.

        >>> Reduction(Cost(1, 1, 1), rounds=30, subset=Subset(40, 0.01, 8)).sentence("Shakespeare")
        'Shakespeare: 30 rounds, 40 devices, 1% of the samples of each (at least 8).'
        """
        parts = [f"{self.rounds} rounds"] if self.rounds else []
        if self.is_stand_in:
            parts.append("synthetic data in its place")
        if self.subset:
            parts += [
                f"{self.subset.devices} devices",
                f"{100 * self.subset.share:g}% of the samples of each (at least {self.subset.least})",
            ]
        if self.measured:
            parts.append(f"measured on {self.measured} devices")
        if self.every > 1:
            parts.append(f"measured every {self.every} rounds")
        return f"{title}: {', '.join(parts)}." if parts else ""


@dataclass(frozen=True)
class Scale:
    """A size of all experiments; one without results serves to show that everything works."""

    name: str
    about: str
    reductions: Mapping[str, Reduction]
    shows_results: bool = True

    def of(self, dataset: str) -> Reduction:
        """Return what changes on a data set."""
        return self.reductions.get(dataset, self.reductions["synthetic"])


def find_scale(name: str) -> Scale:
    """Return a scale by its name.

    >>> find_scale("desk").of("mnist").rounds is None
    True
    """
    if name not in SCALES:
        raise ConfigError(f"`--scale` must be one of {', '.join(SCALES)}; got {name!r}" + nearest(name, SCALES))
    return SCALES[name]


# Seconds were measured on one core of a two-core AMD EPYC.
_SYNTHETIC = Cost(0.011, 0.0015, 0.002)
_MNIST = Cost(0.024, 0.06, 0.1)
_FEMNIST = Cost(0.04, 0.025, 0.035)
_TINY = Reduction(Cost(0.011, 0.003, 0.003), seeds=2, rounds=2)
_STAND_IN = Reduction(Cost(0.002, 0.003, 0.003), seeds=1, rounds=2, is_stand_in=True)

SCALES: Mapping[str, Scale] = {
    scale.name: scale
    for scale in (
        Scale(
            "smoke",
            "a few rounds, stand-ins for the real data sets; shows that everything works, and no result",
            {
                "synthetic": _TINY,
                "mnist": _STAND_IN,
                "femnist": _STAND_IN,
                "shakespeare": _STAND_IN,
                "sent140": _STAND_IN,
            },
            shows_results=False,
        ),
        Scale(
            "desk",
            "the paper's sizes but for the two data sets with LSTMs, so small there that these models hardly learn",
            {
                "synthetic": Reduction(_SYNTHETIC),
                "mnist": Reduction(_MNIST),
                "femnist": Reduction(_FEMNIST),
                "shakespeare": Reduction(
                    Cost(3.0, 0.25, 0.7), seeds=2, rounds=20, subset=Subset(devices=40, share=0.005, least=8)
                ),
                "sent140": Reduction(
                    Cost(7.5, 0.9, 1.9), seeds=2, rounds=10, subset=Subset(devices=40, share=0.15, least=8)
                ),
            },
        ),
        Scale(
            "night",
            "as desk, but with the LSTMs at a size at which they learn; in the background, for a night or more",
            {
                "synthetic": Reduction(_SYNTHETIC),
                "mnist": Reduction(_MNIST),
                "femnist": Reduction(_FEMNIST),
                "shakespeare": Reduction(
                    Cost(47.0, 3.5, 11.0), seeds=2, subset=Subset(devices=143, share=0.1, least=20), measured=36
                ),
                "sent140": Reduction(Cost(28.0, 2.7, 8.0), seeds=2, rounds=100, measured=60),
            },
        ),
        Scale(
            "full",
            "the paper's sizes; for an accelerator or patience",
            {
                "synthetic": Reduction(_SYNTHETIC),
                "mnist": Reduction(_MNIST),
                "femnist": Reduction(_FEMNIST),
                "shakespeare": Reduction(Cost(470.0, 140.0, 420.0)),
                "sent140": Reduction(Cost(28.0, 30.0, 90.0)),
            },
        ),
    )
}
