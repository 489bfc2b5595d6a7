"""Attack every reader with damaged input, repeatably: `make attack`, or

    python -m attack --seed 0 --seconds 30 --cases 2000 [KIND ...]

Each kind runs in a process of its own, case after case; a case that is not over after `--patience` seconds is a hang,
and its process is ended and started again after it. The end is a table of cases, tracebacks, crashes, hangs and silent
changes; the exit code is 1 where there is any. `python -m attack --case KIND NUMBER --seed S` repeats one case.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import selectors
import subprocess
import sys
import tempfile
import traceback
from collections import Counter
from pathlib import Path

from attack.awake import Stopwatch, wait_until

COLUMNS = ("cases", "read", "refused", "traceback", "crash", "hang", "silent change")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m attack", description=__doc__.splitlines()[0])
    parser.add_argument("kinds", nargs="*")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=30.0, help="the budget of each kind")
    parser.add_argument("--cases", type=int, default=2000, help="at most so many of each kind")
    parser.add_argument("--patience", type=float, default=60.0, help="seconds after which a case hangs")
    parser.add_argument("--case", nargs=2, metavar=("KIND", "NUMBER"), help="repeat one case, with its traceback")
    parser.add_argument("--serve", nargs=2, metavar=("KIND", "FIRST"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve or options.case:
        kind, number = options.serve or options.case
        _serve(kind, options.seed, int(number), once=bool(options.case))
        return 0
    from attack.kinds import KINDS

    found = {kind: _campaign(kind, options) for kind in options.kinds or KINDS}
    sys.stdout.write("\n".join(["", *_table(found), ""]))
    return int(any(counts[name] for counts in found.values() for name in COLUMNS[3:]))


def _serve(kind: str, seed: int, first: int, *, once: bool) -> None:
    """Run cases from `first` on and print how each ended, until the process is ended."""
    from attack.kinds import KINDS, OURS, SilentChangeError

    attacked = KINDS[kind]
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        os.chdir(folder)  # a command may write into the current folder
        attacked.make(folder)
        number = first
        while True:
            try:
                attacked.attack(folder, random.Random(f"{seed} {kind} {number}"))
                ended, said = "read", ""
            except OURS as error:
                ended, said = "refused", str(error)
            except SilentChangeError as error:
                ended, said = "silent change", str(error)
            except Exception as error:
                ended, said = "traceback", f"{type(error).__name__}: {error}"[:300]
                if once:
                    traceback.print_exc()
            sys.__stdout__.write(json.dumps({"number": number, "ended": ended, "said": said[:300]}) + "\n")
            sys.__stdout__.flush()
            if once:
                return
            number += 1


def _campaign(kind: str, options: argparse.Namespace) -> Counter[str]:
    counts: Counter[str] = Counter()
    number, left = 0, options.seconds
    while number < options.cases and left > 0:
        number, left = _until_it_dies(kind, number, left, options, counts)
    return counts


def _until_it_dies(
    kind: str, number: int, left: float, options: argparse.Namespace, counts: Counter[str]
) -> tuple[int, float]:
    """Count the cases of one process; return the number of the next case, and the seconds left after its first one."""
    command = [sys.executable, "-m", "attack", "--seed", str(options.seed), "--serve", kind, str(number)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment)
    waiting = selectors.DefaultSelector()
    waiting.register(process.stdout, selectors.EVENT_READ)
    patience = options.patience + 60  # the first case comes after the imports
    try:
        begun: Stopwatch | None = None
        while number < options.cases and (begun is None or begun.seconds() < left):
            ended = "hang"
            if wait_until(lambda tick: bool(waiting.select(tick)), patience):
                text = process.stdout.readline()
                answer = json.loads(text) if text else {"ended": "crash", "said": f"exit code {process.wait()}"}
                ended = answer["ended"]
            begun, patience = begun or Stopwatch(), options.patience
            counts.update(["cases", ended])
            if ended in COLUMNS[3:]:
                said = answer["said"] if ended != "hang" else f"more than {options.patience:g} s"
                sys.stdout.write(f"{kind}, case {number}: {ended}: {said}\n")
                sys.stdout.flush()
            number += 1
            if ended in ("hang", "crash"):
                break
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
    return number, left - (begun.seconds() if begun else 0.0)


def _table(found: dict[str, Counter[str]]) -> list[str]:
    lines = [f"| kind | {' | '.join(COLUMNS)} |", "|---|" + "---|" * len(COLUMNS)]
    return lines + [
        f"| {kind} | {' | '.join(str(counts[name]) for name in COLUMNS)} |" for kind, counts in found.items()
    ]


if __name__ == "__main__":
    sys.exit(main())
