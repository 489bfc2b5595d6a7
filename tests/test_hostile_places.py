"""What lies in the current folder, in shared folders and in caches is neither run nor waited for nor trusted."""

from __future__ import annotations

import logging
import os
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

import fedprox
from fedprox.cli import app
from fedprox.cli.app import answers_errors
from fedprox.core.cache import KeptPrograms, cache_folder
from fedprox.core.errors import ConfigError
from fedprox.deploy.keys import _checked_host, write_keys
from fedprox.deploy.new_project import write_project
from fedprox.deploy.settings import resume_flag
from fedprox.report import write_report
from fedprox.runs.export import export

SMALL = {"rounds": 1, "solver": {"epochs": 1}, "data": {"devices": 3}, "devices": {"per_round": 2}}


@pytest.mark.usefixtures("started_anew")
def test_a_module_in_the_current_folder_is_not_imported_by_workers(tmp_path, monkeypatch):
    (tmp_path / "queue.py").write_text("raise SystemExit('run from the current folder')")
    monkeypatch.chdir(tmp_path)
    arguments = ["sweep", "synthetic-1-1", "-g", "seed=0,1", "-s", "rounds=1", "-s", "solver.epochs=1", "--out", "out"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.stderr


def test_a_planted_pipe_does_not_stop_a_cluster(tmp_path, monkeypatch):
    cluster = pytest.importorskip("fedprox.engines.ray.cluster")
    monkeypatch.setattr(cluster.tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(cluster, "_SHORT", 10_000)
    (tmp_path / "fedprox-ray-planted").mkdir()
    os.mkfifo(tmp_path / "fedprox-ray-planted" / "lock")
    folder, lock = cluster._private_folder()  # waits for ever where the pipe is opened as a file
    lock.close()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert (tmp_path / "fedprox-ray-planted").exists()


def test_damaged_programs_are_removed_and_a_full_disk_leaves_none(tmp_path, monkeypatch):
    kept = KeptPrograms(tmp_path)
    kept.put("key", b"program")
    assert kept.get("key") == b"program"
    (file,) = tmp_path.iterdir()
    for content in (b"", file.read_bytes()[:-1], file.read_bytes()[:-1] + b"x"):
        file.write_bytes(content)
        assert kept.get("key") is None
        assert not file.exists()
        kept.put("key", b"program")
    file.rename(tmp_path / file.name.replace("key", "other"))
    assert kept.get("other") is None  # another program's

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(type(tmp_path), "write_bytes", full)
    kept.put("more", b"program")
    assert list(tmp_path.iterdir()) == []


def test_jax_keeps_its_programs_in_ours_and_the_folder_is_private(tmp_path):
    code = f"import fedprox; print(fedprox.train({SMALL!r}).history[-1]['train_loss'])"
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    environment.pop("JAX_COMPILATION_CACHE_DIR", None)
    losses = []
    for _ in range(2):
        done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
        losses.append(done.stdout)
        folder = tmp_path / "fedprox" / "xla"
        files = list(folder.iterdir())
        assert {file.suffix for file in files} == {".program"}
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        for file in files:
            file.write_bytes(file.read_bytes()[:-7])
    assert losses[0] == losses[1]
    assert "cache" not in done.stderr


def test_commands_do_not_pass_on_the_notes_of_matplotlib_on_its_own_folders(caplog):
    @answers_errors
    def command():
        logging.getLogger("matplotlib").warning("Matplotlib created a temporary cache directory")

    command()
    assert caplog.text == ""


def test_the_cache_folder_is_private(tmp_path, monkeypatch):
    monkeypatch.setattr("platformdirs.user_cache_path", lambda name: tmp_path / name)
    assert stat.S_IMODE(cache_folder().stat().st_mode) == 0o700


def test_cells_that_a_spreadsheet_would_run(tmp_path):
    fedprox.train(SMALL, out=tmp_path / "run")
    file = tmp_path / "run" / "devices.jsonl"
    file.write_text('{"round": 1, "device": [0, 1, 2], "class": ["=1+1", "@x", "phone"], "gamma": [-1.5, 0.5, 1.0]}\n')
    export(tmp_path / "run", tmp_path / "out", ["csv"])
    lines = (tmp_path / "out" / "devices.csv").read_text().splitlines()
    assert lines[1:] == ["1,0,'=1+1,-1.5", "1,1,'@x,0.5", "1,2,phone,1.0"]


def test_resume_as_text():
    assert [resume_flag({"resume": value}) for value in ("false", "true", "", False, True)] == [
        False,
        True,
        False,
        False,
        True,
    ]
    for value in ("yes", 2, None):
        with pytest.raises(ConfigError, match="must be true or false"):
            resume_flag({"resume": value})


@pytest.mark.parametrize("name", ['qu"ote', "back\\slash", "sp ace", "ünï"])
def test_new_apps_in_folders_with_any_name(tmp_path, name):
    import tomllib

    write_project(tmp_path / name)
    written = tomllib.loads((tmp_path / name / "pyproject.toml").read_text(encoding="utf-8"))
    assert written["tool"]["flwr"]["app"]["config"]["out"] == str(tmp_path / name / "runs" / "first")
    assert written["tool"]["flwr"]["app"]["fab-include"] == ["federation/**/*.py", "fedprox.toml"]


def test_folders_that_cannot_be(tmp_path):
    for name in ("x" * 300, "caf\udce9", "nul\0"):
        with pytest.raises(ConfigError):
            write_project(tmp_path / name)
    shown = CliRunner().invoke(app, ["deploy", "init", str(tmp_path / "a b")])
    assert f"cd '{tmp_path / 'a b'}' && fedprox deploy trial ." in shown.stdout


@pytest.mark.parametrize("host", ["", "a" * 64 + ".org", "a b", "x" * 300, "bad\udce9", ".", "a..b", "-"])
def test_hosts_that_are_none(tmp_path, host):
    pytest.importorskip("cryptography")
    with pytest.raises(ConfigError, match="`--host` must be a host name or an IP address"):
        write_keys(tmp_path / "keys", nodes=1, hosts=[host])


def test_hosts_and_days_of_keys(tmp_path):
    pytest.importorskip("cryptography")
    assert _checked_host("münchen.example") == "xn--mnchen-3ya.example"
    assert _checked_host("::1") == "::1"
    with pytest.raises(ConfigError, match="`--days` must be an integer from 1 to 36500; got 999999999"):
        write_keys(tmp_path / "keys", nodes=1, days=999_999_999)
    with pytest.raises(ConfigError, match="must name at least one host"):
        write_keys(tmp_path / "keys", nodes=1, hosts=[])
    long = ".".join(["a" * 60] * 4)
    write_keys(tmp_path / "keys", nodes=1, hosts=[long])
    assert (tmp_path / "keys" / "server.pem").exists()


def test_names_of_runs_are_not_markup(tmp_path):
    fedprox.train(SMALL, out=tmp_path / "a[" / "b]c")
    result = CliRunner().invoke(app, ["watch", "--once", str(tmp_path)])
    assert result.exit_code == 0, result.stderr
    assert "a[/b]c" in result.stdout


def test_a_report_on_a_run_whose_name_is_no_text(tmp_path):
    run = tmp_path / "caf\udce9"
    fedprox.train(SMALL, out=run)
    assert "caf\\udce9" in write_report([run], tmp_path / "r\udce9.html").read_text()


@pytest.mark.parametrize("arguments", [["doctor"], ["--help"]])
def test_a_full_standard_output_is_a_sentence(arguments):
    command = [sys.executable, "-m", "fedprox", *arguments]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.stderr.strip().splitlines()[-1] == (
        "fedprox: standard output cannot be written: no space left on device"
    )
    assert done.returncode == 2


@pytest.mark.parametrize("arguments", [["config", "new"], ["doctor"], ["--help"]])
def test_a_reader_that_closes_standard_output_is_no_error(arguments):
    read, write = os.pipe()
    os.close(read)
    with open(write, "w") as closed:
        command = [sys.executable, "-m", "fedprox", *arguments]
        done = subprocess.run(command, stdout=closed, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.stderr, done.returncode != 0) == ("", True)


PARENT = """
import os, subprocess, sys, time
from fedprox.core.child_processes import ending_with_parent
become = "import time; print(flush=True); time.sleep(60)"
command = ending_with_parent([sys.executable, "-c", become], os.getpid())
child = subprocess.Popen(command, start_new_session=True, stdout=subprocess.PIPE)
child.stdout.readline()
print(child.pid, flush=True)
time.sleep(60)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a child of its parent's death")
def test_a_child_ends_with_a_parent_that_is_killed():
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True)
    child = int(parent.stdout.readline())
    parent.kill()
    parent.communicate()
    end = time.monotonic() + 20
    while _lives(child):
        assert time.monotonic() < end
        time.sleep(0.05)


def _lives(process):
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
