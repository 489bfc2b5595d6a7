"""Writing a population folder (`fedprox.population.folder`) in one pass, a few devices at a time."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from fedprox.core.errors import DataError
from fedprox.core.files import write_atomically
from fedprox.core.folders import NewFolder
from fedprox.population import Population, Samples, checked_rows
from fedprox.population.column_parts import PartDigests
from fedprox.population.folder import FORMAT, VERSION, manifest_digest

__all__ = ["PopulationWriter", "save_population"]

Array = NDArray[Any]
_BLOCK = 64 << 20  # bytes of a population that are held at once while it is copied
_MOST_NAMED = 10  # how many devices that were left out are named in the manifest


class PopulationWriter:
    """Writes a population folder, a few devices at a time.

        with PopulationWriter("folder", classes=10) as writer:
            writer.add("alice", train=(x, y), test=(x_test, y_test))

    A device without training samples is left out and counted in `left_out`. When the block ends without an error, the
    folder appears under its name (an older one is replaced); after an error nothing is left of it.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        classes: int | None = None,
        extras: Mapping[str, Array] | None = None,
        about: Mapping[str, Any] | None = None,
        labels: Sequence[Any] | None = None,
    ) -> None:
        self.path = Path(path)
        self._labels = None if labels is None else list(labels)
        self.about = dict(about or {})
        self.devices = 0
        self.without_test = 0
        self.left_out: list[str] = []
        self.left_out_count = 0
        self._classes = classes
        self._most = -1  # the largest label
        self._extras = dict(extras or {})
        self._new: NewFolder | None = None
        self._columns: dict[str, _Column] = {}

    def __enter__(self) -> PopulationWriter:
        if self.path.exists() and not (self.path / "manifest.json").exists() and any(self.path.iterdir()):
            raise DataError(f"{self.path} must be empty or a population folder; it holds other files")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._new = NewFolder(self.path)
            for name in ("train_offsets", "test_offsets", "name_offsets"):
                self._column(name, np.zeros(1, np.int64))
        except OSError as error:
            raise DataError(f"{self.path} cannot be written: {error.strerror}") from None
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self._finish()
        finally:
            for column in self._columns.values():
                column.file.close()
            if self._new is not None:
                self._new.discard()

    def add(self, name: str, train: tuple[Array, Array], test: tuple[Array, Array] | None = None) -> None:
        """Add one device: its name and its training and test samples (x, y)."""
        x, y = (np.asarray(part) for part in train)
        empty = (x[:0], y[:0])
        x_test, y_test = (np.asarray(part) for part in test) if test is not None and len(test[1]) else empty
        self.add_block(
            [name],
            Samples(x, y, np.array([0, len(y)])),
            Samples(x_test, y_test, np.array([0, len(y_test)])),
        )

    def add_block(self, names: Sequence[str], train: Samples, test: Samples) -> None:
        """Add several devices whose samples follow one another."""
        sizes, tests = np.diff(train.offsets), np.diff(test.offsets)
        if not len(names) == len(sizes) == len(tests):
            raise DataError(
                f"names, train and test must have the same number of devices; "
                f"got {len(names)}, {len(sizes)}, {len(tests)}"
            )
        if (sizes == 0).any():
            self._add_trained(names, train, test, sizes > 0)
            return
        self.devices += len(sizes)
        self.without_test += int((tests == 0).sum())
        for part, samples, counts in (("train", train, sizes), ("test", test, tests)):
            x, y = self._checked(samples, names)
            self._column(f"{part}_x", x)
            self._column(f"{part}_y", y)
            self._column(f"{part}_offsets", self._columns[f"{part}_offsets"].last + np.cumsum(counts))
        encoded = [name.encode() for name in names]
        self._column("names", np.frombuffer(b"".join(encoded), np.uint8))
        lengths = np.fromiter(map(len, encoded), np.int64, len(encoded))
        self._column("name_offsets", self._columns["name_offsets"].last + np.cumsum(lengths))

    def _add_trained(self, names: Sequence[str], train: Samples, test: Samples, trained: NDArray[np.bool_]) -> None:
        """Add the devices that have training samples, and report the others."""
        for device, name in enumerate(names):
            if trained[device]:
                self.add(name, train.of(device), test.of(device))
            else:
                self.left_out_count += 1
                self.left_out = [*self.left_out, name][:_MOST_NAMED]

    def _checked(self, samples: Samples, names: Sequence[str]) -> tuple[Array, Array]:
        x, y = checked_rows(samples.x, samples.y, samples.offsets, names, self._classes)
        if np.issubdtype(y.dtype, np.integer) and len(y):
            self._most = max(self._most, int(y.max()))
        for kind, array in (("x", x), ("y", y)):
            first = self._columns.get(f"train_{kind}")
            if first is not None and (array.shape[1:] != first.shape[1:] or array.dtype != first.dtype):
                raise DataError(
                    f"{kind} of device {names[0]} must be {first.dtype} of shape {first.shape[1:]}, as for the devices "
                    f"before it; got {array.dtype} of shape {array.shape[1:]}"
                )
        return x, y

    @property
    def _folder(self) -> Path:
        if self._new is None:
            raise DataError(f"{self.path} must be written within a with block")
        return self._new.path

    def _column(self, name: str, rows: Array) -> None:
        if name not in self._columns:
            self._columns[name] = _Column(self._folder / f"{name}.npy", rows.dtype, rows.shape[1:])
        self._columns[name].write(rows)

    def _finish(self) -> None:
        if self.devices == 0:
            raise DataError(f"{self.path}: a population must have at least one device with training samples; got none")
        for name, array in self._extras.items():
            self._column(f"extra_{name}", np.asarray(array))
        classes = self._classes if self._classes is not None else self._most + 1
        manifest: dict[str, Any] = {
            "format": FORMAT,
            "version": VERSION,
            "devices": self.devices,
            "classes": classes,
            **({} if self._labels is None else {"labels": self._labels}),
            "devices_without_test_data": self.without_test,
            "devices_left_out": {"without_training_data": self.left_out_count, "first": self.left_out},
            "columns": {name: column.finish() for name, column in self._columns.items()},
            "about": self.about,
        }
        manifest["sha256"] = manifest_digest(manifest)
        text = json.dumps(manifest, indent=2, ensure_ascii=False) + "\n"
        write_atomically(self._folder / "manifest.json", text.encode())
        if self._new is not None:
            self._new.publish()


