"""The population on disk: a folder of flat columns that is opened without being read.

    manifest.json                                  what is in the folder: schema, checksums, where it came from
    train_x.npy  train_y.npy  train_offsets.npy    the samples of all devices, one after another
    test_x.npy   test_y.npy   test_offsets.npy
    names.npy    name_offsets.npy                  the devices' names in UTF-8, one after another
    extra_NAME.npy                                 arrays that belong to the data as a whole

Each column is an ordinary `.npy` file whose data begin at a multiple of 64 bytes, so that NumPy can map it and JAX can
read it in place: memory is used only for the devices that take part. A folder is written in one pass, a block of
devices at a time, under a temporary name, and renamed when it is complete. Opening checks that every column has the
size stated in the manifest, the offsets, the extra arrays and the manifest itself; samples and labels are checked in
parts before a round or a measurement uses them, names when they are requested; `verify` reads everything and compares
its checksums.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedprox.core.errors import DataError
from fedprox.population import Population, Samples
from fedprox.population.column_parts import ColumnParts

__all__ = ["FORMAT", "VERSION", "manifest_digest", "open_population", "read_manifest", "verify_population"]

Array = NDArray[Any]
FORMAT, VERSION = "fedprox-population", 2
_WITHOUT_DIGEST = 1  # the previous version, which can still be read
_BLOCK = 64 << 20  # bytes read at once
_DATA = ("train_x", "train_y", "test_x", "test_y")


class _Names(Sequence[str]):
    """The names of all devices, decoded one by one on request."""

    def __init__(self, text: Array, offsets: Array, parts: ColumnParts | None) -> None:
        self._text, self._offsets, self._parts = text, offsets, parts

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __getitem__(self, device: Any) -> Any:
        if isinstance(device, slice):
            return [self[index] for index in range(*device.indices(len(self)))]
        index = int(device) + (len(self) if device < 0 else 0)
        if not 0 <= index < len(self):
            raise IndexError(f"there are {len(self)} devices; got {device}")
        begin, end = int(self._offsets[index]), int(self._offsets[index + 1])
        if self._parts is not None:
            self._parts.check(begin, end)
        return bytes(self._text[begin:end]).decode()


def open_population(path: str | Path, *, verify: bool = False) -> Population:
    """Open a population folder without reading its data; with `verify`, read them all and check them first."""
    folder = Path(path)
    while True:
        with _held(folder) as is_in_place:
            try:
                population = _opened(folder, verify)
            except DataError:
                if is_in_place():
                    raise
            else:
                if is_in_place():
                    return population
        # the folder was replaced by another while it was opened


@contextlib.contextmanager
def _held(folder: Path) -> Iterator[Callable[[], bool]]:
    """Yield a function that tells whether the same folder is still there.

    The folder stays open meanwhile, where the system opens folders: a new one cannot be given its inode number.
    """
    try:
        opened = os.open(folder, os.O_RDONLY | getattr(os, "O_DIRECTORY", 0))
    except (OSError, ValueError):
        opened = None
    try:
        before = _identity(folder)
        yield lambda: _identity(folder) == before
    finally:
        if opened is not None:
            os.close(opened)


def _identity(folder: Path) -> tuple[int, int] | None:
    try:
        found = folder.stat()
    except (OSError, ValueError):
        return None
    return found.st_dev, found.st_ino


def _opened(folder: Path, verify: bool) -> Population:
    manifest = read_manifest(folder)
    if verify:
        verify_population(folder)
    columns = {name: _mapped(folder, name, schema) for name, schema in manifest["columns"].items()}
    for name, schema in manifest["columns"].items():
        if name in ("train_offsets", "test_offsets", "name_offsets"):
            _check_offsets(folder, name, columns[name], schema)
        elif name.startswith("extra_") and "parts" in schema:  # the entire column is used
            ColumnParts(folder / f"{name}.npy", columns[name], schema).check(0, len(columns[name]))
    try:
        train, test = (
            Samples(columns[f"{part}_x"], columns[f"{part}_y"], columns[f"{part}_offsets"])
            for part in ("train", "test")
        )
        schema = manifest["columns"]["names"]
        parts = ColumnParts(folder / "names.npy", columns["names"], schema) if "parts" in schema else None
        names = _Names(columns["names"], columns["name_offsets"], parts)
    except KeyError as error:
        raise DataError(f"{folder}/manifest.json must list the column {error}") from None
    extras = {name.removeprefix("extra_"): column for name, column in columns.items() if name.startswith("extra_")}
    try:
        classes = int(manifest["classes"])
        checked = {
            name: ColumnParts(folder / f"{name}.npy", columns[name], schema, classes if name.endswith("_y") else 0)
            for name, schema in manifest["columns"].items()
            if name in _DATA and "parts" in schema
        }
        labels = tuple(manifest["labels"]) if manifest.get("labels") is not None else None
        return Population(train, test, classes, names, extras, str(folder.absolute()), checked, labels)
    except DataError as error:
        raise DataError(f"{folder}: {error}") from None


def read_manifest(path: str | Path) -> dict[str, Any]:
    """Read and check the manifest of a population folder."""
    file = Path(path) / "manifest.json"
    try:
        manifest = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DataError(f"{path} must be a population folder; it has no manifest.json") from None
    except (OSError, ValueError) as error:
        raise DataError(f"{file} is not a readable manifest: {error}") from None
    known = isinstance(manifest, dict) and manifest.get("format") == FORMAT
    if not known or not {"classes", "columns", "devices"} <= set(manifest):
        raise DataError(f"{file} must be the manifest of a population (`format` {FORMAT!r}, devices, classes, columns)")
    if manifest.get("version") not in (_WITHOUT_DIGEST, VERSION):
        raise DataError(f"{file} must have version {VERSION}; got {manifest.get('version')!r}")
    has_digest = manifest["version"] == VERSION or "sha256" in manifest
    if has_digest and manifest.get("sha256") != manifest_digest(manifest):
        raise DataError(f"{file} is damaged: it does not match the digest that it was written with")
    return manifest


def manifest_digest(manifest: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a manifest without its entry `sha256`."""
    rest = {key: value for key, value in manifest.items() if key != "sha256"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def verify_population(path: str | Path) -> None:
    """Read every column and compare its checksum with the manifest's."""
    folder = Path(path)
    for name, schema in read_manifest(folder)["columns"].items():
        _mapped(folder, name, schema)
        found = hashlib.sha256()
        with (folder / f"{name}.npy").open("rb") as file:
            file.seek(schema["begins"])
            while block := file.read(_BLOCK):
                found.update(block)
        if found.hexdigest() != schema["sha256"]:
            raise DataError(
                f"{folder}/{name}.npy must have the checksum {schema['sha256'][:12]}… of the manifest; "
                f"got {found.hexdigest()[:12]}…: the file has changed, prepare the data again"
            )


def _check_offsets(folder: Path, name: str, offsets: Array, schema: Mapping[str, Any]) -> None:
    """Check the offsets, which are small and all used at once."""
    file = folder / f"{name}.npy"
    if offsets.ndim != 1 or offsets.dtype != np.int64 or not len(offsets):
        raise DataError(f"{file} must be a list of 64-bit integers; got {offsets.dtype} of shape {offsets.shape}")
    if "parts" in schema:
        ColumnParts(file, offsets, schema).check(0, len(offsets))
    if offsets[0] != 0 or (np.diff(offsets) < 0).any():
        raise DataError(f"{file} must begin at 0 and never decrease; it begins at {offsets[0]}")


def _mapped(folder: Path, name: str, schema: Mapping[str, Any]) -> Array:
    """Return a column as a read-only array over the file's pages."""
    file = folder / f"{name}.npy"
    if Path(name).name != name:
        raise DataError(f"{folder}/manifest.json must name columns without folders; got {name!r}")
    try:
        dtype, shape, begins = np.dtype(schema["dtype"]), tuple(schema["shape"]), int(schema["begins"])
        size = file.stat().st_size
    except FileNotFoundError:
        raise DataError(f"{file} is missing") from None
    except (KeyError, TypeError, ValueError):
        raise DataError(f"{folder}/manifest.json must give dtype, shape and begins of {name}") from None
    expected = begins + int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    if size != expected:
        raise DataError(
            f"{file} must have {expected} bytes, as the manifest says; got {size}: it is cut off or changed"
        )
    if dtype.hasobject:
        raise DataError(f"{folder}/manifest.json must not name Python objects; {name} has {dtype}")
    if 0 in shape:
        return np.zeros(shape, dtype)
    return np.asarray(np.memmap(file, dtype, "r", begins, shape))
