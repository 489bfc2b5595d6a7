"""Digests of small runs, to show that a refactoring changes no bit: run by hand before and after it.

python tests/digests.py record    # writes tests/digests.json
python tests/digests.py check     # runs all again and compares; exits with 1 where a bit differs

Everything goes through `fedprox.train`, so that modules may move. Bits compare on machines of the same kind alone.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import numpy as np

import fedprox

FILE = Path(__file__).with_name("digests.json")
STRAGGLERS = {"per_round": 6, "stragglers": 0.5}
BASE: dict[str, Any] = {
    "rounds": 6,
    "data": {"name": "synthetic", "devices": 12},
    "solver": {"epochs": 3},
    "devices": STRAGGLERS,
}
METHODS = ("fedavg", "fedprox", "feddane", "scaffold", "fednova", "feddyn", "fedavgm", "fedadam", "fedyogi")
PROX = {"name": "fedprox", "mu": 1.0}
PROPORTIONAL = {**STRAGGLERS, "sampling": "proportional"}
CLOCK = {"devices": {"per_round": 6}, "systems": {"model": "clock", "deadline": "q0.5"}}
NOISE = {"clip": 0.5, "noise_multiplier": 1.0}

SETTINGS: dict[str, dict[str, Any]] = {
    **{f"method-{name}": {"method": PROX if name == "fedprox" else {"name": name}} for name in METHODS},
    "proportional-fedprox": {"method": PROX, "devices": PROPORTIONAL},
    "proportional-scaffold": {"method": {"name": "scaffold"}, "devices": PROPORTIONAL},
    "clock-fedavg": {"method": {"name": "fedavg"}, **CLOCK},
    "clock-fedprox": {"method": PROX, **CLOCK},
    "mu-adaptive": {"rounds": 10, "method": {"mu": "adaptive", "mu_initial": 0.5, "mu_patience": 2}},
    "mu-drift": {"rounds": 10, "method": {"mu": "drift"}},
    "gamma": {"method": PROX, "solver": {"epochs": 5, "gamma": 0.2}, "measure": {"gamma": True}},
    "solver-momentum": {"method": PROX, "solver": {"epochs": 3, "momentum": 0.9, "nesterov": True}},
    "solver-adam": {"method": PROX, "solver": {"name": "adam", "epochs": 3}},
    "solver-lbfgs": {"method": PROX, "solver": {"name": "lbfgs", "epochs": 3}},
    "solver-newton_cg": {"method": PROX, "solver": {"name": "newton_cg", "epochs": 3}},
    "solver-gradient_descent": {"method": PROX, "solver": {"name": "gradient_descent", "epochs": 5}},
    "solver-svrg": {"method": PROX, "solver": {"name": "svrg", "epochs": 3}},
    "privacy-server": {"method": PROX, "privacy": {**NOISE, "where": "server"}},
    "privacy-client": {"method": PROX, "privacy": {**NOISE, "where": "client"}},
    "failure": {"method": PROX, "devices": {**STRAGGLERS, "failure": 0.3}},
    "model-mlp": {"rounds": 4, "method": PROX, "model": {"name": "mlp"}},
    "model-cnn": {"rounds": 3, "method": PROX, "model": {"name": "cnn"}, "solver": {"epochs": 2}},
    "model-char_lstm": {
        "rounds": 2,
        "method": {"mu": 0.001},
        "model": {"name": "char_lstm"},
        "solver": {"epochs": 2, "learning_rate": 0.8},
        "devices": {"per_round": 2, "stragglers": 0.5},
    },
    "data-synthetic_iid": {"data": {"name": "synthetic_iid", "devices": 12}},
    "measure-sample": {"method": PROX, "measure": {"devices": 5}},
    "engine-workers-1": {"method": {"name": "scaffold"}, "engine": {"workers": 1}},
    "engine-workers-2": {"method": {"name": "scaffold"}, "engine": {"workers": 2}},
    "engine-ray": {"method": {"name": "scaffold"}, "engine": {"name": "ray", "workers": 2}},
}
EQUAL = ("method-scaffold", "engine-workers-1", "engine-workers-2", "engine-ray")  # who works does not matter


def images() -> fedprox.Population:
    """Return noise of 8x8 pixels with labels at random, unevenly over eight devices."""
    random = np.random.default_rng(0)
    x, y = random.normal(size=(240, 64)).astype(np.float32), random.integers(0, 4, 240)
    return fedprox.Population.from_arrays(x, y, (np.arange(240) ** 2) // 7201)


def texts(length: int = 8) -> fedprox.Population:
    """Return three devices that repeat a sentence each; x are codes, y the next one."""
    rows: list[tuple[Any, Any, int]] = []
    for device, text in enumerate(["to be or not to be ", "all the world is a stage ", "what is in a name "]):
        codes = np.frombuffer((text * 3).encode(), np.uint8) % 32
        rows += [(codes[k : k + length], codes[k + length], device) for k in range(len(codes) - length)]
    return fedprox.Population.from_arrays(*(np.array(column) for column in zip(*rows, strict=True)))


POPULATIONS: dict[str, Callable[[], fedprox.Population]] = {
    "model-mlp": images,
    "model-cnn": images,
    "model-char_lstm": texts,
}


def digest(name: str) -> str:
    """Return the SHA-256 of the final parameters and of the training losses of a setting's run."""
    population = POPULATIONS[name]() if name in POPULATIONS else None
    result = fedprox.train({**BASE, **SETTINGS[name]}, population=population)
    sha = hashlib.sha256()
    for leaf in jax.tree_util.tree_leaves(result.params):
        sha.update(np.ascontiguousarray(leaf).tobytes())
    losses = [row["train_loss"] for row in result.history]
    sha.update(" ".join("none" if loss is None else float(loss).hex() for loss in losses).encode())
    return sha.hexdigest()


