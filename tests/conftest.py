import json
import signal

import numpy as np
import pytest

from fedprox.population import Population

# A shell starts what runs in its background deaf to interrupts, and children inherit that; tests send them.
signal.signal(signal.SIGINT, signal.default_int_handler)


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
