"""What some systems do not have is taken away, one at a time; what depends on it still works."""

import ctypes
import io
import os
import sys
import warnings
from pathlib import Path

import pytest
from typer.testing import CliRunner

import fedprox
from fedprox import doctor
from fedprox.cli import app
from fedprox.core import compilation, files, locks, machine
from fedprox.core.cache import CacheWarning, cache_folder

SMALL = {"rounds": 1, "solver": {"epochs": 1}, "data": {"devices": 12}}


def test_without_core_affinity_all_cores_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity")
    assert machine.usable_cores() == os.cpu_count()
    assert fedprox.train(SMALL).summary["ended"] == "finished"


def test_without_the_resource_module_a_run_has_no_peak_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "resource", None)
    assert machine.peak_memory() is None
    assert fedprox.train(SMALL).summary["peak_memory_mb"] is None


def test_peak_memory_is_counted_in_the_unit_of_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    on_linux = machine.peak_memory()
    monkeypatch.setattr(sys, "platform", "darwin")
    assert on_linux is not None
    assert machine.peak_memory() == pytest.approx(on_linux / 1024, rel=0.2)


def test_the_doctor_works_without_load_and_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "getloadavg")
    monkeypatch.delattr(os, "sysconf")
    found = {finding.what: finding for finding in (doctor._cores(), doctor._memory())}
    assert found["memory"].text == "this system does not report it"
    assert found["cores"].level == "ok"


def test_without_flock_a_folder_is_written_and_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(locks, "posix", None)
    fedprox.train(SMALL, out=tmp_path / "run")
    again = fedprox.train({**SMALL, "rounds": 2}, out=tmp_path / "run", resume=True)
    assert again.summary["rounds"] == 2
    assert not locks.is_locked(tmp_path / "run" / "checkpoint" / "lock")


class WindowsLocks:
    """The two names of msvcrt that are used: a byte can be locked once, by whichever file asked first."""

    LK_NBLCK = 2

    def __init__(self) -> None:
        self.taken: set[int] = set()

    def locking(self, number: int, mode: int, count: int) -> None:
        if (place := os.fstat(number).st_ino) in self.taken:
            raise PermissionError(13, "Permission denied")
        self.taken.add(place)


def test_with_byte_ranges_a_second_lock_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(locks, "posix", None)
    monkeypatch.setattr(locks, "windows", WindowsLocks())
    with (tmp_path / "lock").open("ab") as first, (tmp_path / "lock").open("ab") as second:
        assert locks.try_lock(first)
        assert not locks.try_lock(second)
        assert locks.is_locked(tmp_path / "lock")
    assert not locks.is_locked(tmp_path / "nothing")


def test_locks_of_this_system(tmp_path: Path) -> None:
    with (tmp_path / "lock").open("ab") as first, (tmp_path / "lock").open("ab") as second:
        assert locks.try_lock(first)
        assert not locks.try_lock(second)
        assert locks.is_locked(tmp_path / "lock")
    assert not locks.is_locked(tmp_path / "lock")


@pytest.mark.parametrize("error", [OSError, AttributeError, TypeError])
def test_without_mallopt_memory_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch, error: type[Exception]) -> None:
    def missing(name: object) -> None:
        raise error

    monkeypatch.setattr(ctypes, "CDLL", missing)
    for name in [name for name in os.environ if name.startswith(("MALLOC_", "GLIBC_TUNABLES"))]:
        monkeypatch.delenv(name)
    compilation._keep_memory()


def test_windows_opens_no_folders(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuse(*arguments: object) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(files.os, "open", refuse)  # type: ignore[attr-defined]
    monkeypatch.setattr(files, "_IS_WINDOWS", True)
    files.write_atomically(tmp_path / "file", b"content")
    assert (tmp_path / "file").read_bytes() == b"content"


def test_without_proc_the_processor_and_left_over_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    from fedprox.paper import provenance

    def missing(path: Path, *arguments: object, **options: object) -> str:
        raise FileNotFoundError(2, "No such file or directory")

    monkeypatch.setattr(Path, "read_text", missing)
    assert isinstance(provenance.machine()["processor"], str)


def test_a_cache_that_cannot_be_written_is_said_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    monkeypatch.setenv("XDG_CACHE_HOME", str(blocked))
    with pytest.warns(CacheWarning, match=r"cannot be written \(Not a directory\); set XDG_CACHE_HOME"):
        assert cache_folder() is None
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert cache_folder() == tmp_path / "cache" / "fedprox" / "xla"


@pytest.mark.parametrize(
    "arguments",
    [
        ["data", "stats", "synthetic-iid", "--out", "file/picture.png"],
        ["deploy", "init", "file/app"],
        ["report", "run", "--out", "file/report.html"],
    ],
)
def test_a_place_that_cannot_be_written_is_one_sentence(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("in the way")
    if arguments[0] == "report":
        fedprox.train(SMALL, out="run")
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 2, done.output
    assert done.stderr.startswith("fedprox: ")
    assert "cannot be written" in done.stderr
    assert done.stderr.count("\n") == 1
    assert isinstance(done.exception, SystemExit)
    assert io.StringIO(done.stderr).readline().endswith("\n")
