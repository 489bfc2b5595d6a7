"""Kill the server or a node of a real federation at random moments.

A SuperLink with TLS and keys and three nodes live for the whole campaign. A run is handed to it, and at a random moment
its server, or one of the nodes, is ended with SIGKILL or SIGTERM, up to three times in a row:

- the server is handed in again with `resume`; the run must end with the bits of an undisturbed one;
- a node is started again; the run must go on, with the same bits or with a record of whose replies are missing.

Flower itself ends a server whose heartbeat it misses, as when the machine was asleep; such a one is resumed as well.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from attack.awake import Stopwatch, wait_until
from attack.federation import WarmTrial
from attack.run_results import run_results
from fedprox.deploy.new_project import write_project
from fedprox.runs.folder import is_running, read_summary

__all__ = ["TARGETS", "kill_federation"]

TARGETS = ("deploy server", "deploy node")
_NODES = 3
_PATIENCE = 300.0
_GONE = 10.0  # seconds without a server after which it does not come
_LOOK = 3.0  # seconds after which ended nodes are started again
_SETTINGS = "rounds=12 checkpoint.every=2 measure.every=4 solver.epochs=2 deploy.deadline={deadline} deploy.grace=20"


def kill_federation(target: str, kills: int, dice: random.Random) -> Counter[str]:
    """Return how the runs of one live federation ended whose server or nodes were killed."""
    counts: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(prefix="fedprox-kills-") as place:
        folder = Path(place)
        write_project(folder / "app", devices=_NODES)
        trial = WarmTrial(folder / "trial", _NODES)
        trial.app = folder / "app"
        with trial:
            campaign = _Campaign(trial, folder, target, counts)
            watch = Stopwatch()
            if not campaign.submit(folder / "whole") or not campaign.ends(watch):
                raise SystemExit(f"a federation must work when it is left alone; {trial.log('superlink')[-500:]}")
            campaign.whole, took = run_results(folder / "whole"), watch.seconds()
            while counts["kills"] < kills:
                shutil.rmtree(folder / "out", ignore_errors=True)
                campaign.disturb(min(dice.choice((1, 2, 3)), kills - counts["kills"]), took, dice)
        if left := trial.left_over():
            counts["left over"] += 1
            sys.stdout.write(f"{target}: left over: {left}\n")
    return counts


class _Campaign:
    """Runs in one federation, of which the last is compared with `whole`."""

    def __init__(self, trial: WarmTrial, folder: Path, target: str, counts: Counter[str]) -> None:
        self.trial, self.out, self.target, self.counts = trial, folder / "out", target, counts
        self.whole: dict[str, str] = {}

    def submit(self, out: Path, *, resume: bool = False) -> bool:
        """Hand in the run, and return whether its server has begun."""
        # without a deadline no device is cut off, whatever else the machine does; but a lost reply must end
        settings = _SETTINGS.format(deadline=20 if self.target == "deploy node" else 0)
        self._out, self._before = out, _written(out)
        self.trial.submit(self.trial.app, {"out": str(out), "resume": resume, "set": settings})
        return wait_until(lambda tick: self._sleep(tick) or is_running(out) or self._has_ended(), _PATIENCE)

    def ends(self, watch: Stopwatch | None = None, seconds: float = _PATIENCE) -> bool:
        """Wait, and return whether the run has ended with results; a server that is gone without is resumed."""
        watch = watch or Stopwatch()
        end, seen, looked = watch.seconds() + seconds, watch.seconds(), watch.seconds()
        while not self._has_ended():
            if (now := watch.seconds()) >= end:
                return False
            if is_running(self._out) or _servers(self.trial):
                seen = now
            elif now > seen + _GONE:
                self.submit(self._out, resume=True)
                seen = watch.seconds()
            if now > looked + _LOOK:
                self.trial.start_lost_nodes()
                looked = now
            time.sleep(0.05)
        return True

    def disturb(self, times: int, took: float, dice: random.Random) -> None:
        """Kill a few times, let the run end, and compare."""
        self.submit(self.out)
        for _ in range(times):
            if self.ends(seconds=dice.random() * took):
                self.counts.update(["kills", "finished first"])
                break
            number = dice.choice((signal.SIGKILL, signal.SIGTERM))
            self.counts.update(["kills", "died"])
            if self.target == "deploy server":
                self._kill_server(number)
            else:
                node = dice.randrange(_NODES)
                self.trial.end(f"node{node}", number)
                self.trial.start_node(node)
        if not self.ends():
            self.counts["hang"] += 1
            sys.stdout.write(f"{self.target}: not over; {self.trial.log('superlink')[-800:]}\n")
        elif run_results(self.out) == self.whole:
            self.counts["same bits"] += 1
        elif problems := list(_problems(self.out)):
            self.counts["sentence"] += 1
            sys.stdout.write(f"{self.target}: {'; '.join(problems)[:300]}\n")
        else:
            self.counts["other result"] += 1
            found = run_results(self.out)
            sys.stdout.write(f"{self.target}: other {[name for name in found if found[name] != self.whole[name]]}\n")
        sys.stdout.flush()

    def _kill_server(self, number: signal.Signals) -> None:
        for process in _servers(self.trial):
            os.kill(process, number)
        if not wait_until(lambda tick: self._sleep(tick) or not _servers(self.trial), 60):
            self.counts["hang"] += 1
        if not self._has_ended():
            self.submit(self.out, resume=True)

    def _has_ended(self) -> bool:
        return _written(self._out) not in (None, self._before) and not is_running(self._out)

    @staticmethod
    def _sleep(tick: float) -> bool:
        time.sleep(tick)
        return False


def _servers(trial: WarmTrial) -> list[int]:
    found = []
    for process in trial.left_over():
        try:
            if b"flwr-serverapp" in Path(f"/proc/{process}/cmdline").read_bytes():
                found.append(process)
        except OSError:
            continue  # it has ended
    return found


def _written(out: Path) -> int | None:
    """Return when the run last ended, None where it has not."""
    summary = read_summary(out)
    return None if summary is None or summary["ended"] == "stopped" else (out / "summary.json").stat().st_mtime_ns


def _problems(out: Path) -> Iterator[str]:
    for line in (out / "devices.jsonl").read_text().splitlines():
        row = json.loads(line)
        for device, problem in zip(row["device"], row["problem"], strict=True):
            if problem is not None:
                yield f"round {row['round']}, device {device}: {problem}"
