"""Synthetic(alpha, beta) and Synthetic IID (Section 5.1 and Appendix C.1).

For each device k: u_k ~ N(0, alpha), W_k and b_k have entries from N(u_k, 1); B_k ~ N(0, beta), v_k has entries from
N(B_k, 1); x ~ N(v_k, Sigma) with Sigma_jj = j^-1.2, and y = argmax(softmax(W_k x + b_k)). So alpha is meant to make the
devices' models differ, and beta makes their inputs differ. In the IID set all devices share W, b ~ N(0, 1) and v = 0.

Where the paper does not say, this follows the released generator: a device has int(lognormal(4, 2)) + 50 samples, and
alpha and beta are standard deviations. One consequence is worth knowing: u_k is one number that shifts all entries of
W_k and b_k, so it adds the same to every class's score and cancels in the argmax; devices' labels differ because the
W_k are drawn for each device, whatever alpha is. A fifth of each device's samples are test samples, as in the paper; a
config can choose the paper's variances and the released split (`[compat]`). Every device draws from a stream of its
own, so that device 7 is the same whatever the number of devices.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from fedprox.core.errors import ConfigError
from fedprox.core.machine import total_memory
from fedprox.core.randomness import Purpose, generator
from fedprox.population import Population, split

__all__ = ["CLASSES", "FEATURES", "synthetic", "synthetic_iid"]

FEATURES = 60
CLASSES = 10


def synthetic(alpha: float, beta: float, devices: int = 30, seed: int = 0, *, test_share: float = 0.2) -> Population:
    """Return Synthetic(alpha, beta), with alpha and beta as standard deviations.

    >>> synthetic(1.0, 1.0).devices
    30
    """
    _check_size(devices)

    def model_and_mean(random: np.random.Generator) -> tuple[NDArray[np.float64], ...]:
        u, b = random.normal(0, alpha), random.normal(0, beta)
        mean = random.normal(b, 1, FEATURES)
        return random.normal(u, 1, (CLASSES, FEATURES)), random.normal(u, 1, CLASSES), mean

    samples = []
    for device in range(devices):
        random = generator(seed, Purpose.SYNTHETIC, device=device)
        size = _size(random)
        samples.append(_draw(random, size, *model_and_mean(random)))
    return _population(samples, seed, test_share)


def synthetic_iid(devices: int = 30, seed: int = 0, *, test_share: float = 0.2) -> Population:
    """Return Synthetic IID: one model and one input distribution for all devices."""
    _check_size(devices)
    shared = generator(seed, Purpose.SYNTHETIC_SHARED)
    weight, bias = shared.normal(0, 1, (CLASSES, FEATURES)), shared.normal(0, 1, CLASSES)
    samples = []
    for device in range(devices):
        random = generator(seed, Purpose.SYNTHETIC, device=device)
        samples.append(_draw(random, _size(random), weight, bias, np.zeros(FEATURES)))
    return _population(samples, seed, test_share)


def _check_size(devices: int) -> None:
    """Refuse a number of devices whose samples cannot fit into memory, before any is drawn."""
    samples = math.exp(4 + 2) + 50  # the mean of int(lognormal(4, 2)) + 50
    expected = devices * samples * FEATURES * 4 * 2  # single precision, and a second copy while it is assembled
    if (there := total_memory()) is not None and expected > there:
        raise ConfigError(
            f"`data.devices` must be a number whose samples fit into memory; got {devices}, for which about "
            f"{expected / 1e9:.3g} GB are needed, and this machine has {there / 1e9:.3g} GB"
        )


def _size(random: np.random.Generator) -> int:
    return int(random.lognormal(4, 2)) + 50


def _draw(
    random: np.random.Generator,
    size: int,
    weight: NDArray[np.float64],
    bias: NDArray[np.float64],
    mean: NDArray[np.float64],
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    deviation = np.arange(1, FEATURES + 1) ** -0.6  # the root of Sigma_jj = j^-1.2
    x = random.normal(mean, deviation, (size, FEATURES))
    y = np.argmax(x @ weight.T + bias, axis=1)  # softmax does not change the order
    return x.astype(np.float32), y


def _population(
    samples: list[tuple[NDArray[np.float32], NDArray[np.int64]]], seed: int, test_share: float
) -> Population:
    offsets = np.cumsum([0, *(len(y) for _, y in samples)])
    x, y = (np.concatenate(part) for part in zip(*samples, strict=True))
    return Population.from_split(x, y, offsets, split(offsets, seed, test_share), classes=CLASSES)
