"""CIFAR-10 from its official binary files: 50,000 training and 10,000 test images of 32 x 32 pixels in ten classes.

A file holds rows of 3,073 bytes: a label, then 1,024 bytes each of red, green and blue. The files are taken from
`cifar-10-binary.tar.gz` or from a folder, gzipped or not. Images become (32, 32, 3) numbers, standardised per channel:
(x - mean) / std over the pixels of all training images.

The data has no devices of its own. It is written as one device, and `data.partition` divides it when it is loaded.
"""

from __future__ import annotations

import gzip
import io
import tarfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from fedprox.core.errors import DataError
from fedprox.core.reading import Bounded, reading
from fedprox.data.checksums import digests
from fedprox.data.pooled import standardised, write_pooled

__all__ = ["BATCHES", "prepare", "read_batch"]

BATCHES = tuple(f"data_batch_{number}.bin" for number in range(1, 6))
_TEST = "test_batch.bin"
_CLASSES, _ROW, _ROWS = 10, 3073, 10_000  # classes; bytes of a row and rows of a complete file
_UNPACKED = 1 << 30  # bytes that an archive may have; the official one has 184 million

Batch = tuple[NDArray[np.uint8], NDArray[np.uint8]]


def prepare(files: Mapping[str, Path], out: Path, seed: int = 0) -> None:
    """Write the pooled population from the archive, or from the files beside the first one, to the folder `out`."""
    found = files["CIFAR-10"]
    batches = dict(_archived(found) if found.name.endswith(".tar.gz") else _beside(found))
    if _TEST not in batches:
        raise DataError(f"{found} must come with {_TEST}, the test images; it is missing")
    train = [batches[name] for name in BATCHES if name in batches]
    if not train:
        raise DataError(f"{found} must hold {BATCHES[0]} to {BATCHES[-1]}; it has none of them")
    images, labels = (np.concatenate(parts) for parts in zip(*train, strict=True))
    test_images, test_labels = batches[_TEST]
    about: dict[str, Any] = {"data": "cifar10", "files": [found.name], "sha256": digests([found])}
    if len(images) < 50_000 or len(test_images) < _ROWS:
        missing = [name for name in BATCHES if name not in batches]
        about["part"] = f"{len(images):,} of 50,000 training and {len(test_images):,} of 10,000 test images" + (
            f"; there is no {', '.join(missing)}" if missing else ""
        )
    x, x_test = standardised(images, test_images, axes=(0, 1, 2))
    write_pooled(out, (x, labels), (x_test, test_labels), classes=_CLASSES, about=about)


def read_batch(file: IO[bytes], name: str) -> Batch:
    """Return the images (rows, 32, 32, 3) and labels of one file, gzipped or not; errors call it `name`."""
    most = _ROW * _ROWS + 1
    content = file.read(most)
    if content[:2] == b"\x1f\x8b":
        try:
            content = gzip.GzipFile(fileobj=io.BytesIO(content)).read(most)
        except (OSError, EOFError, zlib.error) as error:
            raise DataError(f"{name} is not a complete gzip file: {error}") from None
    if not content or len(content) % _ROW or len(content) == most:
        size = f"more than {most - 1:,}" if len(content) == most else f"{len(content):,}"
        raise DataError(
            f"{name} must have 1 to {_ROWS:,} rows of {_ROW:,} bytes, a label and {_ROW - 1:,} pixels; got {size} "
            f"bytes: it is cut off, or not a binary file of CIFAR-10"
        )
    rows = np.frombuffer(content, np.uint8).reshape(-1, _ROW)
    labels = rows[:, 0]
    if labels.max() >= _CLASSES:
        row = int(labels.argmax())
        raise DataError(f"{name}: labels must be below {_CLASSES}; row {row} has {labels[row]}")
    return rows[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1), labels


def _archived(path: Path) -> Iterator[tuple[str, Batch]]:
    with (
        reading(path, "a complete tar.gz file"),
        gzip.open(path) as stream,
        tarfile.open(fileobj=Bounded(stream, str(path), _UNPACKED), mode="r|") as archive,
    ):
        for member in archive:
            name = Path(member.name).name
            if name in (*BATCHES, _TEST) and member.isreg() and (file := archive.extractfile(member)) is not None:
                yield name, read_batch(file, f"{path}: {member.name}")


def _beside(first: Path) -> Iterator[tuple[str, Batch]]:
    for name in (*BATCHES, _TEST):
        for path in (first.with_name(name), first.with_name(f"{name}.gz")):
            if path.is_file():
                try:
                    with path.open("rb") as file:
                        yield name, read_batch(file, str(path))
                except OSError as error:
                    raise DataError(f"{path} cannot be read: {error.strerror or error}") from None
                break
