"""A fleet as a figure: the speeds and networks of its devices, and their availability over two days.

A sample of the devices stands for all, so that a fleet of a million costs as much as one of a thousand.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter
from numpy.typing import NDArray

from fedprox.participation.clock import Source
from fedprox.report.palette import COLOURS

__all__ = ["FleetView", "examine_fleet", "plot_fleet"]

Numbers = NDArray[np.float64]

_STEP, _HOURS = 0.5, 48.0  # hours
_SHOWN = 80  # devices in the figure of availability over time


@dataclass(frozen=True)
class FleetView:
    """Some devices of a fleet; arrays over them."""

    kind: tuple[str, ...]
    samples_per_second: Numbers
    download: Numbers  # bytes per second
    upload: Numbers
    hours: Numbers  # (times,)
    there: NDArray[np.bool_]  # (times, devices)

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield one row for each class, the fastest first, and one for all devices."""
        kinds = np.array(self.kind)
        names = sorted(set(self.kind), key=lambda name: -np.median(self.samples_per_second[kinds == name]))
        for name in names if len(names) > 1 else ():
            yield self._row(name, kinds == name)
        yield self._row("all", np.ones(len(kinds), bool))

    def _row(self, name: str, those: NDArray[np.bool_]) -> dict[str, Any]:
        own = self.there[:, those]
        hour = self.hours % 24
        return {
            "class": name,
            "devices": int(those.sum()),
            "samples_per_second": _quantiles(self.samples_per_second[those]),
            "download_kbit_per_second": _quantiles(self.download[those] / 125),
            "upload_kbit_per_second": _quantiles(self.upload[those] / 125),
            "there": float(own.mean()),
            "there_at_night": float(own[hour < 6].mean()),
            "there_in_the_afternoon": float(own[(hour >= 12) & (hour < 18)].mean()),
            "never_there": float((~own.any(axis=0)).mean()),
        }


def examine_fleet(source: Source, devices: int) -> FleetView:
    """Sample the first devices of a fleet, over two days."""
    numbers, hours = np.arange(devices), np.arange(0.0, _HOURS, _STEP)
    at = source.at(numbers, 1)
    there = np.array([source.seconds_left(numbers, hour * 3600) > 0 for hour in hours])
    return FleetView(at.kind, at.samples_per_second, at.download, at.upload, hours, there)


def plot_fleet(view: FleetView, title: str) -> Figure:
    """Plot speeds, networks, the share of available devices, and the availability of some devices over time."""
    figure = Figure(figsize=(10, 7), layout="constrained")
    (speeds, networks), (shares, single) = figure.subplots(2, 2)
    kinds = np.array(view.kind)
    names = [row["class"] for row in view.rows() if row["class"] != "all"] or [view.kind[0]]
    many = len(names) > len(COLOURS)
    for colour, name in zip(COLOURS, names, strict=False):
        those = np.ones(len(kinds), bool) if many else kinds == name
        _steps(speeds, view.samples_per_second[those], colour, "all devices" if many else name)
        networks.plot(view.download[those] / 125, view.upload[those] / 125, ".", ms=2, alpha=0.5, color=colour)
        shares.plot(view.hours, view.there[:, those].mean(axis=1), lw=1, alpha=0.6, color=colour)
        if many:
            break
    shares.plot(view.hours, view.there.mean(axis=1), lw=2, color="black", label="all devices")
    speeds.set(xscale="log", xlabel="samples a second", ylabel="share of devices that are slower")
    networks.set(xscale="log", yscale="log", xlabel="download, kbit/s", ylabel="upload, kbit/s")
    shares.set(xlabel="hour", ylabel="share of devices that are there", ylim=(0, None), xticks=range(0, 49, 6))
    speeds.yaxis.set_major_formatter(PercentFormatter(1))
    shares.yaxis.set_major_formatter(PercentFormatter(1))
    some = view.there[:, :_SHOWN].T
    single.imshow(some, aspect="auto", interpolation="nearest", cmap="Greys", extent=(0, _HOURS, len(some), 0))
    single.set(xlabel="hour", ylabel="device (dark: there)", xticks=range(0, 49, 6))
    if len(names) > 1 and not many:
        speeds.legend(frameon=False, fontsize=8)
    shares.legend(frameon=False, fontsize=8)
    figure.suptitle(title)
    return figure


def _steps(axes: Any, values: Numbers, colour: str, label: str) -> None:
    axes.step(np.sort(values), np.arange(1, len(values) + 1) / len(values), where="post", color=colour, label=label)


def _quantiles(values: Numbers) -> list[float]:
    """Return the tenth, the half and nine tenths."""
    return [float(value) for value in np.quantile(values, (0.1, 0.5, 0.9))]
