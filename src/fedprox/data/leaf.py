"""The LEAF folder: `train/*.json` and `test/*.json` (or `*.json.gz`), one object per file.

    {"users": ["f_01", ...], "num_samples": [12, ...], "user_data": {"f_01": {"x": [[...], ...], "y": [...]}, ...}}

A user with training data is a device; one that appears only in the test files is left out with a warning, since it has
nothing to train on. A user may be spread over several files. Examples are numbers, or texts of one length whose label
is the next character, as in LEAF's Shakespeare; those become codes in the alphabet of that data set. (LEAF drops test
windows that overlap with training text but does not update `num_samples`, which may be too large for texts.)

Files are read user by user, so that memory holds the numbers of all users and the text of one.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedprox.core.errors import DataError
from fedprox.core.reading import reading
from fedprox.data.json_stream import Node, open_json
from fedprox.data.shakespeare import ALPHABET, encode
from fedprox.population import Population

__all__ = ["read_leaf"]

Rows = tuple[NDArray[Any], NDArray[Any]]


def read_leaf(path: str | Path) -> Population:
    """Read a LEAF folder into a population, users in the order of their names."""
    with reading(path, "a readable LEAF folder"):
        return _read_folder(Path(path))


def _read_folder(folder: Path) -> Population:
    train, test = _read_part(folder, "train"), _read_part(folder, "test")
    if untrained := sorted(set(test) - set(train)):
        warnings.warn(
            f"{folder}: {len(untrained)} users have test data but no training data and are left out, "
            f"the first is {untrained[0]!r}",
            stacklevel=4,
        )
    names = sorted(train)
    kinds = {(rows[0].shape[1:], rows[0].dtype.kind) for part in (train, test) for rows in part.values()}
    if len(kinds) > 1:
        raise DataError(f"{folder}: all examples must have one shape; got {sorted(shape for shape, _ in kinds)}")
    total = sum(len(part[name][1]) for part in (train, test) for name in names if name in part)
    first = train[names[0]][0]
    x, y = np.empty((total, *first.shape[1:]), first.dtype), np.empty(total, np.int32)
    is_test, offsets, row = np.zeros(total, bool), [0], 0
    for name in names:
        for part in (train, test):
            rows = part.pop(name, None)  # released as soon as it is copied
            if rows is not None:
                end = row + len(rows[1])
                x[row:end], y[row:end], is_test[row:end] = *rows, part is test
                row = end
        offsets.append(row)
    classes = len(ALPHABET) if x.dtype == np.uint8 else None
    return Population.from_split(x, y, np.array(offsets), is_test, names=names, classes=classes)


def _read_part(folder: Path, part: str) -> dict[str, Rows]:
    files = sorted([*(folder / part).glob("*.json"), *(folder / part).glob("*.json.gz")])
    if not files:
        raise DataError(f"{folder / part} must hold LEAF files (*.json); found none")
    users: dict[str, list[Rows]] = {}
    for file in files:
        for name, rows in _read_file(file).items():
            users.setdefault(name, []).append(rows)
    joined = {}
    for name, parts in users.items():
        try:
            x, y = (np.concatenate(arrays) if len(arrays) > 1 else arrays[0] for arrays in zip(*parts, strict=True))
        except ValueError:
            raise DataError(f"{folder / part}: user {name!r} has examples of different shapes") from None
        if len(y):
            joined[name] = (x, y)
    if not joined:
        raise DataError(f"{folder / part}: no user has any sample")
    return joined


def _read_file(file: Path) -> dict[str, Rows]:
    """Return the samples of every user of one file, in the order of `users`."""
    found: dict[str, Rows] = {}
    users: Any = None
    counts: Any = None
    has_data = False
    with open_json(file) as root:
        for key, value in root.members() if root.is_object else ():
            if key == "users":
                users = value.value()
            elif key == "num_samples":
                counts = value.value()
            elif key == "user_data" and value.is_object:
                has_data = True
                for name, data in value.members("user"):
                    if name in found:
                        raise DataError(f"{file}: `user_data` must have every user once; {name!r} appears twice")
                    found[name] = _user(file, name, data)
    if not isinstance(users, list) or not has_data:
        raise DataError(f"{file} must be a LEAF object with `users` and `user_data`")
    return _in_order(file, users, counts, found)


def _in_order(file: Path, users: list[Any], counts: Any, found: dict[str, Rows]) -> dict[str, Rows]:
    """Return the samples in the order of `users`, after checking users and counts against what was found."""
    counts = counts if isinstance(counts, list) else [None] * len(users)
    if len(counts) != len(users):
        raise DataError(f"{file}: `num_samples` has {len(counts)} entries for {len(users)} users")
    result = {}
    for name, count in zip(map(str, users), counts, strict=True):
        if name in result:
            raise DataError(f"{file}: `users` must name every user once; {name!r} appears twice")
        if name not in found:
            raise DataError(f"{file}: user {name!r} must have `x` and `y` in `user_data`")
        rows = result[name] = found.pop(name)
        dropped = rows[0].dtype == np.uint8 and isinstance(count, int) and count > len(rows[1])
        if count is not None and count != len(rows[1]) and not dropped:
            raise DataError(f"{file}: user {name!r} has {len(rows[1])} samples, but `num_samples` says {count}")
    if found:
        raise DataError(f"{file}: `users` must name every user of `user_data`; {next(iter(found))!r} is missing")
    return result


def _user(file: Path, name: str, node: Node) -> Rows:
    data = node.value()
    if not isinstance(data, dict) or not {"x", "y"} <= set(data):
        raise DataError(f"{file}: user {name!r} must have `x` and `y` in `user_data`")
    x, y = data["x"], data["y"]
    where = f"{file}: user {name!r}"
    if not isinstance(x, list) or not isinstance(y, list) or len(x) != len(y):
        lengths = [len(part) if isinstance(part, list) else type(part).__name__ for part in (x, y)]
        raise DataError(f"{where} must have lists x and y of one length; got {lengths[0]} and {lengths[1]}")
    return _characters(where, x, y) if x and isinstance(x[0], str) else _numbers(where, x, y)


def _characters(where: str, x: list[Any], y: list[Any]) -> Rows:
    length = len(x[0])
    for row, (text, label) in enumerate(zip(x, y, strict=True)):
        if not isinstance(text, str) or len(text) != length:
            raise DataError(f"{where} must have texts of {length} characters; row {row} does not")
        if not isinstance(label, str) or len(label) != 1:
            raise DataError(f"{where} must have the next character as label; row {row} has {label!r}")
    codes, labels = encode("".join(x)), encode("".join(y))
    if len(codes) != length * len(x) or len(labels) != len(y):
        raise DataError(f"{where} must have texts of plain characters; some become several without their accents")
    return codes.reshape(len(x), length), labels.astype(np.int32)


def _numbers(where: str, x: list[Any], y: list[Any]) -> Rows:
    features = _array(x, np.float32, f"{where} must have examples that are numbers, all of one shape")
    labels = _array(y, np.float64, f"{where} must have labels that are numbers")
    if labels.ndim != 1:
        raise DataError(f"{where} must have one label for each example; got labels of shape {labels.shape[1:]}")
    if len(x) and (features.ndim < 2 or features[0].size == 0):
        raise DataError(f"{where} must have examples that are lists of at least one number; got {x[0]!r} in row 0")
    if not np.isfinite(features).all():
        bad = int(np.isfinite(features).reshape(len(x), -1).all(axis=1).argmin())
        raise DataError(f"{where} has a value of x that is not a finite number (row {bad})")
    wrong = (labels < 0) | (labels != np.floor(labels)) | ~np.isfinite(labels)
    if wrong.any():
        bad = int(wrong.argmax())
        raise DataError(f"{where} must have labels that are integers >= 0; row {bad} has {y[bad]!r}")
    if (labels >= _MOST_CLASSES).any():
        bad = int(labels.argmax())
        raise DataError(f"{where} must have labels below {_MOST_CLASSES}; row {bad} has {y[bad]!r}")
    return features, labels.astype(np.int32)


def _array(values: list[Any], kind: type[np.floating[Any]], rule: str) -> NDArray[Any]:
    """Return JSON's numbers as an array; strings, which NumPy would read as numbers, are refused."""
    try:
        with np.errstate(over="ignore"):  # what becomes infinite is refused with its row
            array = np.asarray(values, kind)
    except OverflowError:
        raise DataError(f"{rule}; one is too large for a floating-point number") from None
    except (ValueError, TypeError):
        raise DataError(rule) from None
    if other := _types(values) - {int, float, type(None)}:  # null is not a number, and NumPy says so
        raise DataError(f"{rule}; got {_JSON_NAMES.get(other.pop(), 'another type')}")
    return array


def _types(values: list[Any]) -> set[type]:
    """Return the types of what is in nested lists."""
    found = set(map(type, values))
    if list in found:
        found = (found - {list}).union(*(_types(value) for value in values if type(value) is list))
    return found


_MOST_CLASSES = 1 << 20  # a label beyond it is a mistake; a model would have a row of parameters for each below
_JSON_NAMES = {str: "a text", bool: "true or false"}
