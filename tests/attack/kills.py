"""Kill every kind of command at random moments, repeatably: `make kills`, or

    python -m attack.kills --seed 0 --kills 100 [COMMAND ...]

Each command is run once undisturbed. Then it is started again and again, and ended at a random moment with SIGKILL or
SIGTERM, up to three times in a row; at last it is left alone. What it leaves then must have the same bits as the
undisturbed result, times aside, or its last attempt must have ended with one of our sentences. Nothing else may be
left: no process, no half-written file. The server and the nodes of a federation are killed as well, in
`attack.federation_kills`. The end is a table; the exit code is 1 where anything else was seen.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from attack.awake import Stopwatch, has_ended, wait_until
from attack.federation_kills import TARGETS, kill_federation
from attack.run_results import digests, run_results

COLUMNS = ("kills", "died", "finished first", "same bits", "sentence", "other result", "traceback", "hang", "left over")
PATIENCE = 900.0  # seconds after which an undisturbed command hangs, on a machine with other work
SMALL = ["-s", "solver.epochs=2", "-s", "devices.stragglers=0.5", "-s", "checkpoint.every=2"]


@dataclass(frozen=True)
class Killed:
    """A command that writes `out`: how it is started, again or for the first time, and what its result is.

    It is started up to `attempts` times where it is left alone: Flower ends an app whose heartbeat it misses for a
    minute, as on a busy machine.
    """

    start: Callable[[Path, bool], list[str]]
    result: Callable[[Path], dict[str, str]]
    attempts: int = 1


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m attack.kills", description=__doc__.splitlines()[0])
    parser.add_argument("commands", nargs="*")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kills", type=int, default=100, help="over all commands")
    options = parser.parse_args()
    chosen = options.commands or [*COMMANDS, *TARGETS]
    found = {}
    for place, name in enumerate(chosen):
        kills = options.kills * (place + 1) // len(chosen) - options.kills * place // len(chosen)
        campaign = kill_federation if name in TARGETS else _campaign
        found[name] = campaign(name, kills, random.Random(f"{options.seed} {name}"))
    lines = [f"| command | {' | '.join(COLUMNS)} |", "|---|" + "---|" * len(COLUMNS)]
    lines += [f"| {name} | {' | '.join(str(counts[key]) for key in COLUMNS)} |" for name, counts in found.items()]
    sys.stdout.write("\n".join(["", *lines, ""]))
    return int(any(counts[name] for counts in found.values() for name in COLUMNS[5:]))


def _campaign(name: str, kills: int, dice: random.Random) -> Counter[str]:
    command, counts = COMMANDS[name], Counter()
    with tempfile.TemporaryDirectory(prefix="fedprox-kills-") as place:
        folder = Path(place)
        _prepare(folder)
        ended = _run_alone(command, folder / "whole", folder, again=False)
        whole, took = command.result(folder / "whole"), ended.seconds
        if ended.code or not whole:
            raise SystemExit(f"{name} must work when it is left alone; got {ended.code}: {ended.errors[-500:]}")
        while counts["kills"] < kills:
            out = folder / "out"
            shutil.rmtree(out, ignore_errors=True)
            again = False
            for _ in range(min(dice.choice((1, 2, 3)), kills - counts["kills"])):
                number = dice.choice((signal.SIGKILL, signal.SIGTERM))
                _kill(command.start(out, again), folder, number, dice.random() * took, counts)
                again = True
            _finish(name, command, folder, whole, counts)
    return counts


def _kill(arguments: list[str], folder: Path, number: signal.Signals, after: float, counts: Counter[str]) -> None:
    ended = _run(arguments, folder, number, after)
    counts["kills"] += 1
    if ended.code is None:
        counts["hang"] += 1
        return
    counts["finished first" if ended.code == 0 else "died"] += 1
    if "Traceback" in ended.errors:
        counts["traceback"] += 1
        sys.stdout.write(ended.errors[-1500:])


def _finish(name: str, command: Killed, folder: Path, whole: dict[str, str], counts: Counter[str]) -> None:
    """Leave the command alone, and compare."""
    out = folder / "out"
    wait_until(lambda tick: not _processes(folder, tick), 20)  # what a killed command started follows it within seconds
    ended = _run_alone(command, out, folder, again=True)
    lines = ended.errors.strip().splitlines()
    if ended.code is None:
        counts["hang"] += 1
    elif ended.code == 0:
        found = command.result(out)
        counts["same bits" if found == whole else "other result"] += 1
        if found != whole:
            others = sorted(key for key in {*whole, *found} if whole.get(key) != found.get(key))
            sys.stdout.write(f"{name}: other result in {', '.join(others)[:300]}\n")
    elif "Traceback" in ended.errors or not (lines and lines[-1].startswith("fedprox: ")):
        counts["traceback"] += 1
        sys.stdout.write(f"{name}: exit code {ended.code}\n{ended.errors[-1500:]}\n")
    else:
        counts["sentence"] += 1
        sys.stdout.write(f"{name}: {lines[-1]}\n")
    left = [path for path in folder.rglob(".*") if path.name.endswith((".new", ".old", ".lock"))]
    left += folder.glob("tmp/*/keys")
    if left or _processes(folder):
        counts["left over"] += 1
        sys.stdout.write(f"{name}: left over: {left} {_processes(folder)}\n")
    sys.stdout.flush()


@dataclass(frozen=True)
class Ended:
    """How a command ended; without a code it did not, and was killed."""

    code: int | None
    errors: str
    seconds: float


def _run(arguments: list[str], folder: Path, number: signal.Signals | None = None, after: float = PATIENCE) -> Ended:
    """Run a command to its end, or send it a signal `after` some seconds."""
    watch = Stopwatch()
    with (folder / "errors").open("wb") as errors:
        process = subprocess.Popen(
            arguments, cwd=folder, stdout=subprocess.DEVNULL, stderr=errors, env=_environment(folder)
        )
        is_over = has_ended(process)
        over = wait_until(is_over, after, watch)
        if not over and number is not None:
            process.send_signal(number)
            over = wait_until(is_over, PATIENCE, watch)
        if not over:
            process.kill()
            process.wait()
    return Ended(process.returncode if over else None, (folder / "errors").read_text(errors="replace"), watch.seconds())


def _run_alone(command: Killed, out: Path, folder: Path, *, again: bool) -> Ended:
    """Run a command to its end, again where it may be started several times and has failed."""
    ended = _run(command.start(out, again), folder)
    for _ in range(command.attempts - 1):
        if ended.code == 0:
            break
        ended = _run(command.start(out, True), folder)
    return ended


def _environment(folder: Path) -> dict[str, str]:
    """Return the environment of a command, whose temporary folder is in `folder` and tells it from others."""
    path = os.pathsep.join(path for path in sys.path if path)
    return {**os.environ, "PYTHONPATH": path, "TMPDIR": str(folder / "tmp")}


def _processes(folder: Path, tick: float = 0.0) -> list[str]:
    """Return the command lines of processes that were started with this temporary folder, where the system shows it."""
    time.sleep(tick)
    mark, found = f"TMPDIR={folder / 'tmp'}".encode(), []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if mark in (process / "environ").read_bytes().split(b"\0"):
                found.append((process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")[:200])
        except OSError:
            continue  # it has ended, or is another user's
    return found


def _prepare(folder: Path) -> None:
    """Write what the commands read: images of letters, and a table."""
    (folder / "tmp").mkdir()
    random_ = np.random.default_rng(0)
    images = random_.integers(0, 255, (3000, 28, 28), np.uint8)
    np.savez(folder / "emnist_aj.npz", images=images, labels=np.arange(3000) % 10)
    rows = np.arange(60_000)
    np.savez(folder / "data.npz", x=random_.normal(size=(len(rows), 40)), y=rows % 3, device=rows % 500)
    subprocess.run(
        _fedprox("deploy", "init", str(folder / "app")), check=True, capture_output=True, env=_environment(folder)
    )


def _fedprox(*arguments: str) -> list[str]:
    return [sys.executable, "-P", "-m", "fedprox", *arguments]


def _population(out: Path) -> dict[str, str]:
    from fedprox.population.folder import open_population

    open_population(out, verify=True)
    return digests(out, "*")


_SAVE = """
import sys
from fedprox.data import read_npz
from fedprox.population.writer import save_population
save_population(read_npz("data.npz"), sys.argv[1])
"""

COMMANDS: dict[str, Killed] = {
    "run": Killed(
        lambda out, again: _fedprox("run", "synthetic-1-1", "-s", "rounds=60", *SMALL, "--out", str(out), "--resume"),
        run_results,
    ),
    "sweep": Killed(
        lambda out, again: _fedprox(
            "sweep", "synthetic-1-1", "-g", "seed=0,1", "-s", "rounds=30", *SMALL, "--out", str(out)
        ),
        run_results,
    ),
    "compare": Killed(
        lambda out, again: _fedprox(
            *("compare", "synthetic-1-1", "-m", "fedavg", "-m", "fedprox:mu=1", "-s", "rounds=30"),
            *(*SMALL, "--out", str(out), *(["--resume"] if again else [])),
        ),
        run_results,
    ),
    "paper": Killed(
        lambda out, again: _fedprox("paper", "figure2", "--scale", "smoke", "--seeds", "1", "--out", str(out)),
        run_results,
    ),
    "data": Killed(
        lambda out, again: _fedprox("data", "prepare", "femnist", "--from", ".", "--out", str(out)), _population
    ),
    "population": Killed(lambda out, again: [sys.executable, "-P", "-c", _SAVE, str(out)], _population),
    "deploy": Killed(
        lambda out, again: _fedprox(
            *("deploy", "trial", "app", "--out", str(out), "-s", "rounds=2", "-s", "deploy.deadline=0"),
            *(["--resume"] if again else []),
        ),
        run_results,
        attempts=3,
    ),
}


if __name__ == "__main__":
    sys.exit(main())
