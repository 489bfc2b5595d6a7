"""Golden trajectories: run by hand when a change of the draws or the arithmetic is intended.

python tests/make_golden.py
"""

import json
from pathlib import Path
from typing import Any

import fedprox

FILE = Path(__file__).with_name("golden.json")
MEASURED = ("train_loss", "train_accuracy", "test_accuracy", "gradient_variance", "dissimilarity")
RUNS: dict[str, Any] = {
    "fedavg-stragglers": {"method": {"name": "fedavg"}, "devices": {"stragglers": 0.9}},
    "fedprox-stragglers": {"method": {"mu": 1.0}, "devices": {"stragglers": 0.9}},
    "fedprox-proportional": {"method": {"mu": 0.1}, "devices": {"sampling": "proportional"}},
    "fedprox-one-epoch": {"method": {"mu": 0.0}, "devices": {"stragglers": 0.5}, "solver": {"epochs": 1}},
    "iid-full-batch": {"data": {"name": "synthetic_iid"}, "solver": {"batch_size": 0, "learning_rate": 0.1}},
    "adaptive": {"data": {"alpha": 0.0, "beta": 0.0}, "method": {"mu": "adaptive"}},
    "mlp": {"model": {"name": "mlp"}, "solver": {"epochs": 1}, "method": {"mu": 0.1}},
}


def trajectory(name):
    result = fedprox.train({"rounds": 6, **RUNS[name]})
    return {
        "metrics": {column: result.history.column(column) for column in MEASURED},
        "devices": [row["device"] for row in result.devices],
        "budget": [row["budget"] for row in result.devices],
    }


if __name__ == "__main__":
    FILE.write_text(json.dumps({name: trajectory(name) for name in RUNS}) + "\n")
