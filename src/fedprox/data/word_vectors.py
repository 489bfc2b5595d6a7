"""GloVe word vectors, restricted to the words of a text.

Word 0 is padding and has the zero vector; word 1 stands for every word without a vector and has the mean of all that
were read; the others follow in the order of the file.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedprox.core.errors import DataError
from fedprox.core.reading import check_archive, reading
from fedprox.data.text_files import open_bytes

__all__ = ["PADDING", "UNKNOWN", "read_vectors"]

PADDING, UNKNOWN = 0, 1


def read_vectors(file: Path, wanted: set[str]) -> tuple[dict[str, int], NDArray[np.float32]]:
    """Return the number of each wanted word that the file has, and the vectors (words, dimensions).

    Args:
      file: GloVe's text (`word 0.1 -0.2 ...`), its zip archive (the longest vectors in it), or an npz with `words`
        and `vectors`.
    """
    pairs = _from_npz(file, wanted) if file.suffix == ".npz" else _from_text(file, wanted)
    numbers: dict[str, int] = {}
    vectors = []
    for word, vector in pairs:
        if word not in numbers:
            numbers[word] = len(numbers) + 2
            vectors.append(vector)
    if not vectors:
        raise DataError(f"{file} must have a vector for at least one word of the data; found none")
    matrix = np.array(vectors, np.float32)
    if not np.isfinite(matrix).all():
        word = list(numbers)[int(np.isfinite(matrix).all(axis=1).argmin())]
        raise DataError(f"{file} must have finite numbers; the vector of {word!r} does not")
    return numbers, np.concatenate([np.zeros_like(matrix[:1]), matrix.mean(axis=0, keepdims=True), matrix])


def _from_npz(file: Path, wanted: set[str]) -> Iterator[tuple[str, NDArray[Any]]]:
    with reading(file, "a readable npz file with words and vectors"):
        with zipfile.ZipFile(file) as archive:
            check_archive(archive, str(file))
        with np.load(file, allow_pickle=False) as arrays:
            words, vectors = arrays["words"], arrays["vectors"]
        if words.ndim != 1 or vectors.ndim != 2 or len(words) != len(vectors) or vectors.dtype.kind != "f":
            raise DataError(f"{file} must have `words` (n,) and `vectors` (n, dimensions) of floating-point numbers")
    yield from ((word, vectors[i]) for i, word in enumerate(words.tolist()) if word in wanted)


def _from_text(file: Path, wanted: set[str]) -> Iterator[tuple[str, NDArray[Any]]]:
    size = 0
    with open_bytes(file, "300d.txt") as lines:
        for row, line in enumerate(lines, start=1):
            word, _, numbers = line.partition(b" ")
            try:
                if (text := word.decode()) not in wanted:
                    continue
                vector = np.array(numbers.split(), np.float32)
            except ValueError:  # also what is not UTF-8
                raise DataError(f"{file} must have a word and its numbers in every row; row {row} does not") from None
            size = size or len(vector)
            if len(vector) != size or size == 0:
                raise DataError(f"{file} must have {size} numbers in every row; row {row} has {len(vector)}")
            yield text, vector