def machine() -> dict[str, str]:
    """Return what the bits of a run depend on beside the code."""
    lines = [line.partition(":") for line in Path("/proc/cpuinfo").read_text().splitlines()]
    cpu = {key.strip(): value.strip() for key, _, value in lines}
    features = hashlib.sha256(" ".join(sorted(cpu.get("flags", "").split())).encode()).hexdigest()[:12]
    versions = {package: version(package) for package in ("jax", "jaxlib", "numpy")}
    return {"cpu": cpu.get("model name", ""), "cpu_features": features, **versions}


def digests() -> Iterator[tuple[str, str]]:
    """Yield every setting that can be run here, with its digest or the error that it ended with."""
    for name, setting in SETTINGS.items():
        if setting.get("engine", {}).get("name") == "ray" and importlib.util.find_spec("ray") is None:
            say(f"{name}: skipped, ray is not installed")
            continue
        try:
            yield name, digest(name)
        except Exception as error:  # the other settings are still of interest
            yield name, f"{type(error).__name__}: {error}"


def say(sentence: str) -> None:
    sys.stdout.write(sentence + "\n")
    sys.stdout.flush()


def unequal(found: Mapping[str, str]) -> bool:
    """Say whether settings that differ in who works alone have different digests."""
    if different := len({found[name] for name in EQUAL if name in found}) > 1:
        say(f"DIFFERENT from each other: {', '.join(name for name in EQUAL if name in found)}")
    return different


def record() -> int:
    found = {}
    for name, found[name] in digests():
        say(f"{name}: {found[name]}")
    if unequal(found) or any(":" in value for value in found.values()):
        say("nothing is written")
        return 1
    FILE.write_text(json.dumps({"machine": machine(), "digests": found}, indent=2) + "\n")
    return 0


def check() -> int:
    recorded = json.loads(FILE.read_text())
    if recorded["machine"] != machine():
        say(f"not compared: recorded on another kind of machine, {recorded['machine']}; this one is {machine()}")
        return 0
    found, wrong = {}, 0
    for name, found[name] in digests():
        same = recorded["digests"].get(name) == found[name]
        error = (
            f" ({found[name]})" if ":" in found[name] else " (not on record)" if name not in recorded["digests"] else ""
        )
        say(f"{name}: {'same' if same else 'DIFFERENT' + error}")
        wrong += not same
    for name in recorded["digests"].keys() - SETTINGS.keys():
        say(f"{name}: DIFFERENT (on record, but no setting any more)")
        wrong += 1
    return int(unequal(found) or wrong > 0)


if __name__ == "__main__":
    commands = {"record": record, "check": check}
    if len(sys.argv) != 2 or sys.argv[1] not in commands:
        sys.exit("usage: python tests/digests.py record|check")
    started = time.perf_counter()
    code = commands[sys.argv[1]]()
    say(f"{time.perf_counter() - started:.0f} s")
    sys.exit(code)
