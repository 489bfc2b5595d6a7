import json
import os
import signal

import platformdirs

# One compilation cache for the suite: for all workers, for the processes that tests start, and for the next time.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(platformdirs.user_cache_path("fedprox") / "xla"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")

import numpy as np
import pytest

from fedprox.population import Population

# A shell starts what runs in its background deaf to interrupts, and children inherit that; tests send them.
signal.signal(signal.SIGINT, signal.default_int_handler)


# Files whose tests start clusters, federations or many processes, or run the documentation from end to end.
SLOW_FILES = {
    "test_cli.py",
    "test_deploy.py",
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
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.name in SLOW_FILES:
            item.add_marker(pytest.mark.slow)


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
