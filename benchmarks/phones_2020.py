"""Derive the profile `phones-2020` from the published measurements of FLASH and AI-Benchmark.

    python benchmarks/phones_2020.py FOLDER [OUT]

FOLDER has `flash_availability.npz` (`available`, (half-hours, phones): 1 there, 0 away, 255 unknown; the first row is
midnight), `flash_network.json` (mean and deviation of the download and upload of phones, in kbit/s) and
`ai_benchmark_phones.json` (`CPU_F_AI_Score` of phone models). What is written are statistics alone: four classes of
speed, a lognormal network, and the six numbers of the habits, which are fitted to the daily curve and to the
autocorrelation of the phones' availability. The shares of phones that are rarely or never there are not fitted; the
script prints them beside those of the model.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares
from scipy.stats import norm, qmc

from fedprox.participation.clock.profiles import Profile, write_profile

SLOTS = 48  # half-hours of a day
LAGS = (1, 2, 4, 8, 12, 16, 24, 36, 48, 72, 96)
LEVEL_OF_MEDIAN = 0.2  # the speed of the median phone, as that of the middling class of `phones`: an assumption
CLASSES = ("slowest quarter", "slower quarter", "faster quarter", "fastest quarter")
KBIT = 125.0  # bytes

Numbers = NDArray[np.float64]


def autocorrelation(there: Numbers) -> Numbers:
    """Return the correlation of a phone's state with its state some slots later, over all phones; NaN is unknown."""
    found = []
    for lag in LAGS:
        before, after = there[:-lag], there[lag:]
        known = np.isfinite(before) & np.isfinite(after)
        found.append(np.corrcoef(before[known], after[known])[0, 1])
    return np.array(found)


def model_moments(values: Numbers, normals: Numbers) -> tuple[Numbers, Numbers]:
    """Return the autocorrelation and the daily curve of habits (level, its spread, habit, hour, its spread, kept)."""
    level, spread, habit, peak, peak_spread, kept = values
    hours = np.arange(SLOTS) / 2
    angle = 2 * np.pi * (hours - (peak + peak_spread * normals[:, 1:])) / 24
    decides = 1 / (1 + np.exp(-(level + spread * normals[:, :1] + habit * np.cos(angle))))  # (devices, slots)
    there = sum((1 - kept) * kept**back * np.roll(decides, back, 1) for back in range(150))
    mean = there.mean()
    found = []
    for lag in LAGS:
        later = sum((1 - kept) * kept**back * np.roll(decides, back - lag, 1) for back in range(lag))
        found.append(((there * (kept**lag + later)).mean() - mean**2) / (mean * (1 - mean)))
    return np.array(found), there.mean(0)


def fit_habits(there: Numbers) -> dict[str, float]:
    """Fit the habits to the daily curve and the autocorrelation."""
    normals = norm.ppf(qmc.Sobol(2, seed=0).random(2048) * 0.9998 + 0.0001)
    curve, correlation = np.array([np.nanmean(there[slot::SLOTS]) for slot in range(SLOTS)]), autocorrelation(there)

    def residuals(values: Numbers) -> Numbers:
        found, day = model_moments(values, normals)
        return np.concatenate([found - correlation, 1.5 * (day - curve)])

    start, low, high = [-3.5, 1.5, 1.5, 4, 5, 0.7], [-12, 0.01, 0, 0, 0.1, 0], [3, 9, 9, 23.9, 14, 0.99]
    fit = least_squares(residuals, start, bounds=(low, high))
    found, day = model_moments(fit.x, normals)
    for lag, measured, fitted in zip(LAGS, correlation, found, strict=True):
        print(f"autocorrelation after {lag / 2:4.1f} h: measured {measured:.3f}, model {fitted:.3f}")
    for slot in range(0, SLOTS, 6):
        print(f"there at {slot // 2:2d}:00: measured {curve[slot]:.3f}, model {day[slot]:.3f}")
    names = ("level", "level_spread", "habit", "peak_hour", "peak_spread_hours", "persistence")
    return {"slot_seconds": 1800.0, **{name: round(float(value), 3) for name, value in zip(names, fit.x, strict=True)}}


