"""A least-squares run that satisfies the conditions of Theorem 4, and its certificate.

Forty devices measure one linear law, each with its own noise and a small deviation, so that B(w) is slightly above 1
far from the solution. K = 100 draws make the sampling term small. L is known exactly (the largest eigenvalue of
X_k^T X_k / n_k), mu is chosen from it, and five full-gradient steps per round make gamma small.

    python examples/certificate_least_squares.py [FOLDER]
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np

import fedprox
from fedprox import theory
from fedprox.data import read_npz
from fedprox.models import linear_regression

FEATURES = 5


def write_data(path: Path) -> None:
    """Write 40 devices of 30 to 90 samples."""
    random = np.random.default_rng(0)
    sizes = random.integers(30, 91, 40)
    device = np.repeat(np.arange(len(sizes)), sizes)
    x = random.normal(size=(len(device), FEATURES))
    law = 2.0 + 0.1 * random.normal(size=(len(sizes), FEATURES))
    y = np.sum(x * law[device], axis=1) + 0.1 * random.normal(size=len(device))
    np.savez(path, x=x, y=y, device=device)


def main(folder: Path) -> theory.Certificate:
    """Train, and return the certificate of the run."""
    folder.mkdir(parents=True, exist_ok=True)
    write_data(folder / "data.npz")
    L = theory.smoothness(read_npz(folder / "data.npz"), linear_regression(FEATURES)).L
    mu = theory.best_mu(gamma=0.05, B=1.2, K=100, L=L).value
    if mu is None:
        raise SystemExit("no mu is covered")
    config = {
        "rounds": 10,
        "data": {"name": "npz", "path": str(folder / "data.npz")},
        "model": {"name": "linear_regression"},
        "method": {"mu": round(mu, 3)},
        "solver": {"learning_rate": round(1 / (mu + L), 6), "batch_size": 0, "epochs": 5},
        "devices": {"per_round": 100, "sampling": "proportional"},
    }
    fedprox.train(config, out=folder / "run")
    return theory.certify(folder / "run", resample=100, round=1)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        certificate = main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(temporary))
    print(f"{certificate.kind}: rho > 0 in {certificate.guaranteed} of {len(certificate.rounds)} rounds")
    print(certificate.expectation.sentence if certificate.expectation else "")
