"""FEMNIST as in the paper: lower case a to j of EMNIST, 200 devices, five letters each (Appendix C.1).

Up to 4,000 images of each letter are used. Device u has the letters u, ..., u + 4 modulo 10 in equal parts, and
int(lognormal(4, 1)) + 5 samples. That requires more images of the rarer letters than exist, so devices share them: each
letter's images are shuffled and dealt in turn, starting over when they run out, so that no device gets one
twice and all are used about equally often. The images of a letter are divided 80/20 into training and test images
before any is dealt, so no test image is used for training on any device.

A pixel is 1 for paper and 0 for full ink, as in the files the paper used.
"""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedprox.core.errors import DataError
from fedprox.core.randomness import Purpose, generator
from fedprox.core.reading import check_archive, reading
from fedprox.data.checksums import digests
from fedprox.data.idx import parse_idx
from fedprox.data.table1 import PAPER, nearest_draw
from fedprox.population.writer import PopulationWriter

__all__ = ["prepare", "read_letters", "sizes"]

DEVICES, LETTERS, PER_DEVICE, MOST = 200, 10, 5, 4000
_FIRST_LOWER_CASE = 36  # EMNIST ByClass: digits 0-9, upper case 10-35, lower case 36-61


def prepare(files: Mapping[str, Path], out: Path, seed: int = 0) -> None:
    """Write the population from EMNIST's archive, or an npz of its letters, to the folder `out`."""
    (file,) = files.values()
    images, labels = read_letters(file)
    x = 1 - images.reshape(len(images), -1).astype(np.float32) / 255
    attempt = nearest_draw(PAPER["femnist"], lambda attempt: sizes(seed, attempt))
    hands = [_Dealer(np.flatnonzero(labels == letter), seed, letter) for letter in range(LETTERS)]
    about = {"data": "femnist", "seed": seed, "draw": attempt, "files": [file.name], "sha256": digests([file])}
    with PopulationWriter(out, classes=LETTERS, about=about) as writer:
        for device, size in enumerate(sizes(seed, attempt)):
            tests = int(size) // 5
            parts = []
            for part, count in (("train", int(size) - tests), ("test", tests)):
                shares = np.diff(np.arange(PER_DEVICE + 1) * count // PER_DEVICE)  # as equal as integers allow
                letters = [(device + place) % LETTERS for place in range(PER_DEVICE)]
                rows = np.concatenate([hands[a].deal(part, n) for a, n in zip(letters, shares, strict=True)])
                parts.append((x[rows], labels[rows]))
            writer.add(str(device), *parts)
        writer.about["images"] = {part: int(sum(len(hand.pool[part]) for hand in hands)) for part in ("train", "test")}


def sizes(seed: int, attempt: int) -> NDArray[np.int64]:
    """Return how many samples each device has: int(lognormal(4, 1)) + 5."""
    return generator(seed, Purpose.PARTITION, round=attempt + 1).lognormal(4, 1, DEVICES).astype(np.int64) + 5


def read_letters(file: Path) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return the images (n, 28, 28) of a to j, upright with ink 255, and their labels 0 to 9."""
    with reading(file, "a readable archive of EMNIST"):
        with zipfile.ZipFile(file) as archive:
            check_archive(archive, str(file))
        return _from_npz(file) if file.suffix == ".npz" else _from_archive(file)


class _Dealer:
    """Deals the images of one letter, training and test images separately."""

    def __init__(self, rows: NDArray[np.int64], seed: int, letter: int) -> None:
        rows = generator(seed, Purpose.PARTITION, device=letter).permutation(rows)[:MOST]
        tests = len(rows) // 5
        if tests == 0:
            raise DataError(f"EMNIST must have at least 5 images of {chr(ord('a') + letter)!r}; got {len(rows)}")
        self.pool = {"test": rows[:tests], "train": rows[tests:]}
        self._next = {"test": 0, "train": 0}

    def deal(self, part: str, count: int) -> NDArray[np.int64]:
        """Return the next `count` images, each at most once: a device cannot have more than there are."""
        pool = self.pool[part]
        rows = pool[(self._next[part] + np.arange(min(count, len(pool)))) % len(pool)]
        self._next[part] += len(rows)
        return rows


def _from_npz(file: Path) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    with np.load(file, allow_pickle=False) as arrays:
        parts = [
            (arrays[f"{kind}images"], arrays[f"{kind}labels"]) for kind in ("", "extra_") if f"{kind}labels" in arrays
        ]
    images, labels = (np.concatenate(part) for part in zip(*parts, strict=True))
    if len(images) != len(labels) or (len(labels) and labels.max() >= LETTERS):
        raise DataError(f"{file} must hold images and as many labels from 0 to {LETTERS - 1}")
    return images, labels.astype(np.int64)


def _from_archive(file: Path) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    found: list[tuple[NDArray[np.uint8], NDArray[np.int64]]] = []
    with zipfile.ZipFile(file) as archive:
        for part in ("train", "test"):
            arrays = []
            for kind, rank in (("images-idx3", 3), ("labels-idx1", 1)):
                name = f"gzip/emnist-byclass-{part}-{kind}-ubyte.gz"
                with archive.open(name) as member:
                    arrays.append(parse_idx(member, rank, f"{file}: {name}"))
            letter = arrays[1].astype(np.int64) - _FIRST_LOWER_CASE
            chosen = (letter >= 0) & (letter < LETTERS)
            found.append((arrays[0][chosen].transpose(0, 2, 1), letter[chosen]))  # EMNIST stores columns first
    images, labels = (np.concatenate(part) for part in zip(*found, strict=True))
    return images, labels
