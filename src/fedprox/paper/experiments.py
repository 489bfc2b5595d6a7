"""The paper's figures as data: a name, its panels, their curves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import product

from fedprox.paper.protocol import (
    DATASETS,
    DYNAMIC,
    FEDAVG,
    FEDDANE_0,
    FEDDANE_1,
    FIVE,
    PROX,
    PROX_0,
    PROX_1,
    STRAGGLERS,
    SYNTHETIC,
    Style,
)

__all__ = ["EXPERIMENTS", "Curve", "Experiment", "Panel", "arms"]


@dataclass(frozen=True)
class Curve:
    """What is run behind a curve, for every seed."""

    dataset: str
    method: str = "fedprox"
    mu: float | str | None = 0.0  # None for methods without one
    stragglers: float = 0.0
    epochs: int = 20
    per_round: int = 10
    sampling: str = "uniform"


@dataclass(frozen=True)
class Panel:
    """One of the small pictures: a measure over the rounds."""

    title: str
    measure: str
    curves: tuple[tuple[Style, Curve], ...]


@dataclass(frozen=True)
class Experiment:
    """A figure: rows of panels, the names of the rows, and what the figure is about."""

    name: str
    about: str
    rows: tuple[tuple[Panel, ...], ...]
    row_names: tuple[str, ...] = ()

    def row_name(self, number: int) -> str:
        """Return what a row is called in tables."""
        return self.row_names[number] if self.row_names else str(number + 1)

    @property
    def datasets(self) -> list[str]:
        """The data sets of all panels."""
        return list(dict.fromkeys(curve.dataset for curve in self.curves))

    @property
    def curves(self) -> list[Curve]:
        """The distinct curves of all panels."""
        return list(dict.fromkeys(curve for row in self.rows for panel in row for _, curve in panel.curves))


def arms(dataset: str, stragglers: float, epochs: int = 20) -> tuple[tuple[Style, Curve], ...]:
    """Return what Figure 1 compares on a data set: FedAvg, FedProx with mu = 0, FedProx with the best mu."""
    prox = Curve(dataset, stragglers=stragglers, epochs=epochs)
    return (
        (FEDAVG, replace(prox, method="fedavg", mu=None)),
        (PROX_0, prox),
        (PROX, replace(prox, mu=DATASETS[dataset].best_mu)),
    )


def _with_stragglers(measure: str, epochs: int, methods: int) -> tuple[tuple[Panel, ...], ...]:
    return tuple(
        tuple(Panel(_short_title(name), measure, arms(name, share, epochs)[:methods]) for name in FIVE)
        for share in STRAGGLERS
    )


def _short_title(dataset: str) -> str:
    """Beside real data the only synthetic data set is just that."""
    return DATASETS[dataset].title.partition(" (")[0]


def _on_synthetic(measure: str, curves: Mapping[str, tuple[tuple[Style, Curve], ...]]) -> tuple[Panel, ...]:
    return tuple(Panel(DATASETS[name].title, measure, chosen) for name, chosen in curves.items())


def _share_names() -> tuple[str, ...]:
    return tuple(f"{share:.0%} stragglers" for share in STRAGGLERS)


_TWO = {name: ((PROX_0, Curve(name)), (PROX_1, Curve(name, mu=1.0))) for name in SYNTHETIC}
_THREE = {
    name: (*_TWO[name], (DYNAMIC, Curve(name, mu="adaptive"))) for name in SYNTHETIC
}  # where the rule starts is the data set's adversarial mu
_DANE = {
    name: (
        *_TWO[name],
        (FEDDANE_0, Curve(name, "feddane", 0.0)),
        (FEDDANE_1, Curve(name, "feddane", 1.0)),
    )
    for name in SYNTHETIC
}
_MORE_DEVICES = {
    name: tuple(
        (Style(f"FedDANE (μ=1), {count} of 30 devices", colour, line), Curve(name, "feddane", 1.0, per_round=count))
        for count, colour, line in ((10, "tab:purple", "-."), (20, "tab:olive", "--"), (30, "tab:gray", "-"))
    )
    for name in SYNTHETIC
}
_SCHEMES = {
    name: tuple(
        (Style(f"{words}, μ={mu:g}", colour, line), Curve(name, mu=mu, sampling=scheme))
        for (scheme, words, line), (mu, colour) in product(
            (("uniform", "uniform, weighted mean", ":"), ("proportional", "by size, plain mean", "-")),
            ((0.0, "tab:pink"), (1.0, "tab:cyan")),
        )
    )
    for name in SYNTHETIC
}
_IID_SHARES = (0.0, 0.1, 0.5, 0.9)

EXPERIMENTS: Mapping[str, Experiment] = {
    experiment.name: experiment
    for experiment in (
        Experiment(
            "figure1",
            "training loss on five data sets with 0%, 50% and 90% stragglers, E = 20",
            _with_stragglers("train_loss", 20, 3),
            _share_names(),
        ),
        Experiment(
            "figure2",
            "data heterogeneity: training loss and gradient variance on four synthetic data sets",
            (_on_synthetic("train_loss", _TWO), _on_synthetic("gradient_variance", _TWO)),
        ),
        Experiment(
            "figure3",
            "adaptive mu from adversarial starts, on Synthetic-IID and Synthetic (1,1)",
            (
                _on_synthetic(
                    "train_loss",
                    {name: _THREE[name] for name in ("synthetic-iid", "synthetic-1-1")},
                ),
            ),
        ),
        Experiment(
            "figure4",
            "FedDANE beside FedProx with 10 of 30 devices, and FedDANE with 10, 20 and 30",
            (_on_synthetic("train_loss", _DANE), _on_synthetic("train_loss", _MORE_DEVICES)),
        ),
        Experiment(
            "figure5",
            "IID data with stragglers: training loss and test accuracy",
            tuple(
                tuple(
                    Panel(f"{share:.0%} stragglers", measure, arms("synthetic-iid", share)[:2]) for share in _IID_SHARES
                )
                for measure in ("train_loss", "test_accuracy")
            ),
        ),
        Experiment(
            "figure6",
            "Figure 2 with test accuracy",
            tuple(_on_synthetic(measure, _TWO) for measure in ("train_loss", "test_accuracy", "gradient_variance")),
        ),
        Experiment(
            "figure7",
            "test accuracy of Figure 1, and the mean improvement under 90% stragglers",
            _with_stragglers("test_accuracy", 20, 3),
            _share_names(),
        ),
        Experiment(
            "figure8",
            "gradient variance on five data sets without stragglers",
            (tuple(Panel(_short_title(name), "gradient_variance", arms(name, 0.0)[1:]) for name in FIVE),),
        ),
        Experiment(
            "figure9",
            "training loss on five data sets at E = 1",
            _with_stragglers("train_loss", 1, 2),
            _share_names(),
        ),
        Experiment(
            "figure10",
            "test accuracy of Figure 9",
            _with_stragglers("test_accuracy", 1, 2),
            _share_names(),
        ),
        Experiment(
            "figure11",
            "adaptive mu from adversarial starts, on four synthetic data sets",
            (_on_synthetic("train_loss", _THREE),),
        ),
        Experiment(
            "figure12",
            "two ways to sample devices: training loss, test accuracy and gradient variance",
            tuple(_on_synthetic(measure, _SCHEMES) for measure in ("train_loss", "test_accuracy", "gradient_variance")),
        ),
    )
}
