"""Fashion-MNIST (Xiao et al., 2017): 60,000 training and 10,000 test images of 28 x 28 pixels in ten classes.

The four idx files have the names of MNIST's. Images become (28, 28) numbers, standardised: (x - mean) / std over all
pixels of the training images. The data has no devices of its own: it is written as one device, and `data.partition`
divides it when it is loaded.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedprox.data.checksums import digests
from fedprox.data.mnist import read_images
from fedprox.data.pooled import standardised, write_pooled

__all__ = ["prepare"]


def prepare(files: Mapping[str, Path], out: Path, seed: int = 0) -> None:
    """Write the pooled population from the four original files (by their names) to the folder `out`."""
    (images, labels), (test_images, test_labels) = (read_images(files, part) for part in ("train", "t10k"))
    about: dict[str, Any] = {"data": "fashion_mnist", "files": sorted(path.name for path in files.values())}
    about["sha256"] = digests(files.values())
    x, x_test = standardised(images, test_images, axes=(0, 1, 2))
    write_pooled(out, (x, labels), (x_test, test_labels), classes=10, about=about)
