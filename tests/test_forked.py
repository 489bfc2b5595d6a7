"""Processes that tests fork behave as those that are started anew."""

import os
import signal
import subprocess
import sys
from typing import Any

import pytest

import forked

COMMAND = [sys.executable, "-m", "fedprox"]
ENDLESS = [*COMMAND, "run", "synthetic-1-1", "-s", "rounds=100000", "-s", "data.devices=3", "-s", "devices.per_round=2"]


@pytest.fixture(autouse=True)
def first_environment(monkeypatch):
    """Take back what libraries that other tests have imported did to the environment."""
    for name in os.environ.keys() - forked._environment.keys() - {forked._ADDRESS}:
        monkeypatch.delenv(name)
    for name, value in forked._environment.items():
        monkeypatch.setenv(name, value)


def is_forked(process):
    return isinstance(process, forked.Popen) and process._end is not None


def both_ways(arguments, **options):
    """Run a command forked and anew."""
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    for kind in (subprocess.Popen, forked.PLAIN):
        process = kind([*COMMAND, *arguments], **pipes, **options)
        assert is_forked(process) == (kind is not forked.PLAIN)
        yield process.communicate(), process.wait()


@pytest.mark.parametrize("arguments", [["--version"], ["config", "show", "own.toml"], ["run", "nowhere"]])
def test_streams_folder_and_exit_code_are_the_same(arguments, tmp_path):
    (tmp_path / "own.toml").write_text("rounds = 7\n")
    one, other = both_ways(arguments, cwd=tmp_path)
    assert one == other


def test_signals_end_it_and_its_end_is_seen(tmp_path):
    process = subprocess.Popen([*ENDLESS, "--out", "run"], cwd=tmp_path, start_new_session=True)
    assert is_forked(process)
    assert os.getsid(process.pid) == process.pid
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(timeout=0.1)
    assert process.poll() is None
    process.kill()
    assert process.wait(timeout=60) == -signal.SIGKILL


@pytest.mark.parametrize(
    ("arguments", "options"),
    [
        ([sys.executable, "-c", "import fedprox"], {}),
        ([*COMMAND, "--version"], {"env": {**os.environ, "JAX_ENABLE_X64": "1"}}),
        ([*COMMAND, "--version"], {"env": {**os.environ, "HOME": "/nowhere"}}),
        (["true"], {}),
    ],
)
def test_what_differs_before_main_is_started_anew(arguments, options):
    process = subprocess.Popen(arguments, stdout=subprocess.DEVNULL, **options)
    assert process.wait() == 0
    assert not is_forked(process)
