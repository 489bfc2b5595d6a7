"""The LEAF folder: `train/*.json` and `test/*.json`, one object per file.

    {"users": ["f_01", ...], "num_samples": [12, ...], "user_data": {"f_01": {"x": [[...], ...], "y": [...]}, ...}}

A user with training data is a device; one that appears only in the test files is refused, since nothing can be
trained for it. A user may be spread over several files.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedprox.errors import DataError
from fedprox.population import Population

__all__ = ["read_leaf"]

Rows = tuple[NDArray[Any], NDArray[Any]]


def read_leaf(path: str | Path) -> Population:
    """Read a LEAF folder into a population, users in the order of their names."""
    folder = Path(path)
    train, test = _read_part(folder, "train"), _read_part(folder, "test")
    if untrained := sorted(set(test) - set(train)):
        raise DataError(f"{folder}: user {untrained[0]!r} has test data but no training data")
    names = sorted(train)
    width = {rows[0].shape[1:] for part in (train, test) for rows in part.values() if len(rows[0])}
    if len(width) > 1:
        raise DataError(f"{folder}: all examples must have one shape; got {sorted(width)}")
    xs, ys, sizes, marks = [], [], [], []
    for name in names:
        parts = [(train[name], False)] + ([(test[name], True)] if name in test else [])
        for (x, y), is_test in parts:
            xs.append(x)
            ys.append(y)
            marks.append(np.full(len(y), is_test))
        sizes.append(sum(len(y) for (_, y), _ in parts))
    offsets = np.cumsum([0, *sizes])
    return Population.from_split(np.concatenate(xs), np.concatenate(ys), offsets, np.concatenate(marks), names=names)


def _read_part(folder: Path, part: str) -> dict[str, Rows]:
    files = sorted((folder / part).glob("*.json"))
    if not files:
        raise DataError(f"{folder / part} must hold LEAF files (*.json); found none")
    users: dict[str, list[Rows]] = {}
    for file in files:
        content = _read_json(file)
        for name, rows in _users(file, content):
            users.setdefault(name, []).append(rows)
    joined = {}
    for name, parts in users.items():
        try:
            joined[name] = (np.concatenate([x for x, _ in parts]), np.concatenate([y for _, y in parts]))
        except ValueError:
            raise DataError(f"{folder / part}: user {name!r} has examples of different shapes") from None
    kept = {name: rows for name, rows in joined.items() if len(rows[1])}
    if not kept:
        raise DataError(f"{folder / part}: no user has any sample")
    return kept


def _read_json(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(f"{file} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise DataError(f"{file} is not UTF-8 text (byte {error.start})") from None
    except json.JSONDecodeError as error:
        raise DataError(f"{file} is not valid JSON: {error.msg} at line {error.lineno}") from None
    if not isinstance(content, dict) or not {"users", "user_data"} <= set(content):
        raise DataError(f"{file} must be a LEAF object with `users` and `user_data`")
    return content


def _users(file: Path, content: dict[str, Any]) -> list[tuple[str, Rows]]:
    counts = content.get("num_samples", [None] * len(content["users"]))
    if len(counts) != len(content["users"]):
        raise DataError(f"{file}: `num_samples` has {len(counts)} entries for {len(content['users'])} users")
    result = []
    for name, count in zip(content["users"], counts, strict=True):
        data = content["user_data"].get(name)
        if not isinstance(data, dict) or not {"x", "y"} <= set(data):
            raise DataError(f"{file}: user {name!r} must have `x` and `y` in `user_data`")
        rows = _rows(file, name, data["x"], data["y"])
        if count is not None and count != len(rows[1]):
            raise DataError(f"{file}: user {name!r} has {len(rows[1])} samples, but `num_samples` says {count}")
        result.append((str(name), rows))
    return result


def _rows(file: Path, name: str, x: Any, y: Any) -> Rows:
    where = f"{file}: user {name!r}"
    if not isinstance(x, list) or not isinstance(y, list) or len(x) != len(y):
        lengths = [len(part) if isinstance(part, list) else type(part).__name__ for part in (x, y)]
        raise DataError(f"{where} must have lists x and y of one length; got {lengths[0]} and {lengths[1]}")
    try:
        features = np.asarray(x, np.float32)
    except (ValueError, TypeError):
        raise DataError(f"{where} must have examples that are numbers, all of one shape") from None
    try:
        labels = np.asarray(y, np.float64)
    except (ValueError, TypeError):
        raise DataError(f"{where} must have labels that are numbers") from None
    if labels.ndim != 1:
        raise DataError(f"{where} must have one label for each example; got labels of shape {labels.shape[1:]}")
    if not np.isfinite(features).all():
        bad = int(np.isfinite(features).reshape(len(x), -1).all(axis=1).argmin())
        raise DataError(f"{where} has a value of x that is not a finite number (row {bad})")
    wrong = (labels < 0) | (labels != np.floor(labels)) | ~np.isfinite(labels)
    if wrong.any():
        bad = int(wrong.argmax())
        raise DataError(f"{where} must have labels that are whole numbers >= 0; row {bad} has {y[bad]!r}")
    return features, labels.astype(np.int32)
