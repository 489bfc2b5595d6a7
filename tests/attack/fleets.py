"""Damaged files about fleets: FLASH's and FedScale's JSON, tables as CSV and Parquet, half-hours as npz."""

from __future__ import annotations

import json
import random
import shutil
import warnings
from pathlib import Path

import numpy as np
import pyarrow
from pyarrow import parquet

from attack.mutations import damaged
from fedprox.participation.clock import FleetDevices, read_trace
from fedprox.participation.fleets import import_fleet

__all__ = ["attack_fleet", "write_fleets"]

_DAY = 86400
_JOINED = (
    ("states.json", "network.json"),
    ("capacity.json", "behaviour.json"),
    ("devices.csv", "spans.csv"),
    ("devices.parquet", "spans.csv"),
    ("there.npz", "network.json"),
)


def write_fleets(folder: Path) -> None:
    """Write sound files of every form."""
    folder = folder / "sound"
    folder.mkdir()
    messages = "2020-01-29 22:00:00\tscreen_lock\n2020-01-29 22:30:00\tWifi\n2020-01-29 23:00:00\tbattery_charged_on"
    behaviour = {"active": [0], "inactive": [_DAY], "finish_time": _DAY, "duration": 1}
    tables = {
        "states": {name: {"guid": name, "model": "X", "messages": messages} for name in "ab"},
        "network": {"n": {"down_u": 8000.0, "down_sigma": 1.0, "up_u": 800.0, "up_sigma": 1.0}},
        "capacity": {str(k): {"computation": 10.0 * (k + 1), "communication": 8000.0} for k in range(3)},
        "behaviour": {str(k): behaviour for k in range(3)},
    }
    for name, table in tables.items():
        (folder / f"{name}.json").write_text(json.dumps(table))
    columns = {
        "device": ["x", "y"],
        "ms_per_sample": [10.0, 20.0],
        "download_kbit_per_second": [80.0, 8.0],
        "upload_kbit_per_second": [8.0, 8.0],
    }
    parquet.write_table(pyarrow.table(columns), folder / "devices.parquet")
    rows = [",".join(map(str, row)) for row in zip(*columns.values(), strict=True)]
    (folder / "devices.csv").write_text("\n".join([",".join(columns), *rows, ""]))
    (folder / "spans.csv").write_text("device,begin_seconds,end_seconds,period_seconds\nx,5,9,20\ny,0,5,20\n")
    np.savez(folder / "there.npz", available=np.array([[1, 255], [1, 0], [0, 1], [255, 1]], np.uint8))


def attack_fleet(folder: Path, dice: random.Random) -> None:
    """Import files of which one is damaged; a fleet that is written must be one that can be used."""
    case = folder / "case"
    shutil.rmtree(case, ignore_errors=True)
    case.mkdir()
    names = dice.choice(_JOINED)
    for name in names:
        shutil.copy(folder / "sound" / name, case)
    file = case / dice.choice(names)
    file.write_bytes(damaged(file.read_bytes(), dice))
    fleet = import_fleet([case / name for name in names], at_random=dice.random() < 0.3)
    (case / "fleet.jsonl").write_text(fleet.text())
    devices = FleetDevices(read_trace(case / "fleet.jsonl", None), seed=0)
    devices.at(np.arange(5), 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it says that the trace repeats
        devices.trace.seconds_left(np.arange(len(fleet.lines)), 12345.0)