def print_shares(there: Numbers, profile: Profile) -> None:
    """Print how often single phones are there, measured and in the model, over the same known half-hours."""
    from fedprox.participation.clock.profiles import ProfileDevices

    source, devices = ProfileDevices(profile, seed=0), np.arange(there.shape[1])
    model = np.array([source.seconds_left(devices, slot * 1800.0) > 0 for slot in range(len(there))], float)
    model[np.isnan(there)] = np.nan
    quantiles = [0.25, 0.5, 0.75, 0.9, 0.99]
    for name, each in (("measured", there), ("model", model)):
        shares = np.nanmean(each, axis=0)
        middle = ", ".join(f"{value:.3f}" for value in np.quantile(shares, quantiles))
        print(f"{name}: mean {np.nanmean(each):.3f}, never there {np.mean(shares == 0):.3f}, quantiles {middle}")


def speed_classes(scores: Numbers) -> list[dict[str, float | str]]:
    """Return the quarters of the phones by speed; a quarter's spread is that of the logarithm within it."""
    quarters = np.array_split(np.sort(scores), len(CLASSES))
    return [
        {
            "name": name,
            "share": 1 / len(CLASSES),
            "speed": round(float(LEVEL_OF_MEDIAN * np.median(own) / np.median(scores)), 4),
            "spread": round(float(np.log(own).std(ddof=1)), 3),
        }
        for name, own in zip(CLASSES, quarters, strict=True)
    ]


def network(rows: list[dict[str, float]]) -> dict[str, float]:
    """Return medians and spreads of the phones' networks, and how much one differs from itself over time."""
    down, up = (np.array([row[f"{way}_u"] for row in rows]) for way in ("down", "up"))
    sigma = np.array([row["down_sigma"] for row in rows])
    spread, upload_spread = (float(np.log(each).std(ddof=1)) for each in (down, up))
    return {
        "download_bytes_per_second": round(float(np.median(down)) * KBIT),
        "upload_bytes_per_second": round(float(np.median(up)) * KBIT),
        "network_spread": round(spread, 3),
        "upload_spread": round((upload_spread**2 - spread**2) ** 0.5, 3),
        "network_round_spread": round(float(np.median(np.sqrt(np.log1p((sigma / down) ** 2)))), 3),
    }


def main(folder: Path, out: Path) -> None:
    """Write the profile."""
    raw = np.load(folder / "flash_availability.npz", allow_pickle=False)["available"]
    there = np.where(raw == 255, np.nan, raw.astype(float))
    phones = json.loads((folder / "ai_benchmark_phones.json").read_text())
    scores = np.array([float(phone["CPU_F_AI_Score"]) for phone in phones])
    measured = network(list(json.loads((folder / "flash_network.json").read_text()).values()))
    profile = Profile.model_validate(
        {
            "origin": ORIGIN,
            "licence": "BSD-2-Clause (PKU-Chengxu/FLASH)",
            "samples_per_second": 500.0,
            "classes": [{**kind, **measured} for kind in speed_classes(scores)],
            "availability": fit_habits(there),
        }
    )
    out.write_text(write_profile(profile, COMMENT), encoding="utf-8")
    print_shares(there, profile)


ORIGIN = (
    "723 phones that were idle, charging and on Wi-Fi (29 January to 3 February 2020), 19 measured networks and the "
    "AI-Benchmark scores of 333 phone models, as published with FLASH (Yang et al., WWW 2021)"
)
COMMENT = """Phones of 2020, from measurements; `python benchmarks/phones_2020.py FOLDER` derives this file.

Measured: the ratios of speeds (four quarters of the CPU scores for float models, taken as proportional to speed), the
networks (means of phones, and how much one phone's varies), and when phones are there (the habits are fitted to the
daily curve and the autocorrelation of the phones of one country, so that nights are shared).
Assumed: the speed of the median phone, 0.2, which is that of the middling class of `phones`; no latency; speeds that
do not change from round to round; networks, speeds and availability that do not depend on each other.

samples_per_second is what a device of speed 1 trains; `fedprox calibrate` puts in what your machine does."""


if __name__ == "__main__":
    package = Path(__file__).parent.parent / "src/fedprox/participation/clock/phones-2020.toml"
    main(Path(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) > 2 else package)
