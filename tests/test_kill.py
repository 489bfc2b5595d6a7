"""Runs that are killed, stopped, starved of disk or raced for: nothing is lost, and nothing is half done.

Real processes and real signals. FEDPROX_KILLS sets how many times the kill test kills (a longer run: 100).
"""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.numpy import load_file
from typer.testing import CliRunner

import fedprox
from fedprox.cli import app
from fedprox.runs.folder import is_running

KILLS = int(os.environ.get("FEDPROX_KILLS", "4"))
TIMES = ("seconds", "solve_seconds", "measure_seconds")
CONFIG = """
rounds = {rounds}
[method]
mu = "adaptive"
mu_initial = 1.0
[solver]
epochs = 2
[devices]
stragglers = 0.5
[checkpoint]
every = 3
"""


def command(config: Path, out: Path, *more: str) -> list[str]:
    return [sys.executable, "-m", "fedprox", "run", str(config), "--out", str(out), *more]


def start(config: Path, out: Path, *more: str) -> subprocess.Popen:
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command(config, out, *more), **pipes)  # type: ignore[call-overload]


def lines(out: Path) -> int:
    file = out / "devices.jsonl"
    return file.read_bytes().count(b"\n") if file.exists() else 0


def wait_for(condition: Callable[[], bool], process: subprocess.Popen, seconds: float = 120.0) -> None:
    end = time.monotonic() + seconds
    while not condition() and process.poll() is None:
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.002)


def records(out: Path, name: str) -> list[str]:
    """Return the lines of a record without their time fields, otherwise as they are."""
    rows = [json.loads(line) for line in (out / f"{name}.jsonl").read_text().splitlines()]
    return [json.dumps({key: value for key, value in row.items() if key not in TIMES}) for row in rows]


def assert_same(one: Path, other: Path) -> None:
    for name in ("metrics", "devices", "evaluation"):
        assert records(one, name) == records(other, name)
    assert (one / "model.safetensors").read_bytes() == (other / "model.safetensors").read_bytes()


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("config") / "run.toml"
    file.write_text(CONFIG.format(rounds=40))
    return file


@pytest.fixture(scope="module")
def undisturbed(config: Path) -> Path:
    out = config.parent / "undisturbed"
    result = fedprox.train(config, out=out)
    assert len({row["mu"] for row in result.history}) > 2, "mu must move, or resuming its state is not tested"
    return out


def test_killed_at_random_moments_it_ends_as_if_undisturbed(config: Path, undisturbed: Path, tmp_path: Path) -> None:
    chance = random.Random(int(os.environ.get("FEDPROX_KILL_SEED", "0")))
    out, deaths = tmp_path / "run", 0
    while deaths < KILLS:
        process = start(config, out, "--resume")
        rounds = lines(out) + chance.randrange(1, 6)
        wait_for(lambda rounds=rounds: lines(out) >= rounds, process)
        time.sleep(chance.random() * 0.02)
        process.kill()
        deaths += process.wait() == -signal.SIGKILL
        process.communicate()
        if (out / "summary.json").exists():
            assert_same(out, undisturbed)
            shutil.rmtree(out)
    last = start(config, out, "--resume")
    assert last.wait() == 0, last.communicate()
    last.communicate()
    assert_same(out, undisturbed)
    assert [file.name for file in out.glob("**/.*")] == []  # no half-written file is left


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_after_the_round_with_a_checkpoint(
    config: Path, undisturbed: Path, tmp_path: Path, number: signal.Signals, code: int
) -> None:
    out = tmp_path / "run"
    process = start(config, out)
    wait_for(lambda: lines(out) >= 2, process)
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == code, errors
    assert "Traceback" not in errors
    stopped = fedprox.load_run(out)
    assert stopped.summary["ended"] == "stopped"
    reached = stopped.summary["rounds"]
    assert 2 <= reached < 40
    assert lines(out) == reached == stopped.last["round"]
    fedprox.train(config, out=out, resume=True)
    assert_same(out, undisturbed)


def test_a_file_size_limit_gives_one_sentence_and_the_run_can_go_on(
    config: Path, undisturbed: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    limited = (
        "import os, resource, sys;"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (6000, 6000)); os.execv(sys.argv[1], sys.argv[1:])"
    )
    arguments = [sys.executable, "-c", limited, *command(config, out)]
    process = subprocess.run(arguments, capture_output=True, text=True, check=False)
    errors = process.stderr
    assert process.returncode == 2, errors
    assert errors.strip().splitlines()[-1] == f"fedprox: run folder {out} cannot be written: File too large"
    assert "Traceback" not in errors
    assert not (out / "summary.json").exists()
    fedprox.train(config, out=out, resume=True)
    assert_same(out, undisturbed)


