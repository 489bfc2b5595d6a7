"""Files and settings that were made to break a reader: each is answered with one sentence, or read as what it is."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import math
import os
import struct
import time
import zipfile
from typing import Any

import numpy as np
import pytest

import fedprox
from fedprox.config import Config
from fedprox.config.toml import read_toml
from fedprox.core.errors import ConfigError, DataError
from fedprox.core.reading import Bounded, check_archive, reading, unpacked
from fedprox.data import read_arrow, read_leaf, read_npz
from fedprox.data.idx import read_idx
from fedprox.data.shakespeare import read_roles
from fedprox.data.text_files import open_bytes
from fedprox.participation.clock.profiles import read_profile
from fedprox.participation.clock.trace import read_trace
from fedprox.population import Population


def write_npz(path, **changes):
    arrays = {"x": np.eye(4), "y": np.array([0, 1, 0, 1]), "device": np.array([0, 0, 1, 1])}
    np.savez(path, **{**arrays, **changes})
    return path


RATES = {"samples_per_second": 1, "download_bytes_per_second": 1, "upload_bytes_per_second": 1}


# numbers stay what they were


@pytest.mark.parametrize(
    "value", [2**24 + 1, 2**31, 2**32 + 5, 2**53 + 1, 2**62, -(2**31), -(2**24) - 1, np.iinfo(np.int64).min]
)
def test_whole_numbers_that_single_precision_changes_are_refused(value):
    x = np.zeros((4, 2), np.int64)
    x[3, 1] = value
    with pytest.raises(DataError, match=r"holds exactly .* below 2\^31; device 1, row 1 has another"):
        Population.from_arrays(x, [0, 1, 0, 1], [0, 0, 1, 1])


@pytest.mark.parametrize("value", [2**24, 2**24 + 2, 2**30, -(2**24), -(2**30)])
def test_whole_numbers_that_fit_are_taken(value):
    x = np.array([[value], [0], [1], [2]], np.int64)
    population = Population.from_arrays(x, [0, 1, 0, 1], [0, 0, 1, 1], test=[False] * 4)
    assert population.train.x[0, 0] == value


def test_unsigned_numbers_beyond_63_bits_are_refused():
    with pytest.raises(DataError, match="device 0, row 0 has another"):
        Population.from_arrays(np.array([[2**64 - 1]], np.uint64), [0], [0])


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"x": np.eye(4) * 1j}, "x must be real numbers; got complex128"),
        ({"x": np.eye(4).astype("timedelta64[s]")}, "x must be real numbers; got timedelta64"),
        ({"y": np.ones(4, complex)}, "y must be real numbers; got complex128"),
        ({"x": np.eye(4) * 1e300}, "x must be finite numbers in single precision; device 0, row 0 is not"),
        ({"y": np.array([0.5, 1e300, 1, 2])}, "y must be finite numbers in single precision; device 0, row 1 is not"),
        ({"x": np.zeros((4, 0))}, "at least one number in an example"),
        ({"x": np.float64(3.0)}, "shapes ()"),
        ({"y": np.zeros((4, 2))}, "shapes (4, 4), (4, 2) and (4,)"),
        ({"device": np.zeros((4, 1))}, "and (4, 1)"),
        ({"device": np.zeros(4, "datetime64[s]")}, "device must be numbers or names; got datetime64"),
        (
            {"test": np.array([True])},
            "each of the 4 rows, true for test rows; got an array of shape (1,)",
        ),
        ({"test": np.array(["False"] * 4)}, "test must be true or false"),
        (
            {"y": np.array([1, 0, 1, 0], object)},
            "y must be numbers or text; it has Python objects, which are never read",
        ),
        ({"y": np.array([0, 1, 2**31 - 2, 0])}, "integer labels >= 0 are class numbers and must be at most 1048575"),
    ],
)
def test_arrays_that_would_change_silently_are_refused(tmp_path, changes, sentence):
    with pytest.raises(DataError) as refused:
        read_npz(write_npz(tmp_path / "data.npz", **changes))
    assert sentence in str(refused.value)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"solver": {"epochs": 4611686018427387904}}, "`solver.epochs` must be at most 1e+09; got 4611686018427387904"),
        ({"solver": {"epochs": 10**30}}, "`solver.epochs` must be at most 1e+09"),
        ({"solver": {"batch_size": 2**31 - 1}}, "`solver.batch_size` must be at most 1e+09; got 2147483647"),
        ({"rounds": 10**5000}, "`rounds` must be at most 1e+09; got a number of 16610 bits"),
        ({"engine": {"workers": 100000}}, "`engine.workers` must be at most 1024"),
        ({"solver": {"learning_rate": 1e300}}, "`solver.learning_rate` must be at most 1e+30; got 1e+300"),
        ({"solver": {"learning_rate": 1e-320}}, "`solver.learning_rate` must be at least 1e-30; got 1e-320"),
        ({"devices": {"per_round": 10**9, "sampling": "proportional"}}, "`devices.per_round` must be at most 10000000"),
        ({"method": {"mu": "x" * 10**6}}, "`method.mu` must be one of adaptive, auto"),
    ],
)
def test_absurd_settings_are_refused(settings, sentence):
    with pytest.raises(ConfigError) as refused:
        Config.from_dict(settings)
    assert sentence in str(refused.value)
    assert len(str(refused.value)) <= 2001


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"data": {"devices": 10**9}}, "`data.devices` must be a number whose samples fit into memory; got 1000000000"),
        ({"solver": {"epochs": 10**9}}, "`solver.epochs` must give at most 1e+09 mini-batch steps of a device"),
        ({"rounds": 10**9, "solver": {"epochs": 100}}, "`rounds` must give at most 1e+13 mini-batch steps in all"),
    ],
)
def test_what_could_not_end_is_refused_before_the_start(settings, sentence):
    with pytest.raises(ConfigError) as refused:
        fedprox.train(settings)
    assert sentence in str(refused.value)


def test_a_long_run_is_announced():
    with pytest.warns(UserWarning, match=r"takes about .* mini-batch steps: \d+ minutes at a microsecond each"):
        fedprox.train({"rounds": 10**6}, callbacks=[lambda progress: True])


def test_minus_zero_is_zero():
    config = Config.from_dict({"rounds": 1, "data": {"alpha": -0.0, "beta": -0.0, "devices": 3}})
    assert math.copysign(1, config.data.alpha) == 1
    assert len(fedprox.train({**config.to_dict(), "devices": {"per_round": 1}}).history) == 2


# one boundary for all readers


def test_the_boundary_lets_our_own_sentences_pass_and_bounds_others():
    with pytest.raises(DataError, match="ours"), reading("f", "a thing"):
        raise DataError("ours")
    for failure, sentence in (
        (MemoryError(), "f is not a thing that fits into this machine's memory"),
        (PermissionError(13, "Permission denied"), "f cannot be read: Permission denied"),
        (KeyError("x"), "f is not a thing: 'x'"),
        (RecursionError(), "f is not a thing: RecursionError"),
    ):
        with pytest.raises(DataError) as refused, reading("f", "a thing"):
            raise failure
        assert str(refused.value) == sentence
    with pytest.raises(ConfigError) as refused, reading("f", "a thing", error=ConfigError):
        raise ValueError("y" * 10_000)
    assert len(str(refused.value)) < 250


READERS = [
    read_npz,
    read_arrow,
    read_leaf,
    read_toml,
    lambda path: read_idx(path, 3),
    lambda path: read_trace(path, 2),
    lambda path: read_profile(str(path)),
]


@pytest.mark.parametrize("name", ["x" * 300 + ".toml", "nul\0.toml", "caf\udce9.toml", "folder.toml", "fifo"])
@pytest.mark.parametrize("reader", READERS)
def test_names_that_no_file_has(tmp_path, reader, name):
    (tmp_path / "folder.toml").mkdir()
    with pytest.raises((DataError, ConfigError)) as refused:
        reader(tmp_path / name)
    str(refused.value).encode()  # can be printed anywhere


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may read everything")
@pytest.mark.parametrize("reader", READERS)
def test_permission_denied(tmp_path, reader):
    file = tmp_path / "secret.toml"
    file.touch(mode=0)
    with pytest.raises((DataError, ConfigError), match="Permission denied"):
        reader(file)


@pytest.mark.parametrize(
    "header", ["{'descr': '<f8', 'fortran_order': False, 'shape': (4611686018427387904, 8)}", "x" * 40]
)
def test_npz_with_headers_that_lie(tmp_path, header):
    text = header.ljust(117).encode() + b"\n"
    member = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text
    file = write_npz(tmp_path / "data.npz")
    with zipfile.ZipFile(file, "w") as archive:
        for name in ("x", "y", "device"):
            archive.writestr(f"{name}.npy", member)
    with pytest.raises(DataError, match=r"data file .* is not a readable npz file"):
        read_npz(file)


def test_bombs_end_at_a_stated_size(tmp_path):
    zeros = gzip.compress(bytes(1 << 20))
    with (
        gzip.open(io.BytesIO(zeros)) as stream,
        pytest.raises(DataError, match="at most 1,000 bytes when it is unp"),
    ):
        unpacked(stream, "bomb", most=1000)
    with gzip.open(io.BytesIO(zeros)) as stream:
        assert len(unpacked(stream, "fine", most=1 << 20)) == 1 << 20
    with gzip.open(io.BytesIO(zeros)) as stream, pytest.raises(DataError, match="at most 70,000 bytes"):
        list(io.BufferedReader(Bounded(stream, "bomb", most=70_000)))
    with zipfile.ZipFile(tmp_path / "bomb.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.txt", bytes(1 << 20))
    with zipfile.ZipFile(tmp_path / "bomb.zip") as archive, pytest.raises(DataError, match="bomb must have at most 10"):
        check_archive(archive, "bomb", most=10)


def test_every_compressed_reader_is_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr("fedprox.core.reading.most_unpacked", lambda: 1000)
    (tmp_path / "a.gz").write_bytes(gzip.compress(bytes(5000)))
    with pytest.raises(DataError, match="at most 1,000 bytes"):
        read_idx(tmp_path / "a.gz", 3)
    with pytest.raises(DataError, match="at most 1,000 bytes"), open_bytes(tmp_path / "a.gz") as file:
        file.read()
    with pytest.raises(DataError, match="at most 1,000 bytes"):
        read_npz(write_npz(tmp_path / "data.npz", x=np.zeros((4, 100))))
    (tmp_path / "leaf" / "train").mkdir(parents=True)
    (tmp_path / "leaf" / "train" / "a.json.gz").write_bytes(gzip.compress(b" " * 5000))
    with pytest.raises(DataError, match="at most 1,000 bytes"):
        read_leaf(tmp_path / "leaf")


def test_an_idx_header_whose_sizes_overflow(tmp_path):
    (tmp_path / "a").write_bytes(bytes([0, 0, 8, 3]) + struct.pack(">3I", 2**31, 2**31, 4))
    with pytest.raises(DataError, match="as its header says; got 0 bytes"):
        read_idx(tmp_path / "a", 3)


@pytest.mark.parametrize(
    "line",
    [
        "[" * 100_000,
        '{"samples_per_second": 1' + "0" * 400 + ', "download_bytes_per_second": 1, "upload_bytes_per_second": 1}',
        '{"samples_per_second": 1e-320, "download_bytes_per_second": 1, "upload_bytes_per_second": 1}',
        json.dumps({**RATES, "available": 3}),
    ],
)
def test_traces_that_break_parsers(tmp_path, line):
    (tmp_path / "trace").write_text(line + "\n")
    with pytest.raises(DataError) as refused:
        read_trace(tmp_path / "trace", 1)
    assert len(str(refused.value)) < 400


def test_a_line_of_a_trace_may_hold_any_character(tmp_path):
    line = json.dumps({**RATES, "class": "a\u2028b\x85"}, ensure_ascii=False)
    (tmp_path / "trace").write_text(f"{line}\n{line}\n", encoding="utf-8")
    assert read_trace(tmp_path / "trace", 2).kind == ("a\u2028b\x85",) * 2


def test_configs_that_break_parsers(tmp_path):
    for text, sentence in (
        ("a = " + "[" * 100_000, "too deeply to be read"),
        ("rounds = 1" + "0" * 5000, "is not valid TOML"),
    ):
        (tmp_path / "c.toml").write_text(text)
        with pytest.raises(ConfigError, match=sentence):
            read_toml(tmp_path / "c.toml")
    with (tmp_path / "c.toml").open("wb") as file:
        file.truncate(1 << 25)
    with pytest.raises(ConfigError, match="at most 16,777,216 bytes"):
        read_toml(tmp_path / "c.toml")


def test_arrow_columns_without_values(tmp_path):
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    for name in ("y", "device", "test", "f"):
        columns: dict[str, Any] = {"y": [0, 1], "device": ["a", "b"], "test": [False, False], "f": [1.0, 2.0]}
        columns[name] = [columns[name][0], None]
        parquet.write_table(pyarrow.table(columns), tmp_path / "a.parquet")
        with pytest.raises(DataError, match=f"the column {name} must have a value in every row; 1 have none"):
            read_arrow(tmp_path / "a.parquet")


@pytest.mark.parametrize("piece", ["[\n", "<<\n", "_[", "[" * 900 + "\n", "x      A" * 100 + ".\n", "\n", " \n"])
def test_plays_are_read_in_time_that_grows_with_their_length(tmp_path, piece):
    file = tmp_path / "pg100.txt"
    file.write_text("A PLAY\n\nby William Shakespeare\n\nACT I. SCENE 1.\n" + piece * (50_000 // len(piece)))
    begun = time.monotonic()
    with contextlib.suppress(DataError):
        read_roles(file)
    assert time.monotonic() - begun < 20  # minutes to hours, where a pattern looks at everything from everywhere
