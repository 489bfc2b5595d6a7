import contextlib
import gc
import importlib.util
import json
import os
import signal
import subprocess
import sys
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import platformdirs

# One compilation cache for the suite: for all workers, for the processes that tests start, and for the next time.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(platformdirs.user_cache_path("fedprox") / "xla"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadScopeScheduling

import forked
from fedprox.cli import main
from fedprox.config import part_search
from fedprox.experiments import scheduler
from fedprox.population import Population
from processor_time import seconds_of

# A shell starts what runs in its background deaf to interrupts, and children inherit that; tests send them.
signal.signal(signal.SIGINT, signal.default_int_handler)

forked.install()

# First examples compile programs, and other tests share the cores: their time says nothing about the code.
settings.register_profile("shared-cores", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("shared-cores")

# Modules are not garbage. Collections while they are imported take a fifth of that time, and later ones that look
# through all of them a tenth of the tests' time; see `pytest_collection_finish`.
gc.disable()


# Files whose tests start clusters, federations or many processes, run the documentation from end to end, or compile
# large networks and import other libraries for them.
SLOW_FILES = {
    "test_adapters.py",
    "test_attacked_federation.py",
    "test_cli.py",
    "test_deploy.py",
    "test_deploy_pace.py",
    "test_deploy_privacy.py",
    "test_docs.py",
    "test_examples.py",
    "test_kill.py",
    "test_lstm.py",
    "test_notebooks.py",
    "test_paper_runs.py",
    "test_paper_smoke.py",
    "test_ray.py",
    "test_scheduler.py",
    "test_survival.py",
    "test_sweep.py",
    "test_trackers.py",
    "test_workers.py",
    "test_zoo.py",
}


# A test is slow, too, if it was measured to take this many seconds of processor time (`processor_time.py` measures test
# functions; each of their cases counts alike). With it the quick tests take about 90 seconds on two cores.
SLOW = 0.25
UNMEASURED = 10.0  # seconds of a test in a slow file

# Files whose tests are long and share nothing; those of other files stay together, with their fixtures and programs.
SPLIT_FILES = SLOW_FILES - {
    "test_adapters.py",
    "test_deploy.py",
    "test_deploy_pace.py",
    "test_paper_smoke.py",
    "test_ray.py",
}

# Files whose tests wait for real clusters and federations most of the time, the longest first. They begin before all
# others, one after another in workers beyond the number of cores, while the other workers keep the cores busy.
WAITING_FILES = ("test_deploy_pace.py", "test_deploy.py", "test_ray.py", "test_attacked_federation.py")
WAITING_WORKERS = 2

collect_ignore = ["attack/federation_app", "attack/paced_app"]  # parts of apps, which import the rest of them

# Files that import the package of an extra. The quick tests also run without extras, on systems that lack some of these
# packages, and then leave the files unread.
FILES_OF_EXTRAS = {
    "equinox": ["src/fedprox/adapters/equinox.py"],
    "flax": ["src/fedprox/adapters/flax.py"],
    "flwr": [
        "src/fedprox/deploy/*.py",
        "tests/attack/warm_node.py",
        "tests/fake_federation.py",
        "tests/test_deploy_*.py",
        "tests/test_new_project.py",
    ],
    "optax": ["src/fedprox/solvers/optax_steps.py", "tests/test_solvers.py", "tests/test_subproblem.py"],
    "polars": ["tests/test_saved_models.py"],
    "pyarrow": ["tests/attack/fleets.py", "tests/attack/kinds.py", "tests/test_attack.py"],
    "scipy": [
        "src/fedprox/adapters/scipy.py",
        "tests/test_personal.py",
        "tests/test_solvers.py",
        "tests/test_subproblem.py",
    ],
    "torch": ["src/fedprox/adapters/torch*.py", "tests/test_deploy_parts.py", "tests/test_personal.py"],
}


def missing_extras() -> list[str]:
    """Return the packages of `FILES_OF_EXTRAS` that are not installed."""
    return [package for package in FILES_OF_EXTRAS if importlib.util.find_spec(package) is None]


def is_quick(config: pytest.Config) -> bool:
    """Return whether the quick tests alone are wanted."""
    return config.option.markexpr == "not slow"


def pytest_report_header(config: pytest.Config) -> str | None:
    """Say which packages the quick tests do without."""
    missing = missing_extras() if is_quick(config) else []
    return f"without tests that need {', '.join(missing)}" if missing else None


def pytest_configure(config: pytest.Config) -> None:
    """Leave files unread of which the quick tests want nothing: slow ones, and those that need a missing package."""
    if is_quick(config):
        unread = [f"tests/{name}" for name in SLOW_FILES]
        unread += [each for package in missing_extras() for each in FILES_OF_EXTRAS[package]]
        config.option.ignore_glob = [*config.option.ignore_glob, *(str(config.rootpath / each) for each in unread)]


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int | None:
    """Return how many workers `-n auto` means: one per core, and more for tests that wait."""
    if "PYTEST_XDIST_AUTO_NUM_WORKERS" in os.environ:
        return None  # as it says
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return cores if is_quick(config) else cores + WAITING_WORKERS


def pytest_xdist_setupnodes() -> None:
    """Start what forks processes of fedprox once for all workers."""
    forked.start_template()


def group_name(nodeid: str) -> str:
    """Return the group of a test, which runs in one process: its file, or the test alone."""
    file = nodeid.partition("::")[0]
    return nodeid if Path(file).name in SPLIT_FILES else file


def does_wait(group: str) -> bool:
    """Return whether the tests of a group wait most of the time."""
    return Path(group.partition("::")[0]).name in WAITING_FILES


class Groups(LoadScopeScheduling):
    """Hands out groups of tests in their order, those that wait to the first workers only.

    (`--dist loadgroup` of xdist 3.8 has no effect with pytest 9.2.)
    """

    def _split_scope(self, nodeid: str) -> str:
        return group_name(nodeid)

    def _assign_work_unit(self, node: Any) -> None:
        waiting = [name for name in self.workqueue if does_wait(name)]
        others = [name for name in self.workqueue if not does_wait(name)]
        takes_waiting = self.nodes.index(node) < min(WAITING_WORKERS, (len(self.nodes) + 1) // 2)
        is_waiting = any(does_wait(name) and not all(done.values()) for name, done in self.assigned_work[node].items())
        if waiting and (takes_waiting or not others):
            chosen = waiting[0]
        elif is_waiting:
            chosen = others[-1]  # a worker gets its next group before it is free: here the shortest, which can stay
        else:
            chosen = others[0]
        self.workqueue.move_to_end(chosen, last=False)
        super()._assign_work_unit(node)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Groups:
    """Let each group of tests run in one process."""
    config.option.loadscopereorder = False
    return Groups(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what is slow, and begin with the groups of tests that wait; then come the others, the longest first."""
    seconds = seconds_of(items, lambda item: UNMEASURED if item.path.name in SLOW_FILES else 0.0)
    total: Counter[str] = Counter()
    groups = {}
    for item, own in seconds.items():
        if item.path.name in SLOW_FILES or own >= SLOW:
            item.add_marker(pytest.mark.slow)
        groups[item] = group_name(item.nodeid)
        total[groups[item]] += own
    waiting = {name: place for place, name in enumerate(WAITING_FILES)}
    # stable: the order within a group stays
    items.sort(key=lambda item: (waiting.get(item.path.name, len(waiting)), -total[groups[item]]))


def pytest_collection_finish() -> None:
    """Collect garbage from now on, and pass over what was imported."""
    gc.collect()
    gc.freeze()
    gc.enable()


def population_of(sizes, features=5, classes=3, seed=0, test=0):
    """A small population of Gaussian clouds that differ per device; `test` more rows per device are test rows."""
    random = np.random.default_rng(seed)
    owner = np.concatenate([np.full(size + test, k) for k, size in enumerate(sizes)])
    is_test = np.concatenate([np.arange(size + test) >= size for size in sizes])
    centres = random.normal(size=(len(sizes), features))
    x = (centres[owner] + random.normal(size=(len(owner), features))).astype(np.float32)
    y = (x @ random.normal(size=(features, classes))).argmax(axis=1)
    return Population.from_arrays(x, y, owner, test=is_test)


@pytest.fixture
def small_population():
    return population_of([7, 23, 4, 31, 12], test=3)


@pytest.fixture
def in_process(capfd, monkeypatch):
    """Run `fedprox ARGUMENTS` in this process: what it prints is captured at the file descriptors, as a shell sees it.

    A process of its own costs two seconds to import JAX, so tests start one only where the process is the point.
    """

    def run(*arguments, cwd):
        capfd.readouterr()
        with monkeypatch.context() as patch, warnings.catch_warnings():
            warnings.simplefilter("default")
            patch.chdir(cwd)
            patch.setattr(sys, "argv", ["fedprox", *map(str, arguments)])
            patch.setattr(sys, "path", list(sys.path))
            patch.setattr(part_search, "_allowed", [])
            known = set(sys.modules)
            try:
                main()
                code = 0
            except SystemExit as end:
                code = int(end.code or 0)
            finally:
                for name in set(sys.modules) - known:
                    if str(cwd) in (getattr(sys.modules[name], "__file__", None) or ""):
                        del sys.modules[name]  # a part of the folder, which the next command finds anew
        out, error = capfd.readouterr()
        return subprocess.CompletedProcess(arguments, code, out, error)

    return run


@contextlib.contextmanager
def running_here():
    """Let runs of comparisons, sweeps and figures take place in this process, whose programs are compiled already."""

    def run(jobs, workers, on_event, on_end):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # as in processes of their own, where none is an error
            return [scheduler._run_here(scheduler._with_workers(job, 1), on_event, on_end) for job in jobs]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scheduler, "_run_elsewhere", run)
        yield


@pytest.fixture
def runs_here():
    """See `running_here`: for tests to which the processes of the runs do not matter."""
    with running_here():
        yield


@pytest.fixture
def started_anew(monkeypatch):
    """Let processes of fedprox be started by exec, with all that happens before `main`, and not forked."""
    monkeypatch.setattr(subprocess, "Popen", forked.PLAIN)


@pytest.fixture
def write_leaf(tmp_path):
    """Write {user: (x, y)} for training and test data as a LEAF folder and return it."""

    def write(train, test, folder="leaf"):
        for part, users in (("train", train), ("test", test)):
            path = tmp_path / folder / part
            path.mkdir(parents=True, exist_ok=True)
            content = {
                "users": list(users),
                "num_samples": [len(y) for _, y in users.values()],
                "user_data": {
                    name: {"x": np.asarray(x).tolist(), "y": np.asarray(y).tolist()} for name, (x, y) in users.items()
                },
            }
            (path / "data.json").write_text(json.dumps(content))
        return tmp_path / folder

    return write