def test_a_full_disk_leaves_the_last_good_checkpoint(config: Path, undisturbed: Path, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=56k", "tmpfs", str(disk)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("a tmpfs cannot be mounted here, so the disk cannot be filled")
    try:
        out = disk / "run"
        process = start(config, out)
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 2
        last_line = errors.strip().splitlines()[-1]
        assert last_line == f"fedprox: run folder {out} cannot be written: No space left on device"
        assert "Traceback" not in errors
        assert load_file(out / "checkpoint" / "state.safetensors")  # whole, and of a round that is on record
        shutil.copytree(out, tmp_path / "copy")
    finally:
        subprocess.run(["umount", str(disk)], check=True)
    fedprox.train(config, out=tmp_path / "copy", resume=True)
    assert_same(tmp_path / "copy", undisturbed)


def test_a_read_only_folder_gives_one_sentence(config: Path, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    if os.getuid() == 0:  # to whom permissions mean nothing
        mounted = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "ro", "tmpfs", str(disk)], capture_output=True, check=False
        )
        if mounted.returncode:
            pytest.skip("a read-only tmpfs cannot be mounted here")
    else:
        disk.chmod(0o500)
    try:
        with pytest.raises(
            fedprox.FedProxError, match=r"cannot be written: (Read-only file system|Permission denied)$"
        ):
            fedprox.train(config, out=disk / "run")
    finally:
        if os.getuid() == 0:
            subprocess.run(["umount", str(disk)], check=True)
        else:
            disk.chmod(0o700)


def test_of_two_processes_that_race_for_a_folder_one_runs(config: Path, undisturbed: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    racers = [start(config, out, "--resume") for _ in range(2)]
    ends = [(racer.communicate(timeout=120), racer.returncode) for racer in racers]
    codes = sorted(code for _, code in ends)
    assert codes[0] == 0
    for (_, errors), code in ends:
        if code:  # one that came when the winner had ended would have found a finished run, and that is fine
            assert code == 2
            assert errors == f"fedprox: {out} is being written by another process\n"
    assert_same(out, undisturbed)
    assert not is_running(out)


def test_a_sweep_that_is_killed_continues(config: Path, tmp_path: Path, runs_here: None) -> None:
    grid = ["-g", "solver.epochs=1,2", "-g", "seed=0..1", "-s", "rounds=30", "--json"]
    sweep = [sys.executable, "-m", "fedprox", "sweep", str(config), *grid]
    out = tmp_path / "sweep"
    for number in (signal.SIGTERM, signal.SIGKILL):
        process = subprocess.Popen([*sweep, "--out", str(out)], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        begun = sum(map(lines, out.glob("*"))) if out.exists() else 0
        wait_for(lambda begun=begun: sum(map(lines, out.glob("*"))) > begun + 5, process)
        process.send_signal(number)
        process.communicate(timeout=60)
        assert process.returncode == (143 if number == signal.SIGTERM else -signal.SIGKILL)
        wait_for(lambda: not any(map(is_running, out.glob("*"))), process, 5)
        end = time.monotonic() + 5
        while any(map(is_running, out.glob("*"))):  # its workers follow it
            assert time.monotonic() < end
            time.sleep(0.01)
    again = subprocess.run([*sweep, "--out", str(out)], capture_output=True, text=True, check=True)
    assert len(json.loads(again.stdout)["table"]) == 2
    whole = CliRunner().invoke(app, [*sweep[3:], "--out", str(tmp_path / "whole")])
    names = sorted(folder.name for folder in out.glob("*"))
    assert len(names) == 4
    for name in names:
        assert_same(out / name, tmp_path / "whole" / name)
    strip = [{k: v for k, v in row.items() if k != "seconds"} for row in json.loads(whole.stdout)["table"]]
    assert strip == [{k: v for k, v in row.items() if k != "seconds"} for row in json.loads(again.stdout)["table"]]


def test_a_second_interrupt_of_a_sweep_does_not_wait_for_the_round(config: Path, tmp_path: Path) -> None:
    out = tmp_path / "sweep"
    endless_round = ["-g", "seed=0..1", "-s", "solver.epochs=1000000", "-s", "devices.stragglers=0"]
    sweep = [sys.executable, "-m", "fedprox", "sweep", str(config), *endless_round, "--out", str(out)]
    process = subprocess.Popen(sweep, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    folders = [out / f"seed={seed}" for seed in (0, 1)]
    wait_for(lambda: all((folder / "metrics.jsonl").exists() for folder in folders), process)
    time.sleep(1)  # the first round begins after its measures are written
    process.send_signal(signal.SIGINT)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(timeout=1)  # its workers are in the middle of a round
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=20)
    assert process.returncode == 130
    assert not any(map(is_running, folders))
