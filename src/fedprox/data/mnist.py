"""MNIST as the paper divides it: 1,000 devices, two digits each, sizes after a power law (Section 5.1, Appendix C.1).

All 70,000 images are used, standardised per pixel of 0 to 255: (x - mean) / (std + 0.001). Device u has digits u and
u + 1 modulo 10. It first gets five images of each; the rest of a digit is divided over its 200 (device, digit) pairs in
proportion to lognormal(0, 2) draws, rounded down. A fifth of each device's images are test images.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedprox.core.errors import DataError
from fedprox.core.randomness import Purpose, generator
from fedprox.data.checksums import digests
from fedprox.data.idx import read_idx
from fedprox.data.table1 import PAPER, nearest_draw
from fedprox.population import split
from fedprox.population.writer import PopulationWriter

__all__ = ["prepare", "read_images", "sizes", "standardised"]

DEVICES, DIGITS, FIRST = 1000, 10, 5


def prepare(files: Mapping[str, Path], out: Path, seed: int = 0) -> None:
    """Write the population from the four original files (by their names) to the folder `out`."""
    parts = [read_images(files, part) for part in ("train", "t10k")]
    images, labels = (np.concatenate(each) for each in zip(*parts, strict=True))
    x = standardised(images.reshape(len(images), -1))
    counts = np.bincount(labels, minlength=DIGITS)
    attempt = nearest_draw(PAPER["mnist"], lambda attempt: sizes(counts, seed, attempt).sum(axis=1))
    plan = sizes(counts, seed, attempt)  # (devices, 2)
    offsets = np.concatenate([[0], np.cumsum(plan.sum(axis=1))])
    is_test = split(offsets, seed)
    order = [
        generator(seed, Purpose.PARTITION, device=digit).permutation(np.flatnonzero(labels == digit))
        for digit in range(DIGITS)
    ]
    taken = np.zeros(DIGITS, int)
    about = {
        "data": "mnist",
        "seed": seed,
        "draw": attempt,
        "pixels": "0 to 255",
        "files": sorted(path.name for path in files.values()),
        "sha256": digests(files.values()),
    }
    with PopulationWriter(out, classes=DIGITS, about=about) as writer:
        for device in range(DEVICES):
            rows = []
            for place, count in enumerate(plan[device]):
                digit = (device + place) % DIGITS
                rows.append(order[digit][taken[digit] : taken[digit] + count])
                taken[digit] += count
            mine, test = np.concatenate(rows), is_test[offsets[device] : offsets[device + 1]]
            writer.add(str(device), (x[mine[~test]], labels[mine[~test]]), (x[mine[test]], labels[mine[test]]))


def sizes(counts: NDArray[np.int64], seed: int, attempt: int) -> NDArray[np.int64]:
    """Return (devices, 2): how many images of its two digits each device gets, given the images of each digit."""
    shares = generator(seed, Purpose.PARTITION, round=attempt + 1).lognormal(0, 2, (DEVICES, 2))
    digit = (np.arange(DEVICES)[:, None] + np.arange(2)) % DIGITS  # (devices, 2)
    total = np.bincount(digit.ravel(), shares.ravel(), minlength=DIGITS)
    left = counts - FIRST * np.bincount(digit.ravel(), minlength=DIGITS)
    if left.min() < 0:
        raise DataError(f"MNIST must have at least {FIRST * 200} images of each digit; got {counts.min()} of one")
    return FIRST + np.floor(left[digit] * shares / total[digit]).astype(np.int64)


def standardised(x: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Return (x - mean) / (std + 0.001), pixel by pixel, with x from 0 to 255.

    With x in [0, 1] the 0.001 would count 255 times as much, and pixels that rarely have ink would be damped.

    >>> standardised(np.array([[0], [255]], np.uint8)).ravel().round(3)
    array([-1.,  1.], dtype=float32)
    """
    pixels = x.astype(np.float32)
    return (pixels - pixels.mean(axis=0, dtype=np.float64)).astype(np.float32) / (
        pixels.std(axis=0, dtype=np.float64) + 0.001
    ).astype(np.float32)


def read_images(files: Mapping[str, Path], part: str) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Return the images and labels of a part, `train` or `t10k`, of files by their original names."""
    image_file, label_file = files[f"{part}-images-idx3-ubyte.gz"], files[f"{part}-labels-idx1-ubyte.gz"]
    images, labels = read_idx(image_file, 3), read_idx(label_file, 1)
    if len(images) != len(labels):
        raise DataError(
            f"{image_file} and {label_file} must have as many images as labels; got {len(images)} and {len(labels)}"
        )
    if labels.max(initial=0) >= DIGITS:
        row = int(labels.argmax())
        raise DataError(f"{label_file}: labels must be below {DIGITS}; row {row} has {labels[row]}")
    return images, labels
