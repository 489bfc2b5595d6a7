"""Folders that are replaced at once, and what dead processes leave of them."""

import os
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest

from fedprox.core import folders
from fedprox.core.errors import DataError
from fedprox.core.folders import NewFolder
from fedprox.population import Population, folder
from fedprox.population.folder import open_population, read_manifest
from fedprox.population.writer import PopulationWriter, save_population

DIES = """
import os, signal, sys
from fedprox.population.writer import PopulationWriter
with PopulationWriter(sys.argv[1], classes=2) as writer:
    writer.add("a", ([[1.0]], [0]))
    os.kill(os.getpid(), signal.SIGKILL)
"""


def population(value, devices=3):
    rows = 4 * devices
    return Population.from_arrays(np.full((rows, 2), value), np.zeros(rows, int), np.arange(rows) % devices)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_what_a_dead_writer_left_is_removed(tmp_path):
    target = tmp_path / "mine"
    died = subprocess.run([sys.executable, "-c", DIES, str(target)], check=False)
    assert died.returncode == -signal.SIGKILL
    assert len(names(tmp_path)) == 2  # the folder in the making and its lock
    (tmp_path / ".other.0123456789abcdef.new").mkdir()  # of another population
    (tmp_path / f".mine.{'0' * 16}.old").mkdir()
    with PopulationWriter(target, classes=2) as living:
        living.add("a", ([[1.0]], [0]))
        save_population(population(1.0), target)  # does not take the living one for dead
    assert names(tmp_path) == [".other.0123456789abcdef.new", "mine"]
    assert open_population(target).devices == 1


def test_names_are_unpredictable(tmp_path):
    first, second = NewFolder(tmp_path / "a"), NewFolder(tmp_path / "a")
    assert first.path.name != second.path.name
    assert str(os.getpid()) not in first.path.name.split(".")
    first.discard()
    second.discard()
    assert names(tmp_path) == []


def test_a_planted_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / f".a.{'0' * 16}.lock")
    new = NewFolder(tmp_path / "a")
    new.publish()
    assert "a" in names(tmp_path)


def test_the_population_is_never_absent(tmp_path):
    target, ended, seen = save_population(population(0.0), tmp_path / "mine"), threading.Event(), set()

    def read():
        while not ended.is_set():
            found = open_population(target)
            found.check()
            values = set(np.ravel(found.train.x).tolist())
            assert len(values) == 1
            seen.add((*values, found.devices))

    failures = []
    threading.excepthook, before = lambda error: failures.append(error.exc_value), threading.excepthook
    reader = threading.Thread(target=read)
    try:
        reader.start()
        for number in range(1, 40):
            save_population(population(float(number), 3 + number), target)
        ended.set()
        reader.join()
    finally:
        threading.excepthook = before
    assert failures == []
    assert len(seen) > 1
    assert all(devices == 3 + value for value, devices in seen)
    assert names(tmp_path) == ["mine"]


def test_a_population_replaced_twice_while_it_is_opened_is_opened_anew(tmp_path, monkeypatch):
    target, seen = save_population(population(0.0), tmp_path / "mine"), []

    def read_and_replace(path):
        manifest = read_manifest(path)
        if len(seen) < 20:  # on most file systems the second new folder gets the inode number of the first one
            for _ in range(2):
                save_population(population(float(len(seen)), 4 + len(seen)), target)
            seen.append(manifest)
        return manifest

    monkeypatch.setattr(folder, "read_manifest", read_and_replace)
    assert folder.open_population(target).devices == 4 + 19


@pytest.mark.parametrize("error", [OSError, AttributeError])
def test_systems_that_cannot_exchange(tmp_path, monkeypatch, error):
    def missing(*_, **__):
        raise error("not here")

    monkeypatch.setattr(folders.ctypes, "CDLL", missing)  # type: ignore[attr-defined]
    target = save_population(population(0.0), tmp_path / "mine")
    save_population(population(1.0), target)
    assert open_population(target).train.x[0, 0] == 1.0
    assert names(tmp_path) == ["mine"]


@pytest.mark.parametrize("file", ["names.npy", "extra_words.npy", "manifest.json"])
def test_a_changed_byte_of_any_file_is_found(tmp_path, file):
    with PopulationWriter(tmp_path / "p", classes=3, extras={"words": np.arange(8.0)}) as writer:
        writer.add("anne", (np.ones((2, 2)), [0, 1]))
    path = tmp_path / "p" / file
    content = path.read_bytes()
    if file == "manifest.json":
        path.write_bytes(content.replace(b'"classes": 3', b'"classes": 4'))
    else:
        path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(DataError, match=f"{file} (must have the digests|is damaged)"):
        open_population(tmp_path / "p").name(0)


def test_a_population_of_the_version_before_is_read(tmp_path):
    import json

    path = save_population(population(1.0), tmp_path / "p") / "manifest.json"
    manifest = json.loads(path.read_text())
    del manifest["sha256"]
    path.write_text(json.dumps(manifest))
    with pytest.raises(DataError, match="is damaged"):
        open_population(tmp_path / "p")
    path.write_text(json.dumps(manifest | {"version": 1}))
    assert open_population(tmp_path / "p").devices == 3
