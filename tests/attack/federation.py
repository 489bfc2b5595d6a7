"""Attack a real federation: a SuperLink and five nodes, of which the last answers every message with a damaged one.

    python -m attack.federation --rounds 200 --seed 0 [-s method.name=scaffold]

The federation must finish, every reply of the honest nodes must be merged, and the model must stay finite. The end is
one line of a table; the exit code is 1 where something of this does not hold.
"""

from __future__ import annotations

import argparse
import math
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import fedprox
from attack import mutations
from fedprox.core.signals import exits_on_termination
from fedprox.core.trees import flatten_names
from fedprox.deploy.new_project import write_project
from fedprox.deploy.trial import Trial
from fedprox.runs.reader import SavedRun

__all__ = ["FederationAttack", "WarmTrial", "attack_federation", "main"]


class WarmTrial(Trial):
    """A federation whose nodes keep their app."""

    app: Path

    def __init__(self, folder: Path, nodes: int) -> None:
        super().__init__(folder, nodes)
        path = [str(Path(__file__).parents[1]), self.environment.get("PYTHONPATH", "")]  # `attack` is there
        self.environment["PYTHONPATH"] = os.pathsep.join(filter(None, path))

    def start_node(self, number: int, *, key: Path | None = None, name: str = "") -> subprocess.Popen[bytes]:
        """Start the node of a device."""
        given = {"superlink": self.address, "keys": self.keys, "number": number, "nodes": self.nodes, "app": self.app}
        arguments = [f"--{key}={value}" for key, value in given.items()]
        return self._start(f"node{number}", sys.executable, "-m", "attack.warm_node", *arguments)

    def start_lost_nodes(self) -> None:
        """Start nodes again that have ended: the SuperLink refuses a killed one until it has missed its heartbeat."""
        for number in range(self.nodes):
            if self._processes[f"node{number}"].poll() is not None:
                self.start_node(number)


@dataclass(frozen=True)
class FederationAttack:
    """What came of an attack.

    Attributes:
      attacks: what became of the damaged replies: refused, merged, or an error instead of a reply.
      lost: replies of honest nodes that were not merged.
    """

    rounds: int
    seconds: float
    attacks: Counter[str]
    lost: int
    first_loss: float
    last_loss: float
    finite: bool

    def row(self) -> str:
        """Return the line of a table."""
        counts = " | ".join(str(self.attacks[name]) for name in ("refused", "error", "merged"))
        losses = f"{self.first_loss:.3f} | {self.last_loss:.3f}"
        return f"| {self.rounds} | {counts} | {self.lost} | {losses} | {self.seconds:.0f} s |"

    @property
    def holds(self) -> bool:
        """Whether the federation was not harmed."""
        return self.finite and self.lost == 0 and math.isfinite(self.last_loss) and self.last_loss < self.first_loss


HEAD = (
    "| rounds | refused | errors | merged | honest replies lost | loss before | loss after | time |\n"
    + "|---" * 8
    + "|"
)


def attack_federation(
    folder: Path,
    *,
    rounds: int,
    seed: int,
    nodes: int = 5,
    per_round: int = 5,
    warm: bool = True,
    overrides: Sequence[str] = (),
) -> FederationAttack:
    """Run a federation in a new folder with one node that answers with damaged messages, and is in every round.

    With `warm` nodes keep their app between messages.
    """
    app, out = folder / "app", folder / "run"
    write_project(app, devices=nodes)
    for file in (*(Path(__file__).parent / "federation_app").glob("*.py"), mutations.__file__):
        shutil.copy(file, app / "federation")  # type: ignore[call-overload]
    trial = (WarmTrial if warm else Trial)(folder / "trial", nodes)
    trial.app = app  # type: ignore[attr-defined]
    trial.environment["FEDPROX_ATTACK_SEED"] = str(seed)
    settings = {
        "rounds": rounds,
        "solver.epochs": 2,
        "devices.per_round": per_round,
        "devices.sampling": "federation.sampling:with_the_last",
        "measure.every": max(rounds // 10, 1),
        "checkpoint.every": 10,
        "deploy.deadline": 30,
        "deploy.grace": 60,
        "deploy.max_norm": "auto",
    }
    given = [*(f"{key}={value}" for key, value in settings.items()), *overrides]
    started = time.monotonic()
    with exits_on_termination(), trial:
        trial.run(app, out, {"set": shlex.join(given)})
    seconds = time.monotonic() - started
    run = _load_run(out, app)
    attacks: Counter[str] = Counter()
    lost = 0
    for row in run.devices:
        for device, problem, kept in zip(row["device"], row["problem"], row["kept"], strict=True):
            if device == nodes - 1:
                attacks["merged" if kept else "refused" if problem.startswith("refused") else "error"] += 1
            else:
                lost += not kept
    losses = run.history.column("train_loss")
    finite = all(bool(np.isfinite(array).all()) for array in flatten_names(run.params).values())
    return FederationAttack(run.summary["rounds"], seconds, attacks, lost, losses[0], losses[-1], finite)


def _load_run(out: Path, app: Path) -> SavedRun:
    """Read the run, whose config names a part of the app; another app of that name may have been imported before."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "federation"]:
        del sys.modules[name]
    sys.path.insert(0, str(app))
    try:
        return fedprox.load_run(out)
    finally:
        sys.path.remove(str(app))


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m attack.federation", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--per-round", type=int, default=5, help="the damaged node and honest ones")
    parser.add_argument(
        "--cold", action="store_true", help="with Flower's SuperNodes, which start the app anew each time"
    )
    parser.add_argument("-s", "--set", action="append", default=[], metavar="KEY=VALUE")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="fedprox-attack-"))
    sys.stdout.write(f"{folder}\n")
    found = attack_federation(
        folder,
        rounds=options.rounds,
        seed=options.seed,
        per_round=options.per_round,
        warm=not options.cold,
        overrides=options.set,
    )
    sys.stdout.write(f"{HEAD}\n{found.row()}\n")
    if found.holds:
        shutil.rmtree(folder)
    return int(not found.holds)


if __name__ == "__main__":
    sys.exit(main())
