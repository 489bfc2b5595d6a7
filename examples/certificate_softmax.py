"""A softmax-regression run that satisfies the conditions of Theorem 4, and its certificate.

Thirty devices draw from one distribution of three classes. Their samples differ, so B(w) is above 1, but only slightly
in the first rounds. L is a bound for every w (half the largest eigenvalue of X_k^T X_k / n_k, with the bias), K = 100
draws make the sampling term small, mu is chosen from L, and five full-gradient steps per round make gamma small.

    python examples/certificate_softmax.py [FOLDER]
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np

import fedprox
from fedprox import theory
from fedprox.data import read_npz
from fedprox.models import softmax_regression

FEATURES, CLASSES = 4, 3


def write_data(path: Path) -> None:
    """Write 30 devices of 40 to 120 samples."""
    random = np.random.default_rng(1)
    sizes = random.integers(40, 121, 30)
    device = np.repeat(np.arange(len(sizes)), sizes)
    y = random.integers(CLASSES, size=len(device))
    centre = 2.0 * random.normal(size=(CLASSES, FEATURES))
    x = centre[y] + random.normal(size=(len(device), FEATURES))
    np.savez(path, x=x, y=y, device=device)


def main(folder: Path) -> theory.Certificate:
    """Train, and return the certificate of the run."""
    folder.mkdir(parents=True, exist_ok=True)
    write_data(folder / "data.npz")
    L = theory.smoothness(read_npz(folder / "data.npz"), softmax_regression(FEATURES, CLASSES)).L
    mu = theory.best_mu(gamma=0.05, B=1.2, K=100, L=L).value
    if mu is None:
        raise SystemExit("no mu is covered")
    config = {
        "rounds": 10,
        "data": {"name": "npz", "path": str(folder / "data.npz")},
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