def save_population(population: Population, path: str | Path, *, about: Mapping[str, Any] | None = None) -> Path:
    """Write a population to a folder, a block of devices at a time.

    >>> import tempfile
    >>> from fedprox.population.folder import open_population
    >>> population = Population.from_arrays(x=[[1.0], [2.0], [3.0]], y=[0, 1, 0], device=["b", "a", "b"])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     stored = open_population(save_population(population, f"{folder}/mine"))
    ...     stored.devices, stored.name(1), stored.train.size(1)
    (2, 'b', 2)
    """
    row = max(population.train.x[:1].nbytes, 1)
    rows, begin = max(_BLOCK // row, 1), 0
    offsets = population.train.offsets
    with PopulationWriter(
        path, classes=population.classes, extras=population.extras, about=about, labels=population.labels
    ) as writer:
        while begin < population.devices:
            end = max(begin + 1, int(np.searchsorted(offsets, offsets[begin] + rows, "right")) - 1)
            end = min(end, begin + 65536)
            writer.add_block(
                [population.name(device) for device in range(begin, end)],
                _part(population.train, begin, end),
                _part(population.test, begin, end),
            )
            begin = end
    return Path(path)


def _part(samples: Samples, begin: int, end: int) -> Samples:
    offsets = samples.offsets[begin : end + 1]
    rows = slice(int(offsets[0]), int(offsets[-1]))
    return Samples(samples.x[rows], samples.y[rows], offsets - offsets[0])


class _Column:
    """One `.npy` file that grows row by row; its header is rewritten when the number of rows is known."""

    def __init__(self, path: Path, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
        self.file: BinaryIO = path.open("wb")
        self.dtype, self.shape = dtype, (0, *shape)
        self.last: Any = 0
        self._hash = hashlib.sha256()
        self._parts = PartDigests()
        self._header = self.file.write(_header(dtype, self.shape))

    def write(self, rows: Array) -> None:
        if len(rows) == 0:
            return
        content = np.ascontiguousarray(rows, self.dtype)
        self.file.write(content.data)
        self._hash.update(content.data)
        self._parts.add(content.reshape(-1).view(np.uint8).data)
        self.shape = (self.shape[0] + len(rows), *self.shape[1:])
        self.last = content[-1]

    def finish(self) -> dict[str, Any]:
        header = _header(self.dtype, self.shape)
        self.file.seek(0)
        self.file.write(header)
        self.file.close()
        return {
            "dtype": self.dtype.str,
            "shape": list(self.shape),
            "begins": self._header,
            "sha256": self._hash.hexdigest(),  # of the data, without the header
            "parts": self._parts.finish(),  # of each PART bytes of them
        }


def _header(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    """Return the header of an `.npy` file. NumPy pads it so that its length does not depend on the number of rows."""
    text = io.BytesIO()
    np.lib.format.write_array_header_1_0(text, {"descr": dtype.str, "fortran_order": False, "shape": shape})
    return text.getvalue()
